"""``hyperadam demo``: what the package is about, in a couple of minutes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hyperadam import data
from hyperadam.commands import common

if TYPE_CHECKING:
    from hyperadam.commands.common import Commands

TASKS = ("mnist-mlp", "mnist-mlp-relu", "mnist-mlp-3x20", "sine-lstm")
OPTIMIZERS = ("hyperadam", "adam", "sgd")

EXAMPLES = """
  hyperadam demo
  hyperadam demo --runs 100 --out my-demo
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    summary = "fetch MNIST and compare HyperAdam with tuned Adam and SGD on a handful of networks"
    parser = common.add_parser(commands, "demo", summary, EXAMPLES)
    common.add_run_options(parser, out="demo")
    common.add_compare_options(parser)
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="DIR",
        help="a folder that has MNIST's files already",
    )
    parser.set_defaults(run=run, against="adam")


def run(options: argparse.Namespace) -> None:
    """Fetch, then what ``compare`` does."""
    common.prepare(options)
    data.fetch("mnist", options.source)
    command = f"hyperadam demo{common.run_flags(options)}"
    common.run_and_report(
        options, TASKS, OPTIMIZERS, "HyperAdam, Adam and SGD on four small networks", command
    )
