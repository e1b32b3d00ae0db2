"""``hyperadam data``: the datasets in the cache."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = """
  hyperadam data list
  hyperadam data fetch mnist
  hyperadam data fetch cifar10 --from ~/downloads
  hyperadam data verify

HYPERADAM_DATA names the folder of the cache.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument("action", choices=("list", "fetch", "verify"), help="what to do")
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="a dataset's name, as `hyperadam data list` has it (default: all)",
    )
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="DIR", help="fetch: a folder to look into first"
    )


def run(options: argparse.Namespace) -> None:
    """Do it for one dataset or all, a line for each."""
    from hyperadam import data
    from hyperadam.commands import terminal

    chosen = [options.name] if options.name else data.names()
    if options.action == "list":
        found = [data.status(name) for name in chosen]
        rows = [(x.name, x.state, f"{x.size / 1e6:.0f} MB", x.title, str(x.path)) for x in found]
        terminal.show_table(rows, ("dataset", "state", "size", "what it is", "where"), right=[2])
        return
    for name in chosen:
        if options.action == "fetch":
            print(f"{name:14}  {data.fetch(name, options.source)}", flush=True)
        else:
            print(f"{name:14}  verified  {data.verify(name)}", flush=True)
