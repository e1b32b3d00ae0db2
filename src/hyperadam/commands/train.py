"""``hyperadam train``: one task, one optimizer, many runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hyperadam.commands import common

if TYPE_CHECKING:
    from hyperadam.commands.common import Commands

EXAMPLES = """
  hyperadam train mnist-mlp
  hyperadam train mnist-cnn1 --optimizer adam@0.01 --steps 500 --runs 3 --test
  hyperadam train sine-lstm --optimizer my-weights.safetensors
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = common.add_parser(
        commands, "train", "train a task from many seeds at once and show how it went", EXAMPLES
    )
    parser.add_argument(
        "task", metavar="TASK", help="the name of a task (hyperadam tasks lists them)"
    )
    parser.add_argument(
        "--optimizer",
        default="hyperadam",
        metavar="NAME",
        help="adam, adam@0.01, hyperadam, a weight file … (default %(default)s)",
    )
    common.add_run_options(parser, out="results/train")
    common.add_compare_options(parser)
    parser.set_defaults(run=run, against="adam")


def run(options: argparse.Namespace) -> None:
    """Train, print, write."""
    common.prepare(options)
    title = f"{options.task} with {common.shown(options.optimizer)}"
    command = f"hyperadam train {options.task} --optimizer {common.shown(options.optimizer)}"
    command += common.run_flags(options)
    common.run_and_report(options, [options.task], [options.optimizer], title, command)
