"""``hyperadam train``: one task, one optimizer, many runs."""

from __future__ import annotations

import argparse

from hyperadam.commands import flags

EXAMPLES = """
  hyperadam train mnist-mlp
  hyperadam train mnist-cnn1 --optimizer adam@0.01 --steps 500 --runs 3 --test
  hyperadam train sine-lstm --optimizer my-weights.safetensors
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    flags.add_task_options(parser, "adam, adam@0.01, hyperadam")
    flags.add_run_options(parser, out="results/train")
    flags.add_compare_options(parser)
    parser.set_defaults(against=None, resumes=True)


def run(options: argparse.Namespace) -> None:
    """Train, print, write."""
    from hyperadam.commands import common

    common.prepare(options)
    title = f"{options.task} with {flags.shown(options.optimizer)}"
    command = f"hyperadam train {options.task} --optimizer {flags.shown(options.optimizer)}"
    command += flags.run_flags(options)
    common.run_and_report(options, [options.task], [options.optimizer], title, command)
