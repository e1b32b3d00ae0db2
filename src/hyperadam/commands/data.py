"""``hyperadam data``: the datasets in the cache."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hyperadam import data
from hyperadam.commands import common

if TYPE_CHECKING:
    from hyperadam.commands.common import Commands

EXAMPLES = """
  hyperadam data list
  hyperadam data fetch mnist
  hyperadam data fetch cifar10 --from ~/downloads
  hyperadam data verify

HYPERADAM_DATA names the folder of the cache.
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = common.add_parser(commands, "data", "list, fetch or verify datasets", EXAMPLES)
    parser.add_argument("action", choices=("list", "fetch", "verify"), help="what to do")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help=f"{' or '.join(data.names())} (default: all)"
    )
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="DIR", help="fetch: a folder to look into first"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Do it for one dataset or all, a line for each."""
    for name in [options.name] if options.name else data.names():
        if options.action == "fetch":
            print(f"{name:8}  {data.fetch(name, options.source)}")
        elif options.action == "verify":
            print(f"{name:8}  verified  {data.verify(name)}")
        else:
            found = data.status(name)
            print(
                f"{name:8}  {found.state:8}  {found.size / 1e6:4.0f} MB  {found.title}  {found.path}"
            )
