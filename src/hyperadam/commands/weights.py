"""``hyperadam weights``: the meta-trained weights that come with the package, and the user's own."""

from __future__ import annotations

import argparse
import json

EXAMPLES = """
  hyperadam weights list
  hyperadam weights show hyperadam
  hyperadam weights show my-weights.safetensors
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="list the shipped weights")
    show = actions.add_parser("show", help="show a rule's configuration and provenance")
    show.add_argument(
        "name", metavar="NAME", help="a shipped name or a path to a .safetensors file"
    )


def run(options: argparse.Namespace) -> None:
    """A line for each shipped name, or everything that is known about a weight file."""
    from hyperadam.weights import list_weights, load_rule

    if options.action == "list":
        from hyperadam.commands import terminal

        rules = [(name, load_rule(name)) for name in list_weights()]
        rows = [(name, rule.kind, rule.provenance.get("what", "")) for name, rule in rules]
        terminal.show_table(rows, ("weights", "rule", "what they are"))
        return
    from hyperadam.experiments import weights_sha256

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
