"""Means, standard errors, and how far two optimizers are apart in them. Runs that diverged count, they are never left out."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from hyperadam.results import Result

#: Differences of fewer standard errors than this are called noise.
CLEAR = 2.0


class Summary(NamedTuple):
    """Mean final loss over runs and its standard error; the mean is infinite if a run diverged."""

    mean: float
    standard_error: float
    runs: int
    diverged: int


class Contrast(NamedTuple):
    """Mean difference in final loss to another optimizer, its standard error, and its share of the other's mean."""

    difference: float
    standard_error: float
    relative: float

    @property
    def clear(self) -> bool:
        """Whether the difference is more than :data:`CLEAR` standard errors."""
        return abs(self.difference) > CLEAR * self.standard_error


def summarize(result: Result) -> Summary:
    """The final losses of all runs in four numbers."""
    return Summary(*mean(result.final_loss), result.runs, result.diverged)


def contrast(result: Result, other: Result) -> Contrast:
    """How ``result`` differs from ``other``, run by run where they have the same seeds: such runs start alike and see the
    same batches, so that much of what varies between runs cancels."""
    return compare(
        result.final_loss,
        other.final_loss,
        paired=result.seeds == other.seeds,
    )


def compare(values: Tensor, others: Tensor, paired: bool) -> Contrast:
    """How the mean of ``values (runs,)`` differs from that of ``others``, run by run if they are ``paired``."""
    (mine, my_error), (theirs, their_error) = mean(values), mean(others)
    if paired:
        difference, standard_error = mean(values - others)
    else:
        difference, standard_error = mine - theirs, math.hypot(my_error, their_error)
    return Contrast(difference, standard_error, difference / theirs if theirs else math.nan)


def mean(values: Tensor) -> tuple[float, float]:
    """Mean and standard error; the latter is undefined for one run or if a value is infinite."""
    values = values.double()
    if len(values) < 2 or not values.isfinite().all():
        return float(values.mean()), math.nan
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def written(number: float, error: float) -> str:
    """``0.2490 ± 0.0021``: two digits of the standard error, but no more than five of the number."""
    if not error > 0:
        return f"{number:.4g}"
    places = 1 - math.floor(math.log10(error))
    if number:
        places = min(places, 4 - math.floor(math.log10(abs(number))))
    places = min(9, max(0, places))
    return f"{number:.{places}f} ± {error:.{places}f}"
