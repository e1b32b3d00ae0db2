"""``hyperadam demo``: what the package is about, in a couple of minutes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hyperadam.commands import flags

if TYPE_CHECKING:
    from hyperadam.results import Result

TASKS = ("mnist-mlp", "mnist-mlp-relu", "mnist-mlp-3x20", "sine-lstm")
OURS = ("hyperadam2+horizon", "hyperadam")
OPTIMIZERS = (*OURS, "adam", "adam@0.001", "sgd")
#: The time of a step is measured in so many rounds of so many updates.
ROUNDS, UPDATES = 5, 20

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
    """Fetch, then what ``compare`` does, and the results in words; a picture of how it works."""
    from hyperadam import data
    from hyperadam.commands import common, terminal
    from hyperadam.inside.valley import write_valley

    common.prepare(options)
    say = terminal.ProgressLine().say  # also where there is no terminal
    say("setting up: MNIST is fetched, unless it is there already")
    data.fetch("mnist", options.source)
    say(f"{len(TASKS)} networks, {len(OPTIMIZERS)} optimizers, {options.runs} runs each")
    command = f"hyperadam demo{flags.run_flags(options)}"
    common.run_and_report(
        options,
        TASKS,
        OPTIMIZERS,
        "HyperAdam2 and HyperAdam beside Adam and SGD, on four small networks",
        command,
        told,
        {"valley.html": "Watch them step: four optimizers in a valley of two weights"},
    )
    print(f"watch    {write_valley(options.out / 'valley.html')}")
    print("next     hyperadam inspect mnist-mlp --optimizer hyperadam2   what it does inside")
    print("         hyperadam suite --list     networks as people build them, and their results")


def told(results: Sequence[Result]) -> list[str]:
    """The results in words, with what a step costs in time."""
    import statistics

    from hyperadam.experiments.paper.timing import step_seconds
    from hyperadam.experiments.training.optimizers import find
    from hyperadam.report.words import in_words

    specs = [find(name, results[0].task) for name in (*OURS, "adam")]
    updates, gradients = step_seconds(results[0].task, specs, ROUNDS, UPDATES)
    gradient = statistics.median(gradients)
    seconds = {label: gradient + statistics.median(found) for label, found in updates.items()}
    return in_words(results, OURS, seconds)
