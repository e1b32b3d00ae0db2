"""``hyperadam weights``: the meta-trained weights that come with the package, and the user's
own."""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path

EXAMPLES = """
  hyperadam weights list
  hyperadam weights show hyperadam
  hyperadam weights show my-weights.safetensors
  hyperadam weights ship runs/mine/best.safetensors mine --what "trained on my own tasks"

`ship` puts a file of `hyperadam meta-train` into this installation of the package, with all that
it says of where it comes from: from then on its name is one of `hyperadam weights list`, and
`hyperadam.HyperAdam(params, weights="mine")` finds it.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="list the shipped weights")
    show = actions.add_parser("show", help="show a rule's configuration and provenance")
    show.add_argument(
        "name", metavar="NAME", help="a shipped name or a path to a .safetensors file"
    )
    ship = actions.add_parser("ship", help="put a weight file into the package under a name")
    ship.add_argument("file", type=Path, metavar="FILE", help="best.safetensors of a meta-training")
    ship.add_argument("name", metavar="NAME", help="what it will be called")
    ship.add_argument("--what", metavar="TEXT", help="what it is, in a line")
    ship.add_argument(
        "--replace", action="store_true", help="even if there are weights of that name"
    )


def run(options: argparse.Namespace) -> None:
    """List, show or ship."""
    {"list": list_all, "show": show_one, "ship": ship_one}[options.action](options)


def list_all(options: argparse.Namespace) -> None:
    """A line for each name."""
    from hyperadam.commands import terminal
    from hyperadam.weights import list_weights, load_rule

    rules = [(name, load_rule(name)) for name in list_weights()]
    rows = [(name, rule.kind, rule.provenance.get("what", "")) for name, rule in rules]
    terminal.show_table(rows, ("weights", "rule", "what they are"))


def show_one(options: argparse.Namespace) -> None:
    """Everything that is known about a weight file."""
    from hyperadam.experiments import weights_sha256
    from hyperadam.weights import load_rule

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
    from hyperadam.experiments import BASELINES, weights_sha256
    from hyperadam.files import write_atomically
    from hyperadam.weights import load_rule
    from hyperadam.weights.loader import SHIPPED, SUFFIX

    name, target = options.name, SHIPPED / f"{options.name}{SUFFIX}"
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or name in BASELINES:
        raise ValueError(
            f"NAME: {name!r} cannot be the name of weights, expected lower-case letters, digits "
            f"and -, and none of {', '.join(BASELINES)}"
        )
    if target.exists() and not options.replace:
        raise ValueError(
            f"NAME: there are weights named {name!r}; --replace puts these in their place"
        )
    rule = load_rule(options.file)
    if missing := [entry for entry in ("made_by", "settings") if entry not in rule.provenance]:
        raise ValueError(
            f"{options.file} does not say where it comes from: its provenance has no "
            f"{missing[0]!r}; expected a file that `hyperadam meta-train` wrote"
        )
    if options.what:
        rule.provenance["what"] = " ".join(options.what.split())
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"{name}{SUFFIX}"
        rule.save(copy)
        write_atomically(target, copy.read_bytes())
    print(f"{name}  {rule.kind}  sha256 {weights_sha256(load_rule(name))}  {target}")
