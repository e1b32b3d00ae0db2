"""``hyperadam weights``: the meta-trained weights that come with the package, and the user's own."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from hyperadam.commands import common
from hyperadam.experiments import weights_sha256
from hyperadam.weights import list_weights, load_rule

if TYPE_CHECKING:
    from hyperadam.commands.common import Commands

EXAMPLES = """
  hyperadam weights list
  hyperadam weights show hyperadam
  hyperadam weights show my-weights.safetensors
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = common.add_parser(
        commands, "weights", "list the shipped weights, or show where some come from", EXAMPLES
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="list the shipped weights").set_defaults(run=list_all)
    show = actions.add_parser("show", help="show a rule's configuration and provenance")
    show.add_argument(
        "name", metavar="NAME", help="a shipped name or a path to a .safetensors file"
    )
    show.set_defaults(run=show_one)


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
