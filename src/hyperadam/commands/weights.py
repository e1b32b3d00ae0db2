"""``hyperadam weights``: the meta-trained weights that come with the package, and the user's
own."""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hyperadam.commands import common
from hyperadam.experiments import BASELINES, weights_sha256
from hyperadam.files import write_atomically
from hyperadam.weights import list_weights, load_rule
from hyperadam.weights.loader import SHIPPED, SUFFIX

if TYPE_CHECKING:
    from hyperadam.commands.common import Commands

EXAMPLES = """
  hyperadam weights list
  hyperadam weights show hyperadam
  hyperadam weights show my-weights.safetensors
  hyperadam weights ship runs/mine/best.safetensors mine --what "trained on my own tasks"

`ship` puts a file of `hyperadam meta-train` into this installation of the package, with all that
it says of where it comes from: from then on its name is one of `hyperadam weights list`, and
`hyperadam.HyperAdam(params, weights="mine")` finds it.
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = common.add_parser(
        commands,
        "weights",
        "list the shipped weights, show where some come from, or ship more",
        EXAMPLES,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="list the shipped weights").set_defaults(run=list_all)
    show = actions.add_parser("show", help="show a rule's configuration and provenance")
    show.add_argument(
        "name", metavar="NAME", help="a shipped name or a path to a .safetensors file"
    )
    show.set_defaults(run=show_one)
    ship = actions.add_parser("ship", help="put a weight file into the package under a name")
    ship.add_argument("file", type=Path, metavar="FILE", help="best.safetensors of a meta-training")
    ship.add_argument("name", metavar="NAME", help="what it will be called")
    ship.add_argument("--what", metavar="TEXT", help="what it is, in a line")
    ship.add_argument(
        "--replace", action="store_true", help="even if there are weights of that name"
    )
    ship.set_defaults(run=ship_one)


def list_all(options: argparse.Namespace) -> None:
    """A line for each name."""
    for name in list_weights():
        rule = load_rule(name)
        print(f"{name:16}  {rule.kind:10}  {rule.provenance.get('what', '')}")


def show_one(options: argparse.Namespace) -> None:
    """Everything that is known about a weight file."""
    rule = load_rule(options.name)
    known = {
        "rule": rule.kind,
        "config": rule.config,
        "meta-parameters": sum(value.numel() for value in rule.parameters()),
        "step size": rule.step_size,
        "sha256 of the weights": weights_sha256(rule),
        "provenance": rule.provenance,
    }
    print(json.dumps(known, indent=2, ensure_ascii=False))


def ship_one(options: argparse.Namespace) -> None:
    """Copy a weight file into the package, once it is sure that it says where it comes from."""
    name, target = options.name, SHIPPED / f"{options.name}{SUFFIX}"
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or name in BASELINES:
        raise ValueError(
            f"NAME: {name!r} cannot be the name of weights, expected lower-case letters, digits "
            "and -, "
            f"and none of {', '.join(BASELINES)}"
        )
    if target.exists() and not options.replace:
        raise ValueError(
            f"NAME: there are weights named {name!r}; --replace puts these in their place"
        )
    rule = load_rule(options.file)
    if missing := [entry for entry in ("made_by", "settings") if entry not in rule.provenance]:
        raise ValueError(
            f"{options.file} does not say where it comes from: its provenance has no "
            f"{missing[0]!r}; "
            "expected a file that `hyperadam meta-train` wrote"
        )
    if options.what:
        rule.provenance["what"] = " ".join(options.what.split())
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"{name}{SUFFIX}"
        rule.save(copy)
        write_atomically(target, copy.read_bytes())
    print(f"{name}  {rule.kind}  sha256 {weights_sha256(load_rule(name))}  {target}")
