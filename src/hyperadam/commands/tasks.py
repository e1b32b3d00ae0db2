"""``hyperadam tasks``: what there is to train."""

from __future__ import annotations

import argparse

from hyperadam.commands import flags

EXAMPLES = """
  hyperadam tasks
  hyperadam tasks --import my_tasks
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    flags.add_import_option(parser)


def run(options: argparse.Namespace) -> None:
    """Print names, sizes and what they are."""
    from hyperadam import tasks
    from hyperadam.commands import terminal
    from hyperadam.commands.user_code import import_module

    if options.module:
        import_module(options.module)
    found = [(name, tasks.get(name)) for name in tasks.names()]
    rows = [(name, f"{task.p:,}", task.title) for name, task in found]
    terminal.show_table(rows, ("task", "parameters", "what it is"), right=[1])
    print(
        "\nThere are others, with names of these forms: one of those in braces, and perhaps what "
        "stands in brackets."
    )
    for form in tasks.FORMS:
        print(f"  {form}")
