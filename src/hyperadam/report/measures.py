"""What can be measured on a result, which way is better, and how it is written."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hyperadam.report.statistics import MATTERS, Contrast, Summary, compare, mean, written
from hyperadam.results import Result


class Measure(NamedTuple):
    """A column of numbers. ``lower`` says which way is better, ``failed`` what happened where there
    is no number, and ``one`` what each number comes from."""

    title: str
    lower: bool = True
    percent: bool = False
    failed: str = "diverged"
    one: str = "run"


#: The smallest difference of accuracies that matters: half a percentage point.
MATTERS_OF_SHARES = 0.005

MEASURES = {
    "final_loss": Measure("final loss"),
    "test_loss": Measure("loss on the test set"),
    "test_top1": Measure("top-1 accuracy on the test set", lower=False, percent=True),
    "test_top2": Measure("top-2 accuracy on the test set", lower=False, percent=True),
    "seconds_per_step": Measure("seconds per update", one="round"),
    "seconds_to_loss": Measure(
        "seconds to reach Adam's lowest loss", failed="never there", one="mean curve"
    ),
}


def describe(name: str) -> Measure:
    """The measure of that name; one that is not known is taken for a loss."""
    return MEASURES.get(name, Measure(name.replace("_", " ")))


def values(result: Result, name: str) -> Tensor | None:
    """The measure of every run, ``(runs,)``; the worst there is for a run that diverged; ``None``
    if it was not measured."""
    found: Tensor | None
    if name == "final_loss":
        found = result.final_loss
    elif name.startswith("test_"):
        found = (result.test or {}).get(name.removeprefix("test_"))
    else:
        found = result.measures.get(name)
    if found is None:
        return None
    found = torch.as_tensor(found).double()
    return torch.where(found.isfinite(), found, math.inf if describe(name).lower else -math.inf)


def summarize(numbers: Tensor) -> Summary:
    """Mean over runs; the runs without a number are those that diverged."""
    return Summary(*mean(numbers), len(numbers), int((~numbers.isfinite()).sum()))


def contrast(result: Result, other: Result, name: str) -> Contrast | None:
    """How two results differ in a measure; ``None`` if it was not measured on one of them, or if
    the numbers of one are of runs, and of meta-seeds those of the other."""
    mine, theirs = values(result, name), values(other, name)
    if mine is None or theirs is None:
        return None
    if result.one != other.one:
        return None  # a meta-seed is no run: there are no pairs
    about = describe(name)
    smallest = MATTERS_OF_SHARES if about.percent else None
    seeds, other_seeds = result.seeds, other.seeds
    if len(mine) != len(seeds) or len(theirs) != len(other_seeds):  # one number of all runs
        seeds, other_seeds = tuple(range(len(mine))), tuple(range(len(theirs)))
    return compare(mine, theirs, seeds, other_seeds, smallest, about.lower)


def better(difference: Contrast, name: str) -> bool:
    """Whether a difference in the measure is to the good."""
    return difference.direction == (-1 if describe(name).lower else 1)


def smallest_in_words() -> str:
    """What difference matters, for people to read."""
    points = f"{100 * MATTERS_OF_SHARES:g}"
    return f"{100 * MATTERS:g} % of a loss or a time, {points} points of an accuracy"


def write(summary: Summary, name: str) -> str:
    """``0.2490 ± 0.0021``, ``98.50 ± 0.03 %``: as many digits as the standard error bears."""
    scale = 100.0 if describe(name).percent else 1.0
    number, error = scale * summary.mean, scale * summary.standard_error
    return written(number, error) + (" %" if describe(name).percent else "")


def write_meta_seeds(numbers: Tensor, name: str) -> str:
    """How many meta-seeds there are, and how far apart: ``3 meta-seeds, 0.6894 to 0.7012``."""
    if len(numbers) < 2:
        return f"{len(numbers)} meta-seed"
    ends = (write(summarize(x.view(1)), name) for x in (numbers.min(), numbers.max()))
    return f"{len(numbers)} meta-seeds, {' to '.join(ends)}"


def write_published(number: float, name: str) -> str:
    """The paper's number as the paper writes it."""
    if describe(name).percent:
        return f"{100 * number:.2f} %"
    return f"{number:.2f}" if round(number, 2) == number else f"{number:g}"
