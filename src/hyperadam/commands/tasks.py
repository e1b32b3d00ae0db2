"""``hyperadam tasks``: what there is to train."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hyperadam import tasks
from hyperadam.commands import common

if TYPE_CHECKING:
    from hyperadam.commands.common import Commands

EXAMPLES = """
  hyperadam tasks
  hyperadam tasks --import my_tasks
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = common.add_parser(commands, "tasks", "list the tasks", EXAMPLES)
    common.add_import_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print names, sizes and what they are."""
    common.prepare(options)
    width = max(map(len, tasks.names()))
    for name in tasks.names():
        task = tasks.get(name)
        print(f"{name:{width}}  {task.p:>9,}  {task.title}")
    print(
        "\nThe number is that of the learner's parameters. Others of the same kind have names too:"
    )
    print(
        "mnist-mlp-2x50-tanh, cifar10-mlp, mnist14-cnn1, cifar10-cnn1-bn-dropout, "
        "sine-lstm-3-small-noise, …"
    )
