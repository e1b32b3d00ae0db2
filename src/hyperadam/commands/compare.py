"""``hyperadam compare``: tasks trained by several optimizers, in a table, a figure and a page."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hyperadam.commands import common

if TYPE_CHECKING:
    from hyperadam.commands.common import Commands

EXAMPLES = """
  hyperadam compare mnist-mlp
  hyperadam compare mnist-mlp sine-lstm --optimizers hyperadam,rnnprop,adam,sgd --runs 100
  hyperadam compare mnist-mlp --optimizers hyperadam,adam@0.01,adam@0.03 --against adam@0.03
  hyperadam compare mnist-mlp --optimizers hyperadam,hyperadam+horizon,hyperadam+relative+horizon

Optimizers from torch use the learning rate that `hyperadam tune` found for the task, if there is
one, else the published one. All optimizers start from the same seeds. What was computed before is
not computed again; an interrupted command goes on.
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = common.add_parser(
        commands, "compare", "train tasks with several optimizers and compare them", EXAMPLES
    )
    parser.add_argument(
        "tasks", nargs="+", metavar="TASK", help="names of tasks (hyperadam tasks lists them)"
    )
    parser.add_argument(
        "--optimizers",
        type=common.names,
        default=["hyperadam", "adam"],
        metavar="NAMES",
        help="adam, adam@0.01, hyperadam, a weight file …, with commas between them "
        "(default hyperadam,adam)",
    )
    parser.add_argument(
        "--against",
        default="adam",
        metavar="NAME",
        help="the optimizer to compare with (default %(default)s)",
    )
    common.add_run_options(parser, out="results/compare")
    common.add_compare_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Train, print, write."""
    common.prepare(options)
    task_names = list(dict.fromkeys(options.tasks))
    shown = [common.shown(optimizer) for optimizer in options.optimizers]
    title = f"{', '.join(shown)} compared"
    command = f"hyperadam compare {' '.join(task_names)} --optimizers {','.join(shown)}"
    command += common.run_flags(options)
    common.run_and_report(options, task_names, options.optimizers, title, command)
