"""``hyperadam compare``: tasks trained by several optimizers, in a table, a figure and a page."""

from __future__ import annotations

import argparse

from hyperadam.commands import flags

EXAMPLES = """
  hyperadam compare mnist-mlp
  hyperadam compare mnist-mlp sine-lstm --optimizers hyperadam,rnnprop,adam,sgd --runs 100
  hyperadam compare mnist-mlp --optimizers hyperadam,adam@0.01,adam@0.03 --against adam@0.03
  hyperadam compare mnist-mlp --optimizers hyperadam,hyperadam+horizon,hyperadam+relative+horizon

Optimizers from torch use the learning rate that `hyperadam tune` found for the task, if there is
one, else the published one. All optimizers start from the same seeds. What was computed before is
not computed again; an interrupted command goes on.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument(
        "tasks", nargs="+", metavar="TASK", help="names of tasks (hyperadam tasks lists them)"
    )
    parser.add_argument(
        "--optimizers",
        type=flags.names,
        default=["hyperadam", "adam"],
        metavar="NAMES",
        help="adam, adam@0.01, hyperadam, a weight file …, with commas between them "
        "(default hyperadam,adam)",
    )
    parser.add_argument(
        "--against",
        metavar="NAME",
        help="the one of them to compare the others with (default adam, if it is among them)",
    )
    flags.add_run_options(parser, out="results/compare")
    flags.add_compare_options(parser)
    parser.set_defaults(resumes=True)


def run(options: argparse.Namespace) -> None:
    """Train, print, write."""
    from hyperadam.commands import common

    common.prepare(options)
    task_names = list(dict.fromkeys(options.tasks))
    shown = [flags.shown(optimizer) for optimizer in options.optimizers]
    title = f"{', '.join(shown)} compared"
    command = f"hyperadam compare {' '.join(task_names)} --optimizers {','.join(shown)}"
    command += flags.run_flags(options)
    common.run_and_report(options, task_names, options.optimizers, title, command)
