"""``hyperadam demo``: what the package is about, in a couple of minutes."""

from __future__ import annotations

import argparse
from pathlib import Path

from hyperadam.commands import flags

TASKS = ("mnist-mlp", "mnist-mlp-relu", "mnist-mlp-3x20", "sine-lstm")
OPTIMIZERS = ("hyperadam", "adam", "sgd")

EXAMPLES = """
  hyperadam demo
  hyperadam demo --runs 100 --out my-demo
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    flags.add_run_options(parser, out="demo")
    flags.add_compare_options(parser)
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="DIR",
        help="a folder that has MNIST's files already",
    )
    parser.set_defaults(against=None, resumes=True)


def run(options: argparse.Namespace) -> None:
    """Fetch, then what ``compare`` does."""
    from hyperadam import data
    from hyperadam.commands import common

    common.prepare(options)
    data.fetch("mnist", options.source)
    command = f"hyperadam demo{flags.run_flags(options)}"
    common.run_and_report(
        options, TASKS, OPTIMIZERS, "HyperAdam, Adam and SGD on four small networks", command
    )
