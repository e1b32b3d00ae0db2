"""Means, standard errors, and whether two optimizers differ, also with three runs.

Runs of one seed start alike and see the same batches: they are compared pair by pair. The test is
Student's paired t-test, two-sided. Where a run diverged there is no mean: then the pairs in which
one side does better are counted (a run that diverged does worse than one that did not), and the
test is the exact sign test. A difference is *clear* at 95 %: if the optimizers were alike, fewer
than 5 of 100 repetitions would show as large a one. With one pair nothing is clear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from hyperadam.results import Result

#: How often chance alone may pass for a clear difference.
CHANCE = 0.05
#: From here on a number is written as a power of ten.
HUGE = 1e5
#: The smallest difference that matters, as a share of the other's mean.
MATTERS = 0.01


class Summary(NamedTuple):
    """Mean over runs and its standard error; the mean is infinite if a run diverged."""

    mean: float
    standard_error: float
    runs: int
    diverged: int


class Contrast(NamedTuple):
    """How one optimizer's numbers differ from another's.

    Attributes:
        difference: the mean difference, over pairs in which neither diverged; NaN if there is none.
        relative: its share of the other's mean.
        pairs: how many pairs of runs were compared; of runs that have no seed in common, how many
            the side with fewer has.
        p: how likely chance alone makes so large a difference; NaN where there are not two pairs.
        direction: -1 if the numbers are lower, 1 if they are higher, 0 if neither.
        diverged, other_diverged: how many of the compared runs diverged, on this side and the
        other.
        smallest: the smallest difference that matters.
    """

    difference: float
    relative: float
    pairs: int
    p: float
    direction: int
    diverged: int = 0
    other_diverged: int = 0
    smallest: float = 0.0

    @property
    def tested(self) -> bool:
        """Whether there are runs enough to tell a difference from chance."""
        return not math.isnan(self.p)

    @property
    def significant(self) -> bool:
        """Whether chance alone hardly makes so large a difference, be it ever so small."""
        return self.p <= CHANCE

    @property
    def level(self) -> bool:
        """Whether the difference, however clear, is too small to matter."""
        by_divergence = self.diverged or self.other_diverged
        return not by_divergence and abs(self.difference) < self.smallest

    @property
    def clear(self) -> bool:
        """Whether there is a difference that matters."""
        return self.significant and not self.level


def summarize(result: Result) -> Summary:
    """The final losses of all runs in four numbers."""
    return Summary(*mean(result.final_loss), result.runs, result.diverged)


def contrast(result: Result, other: Result) -> Contrast:
    """How the final losses of two results differ."""
    return compare(result.final_loss, other.final_loss, result.seeds, other.seeds)


def compare(
    values: Tensor,
    others: Tensor,
    seeds: Sequence[int],
    other_seeds: Sequence[int],
    smallest: float | None = None,
    lower: bool = True,
) -> Contrast:
    """Compare ``values (runs,)`` with ``others``; what is not finite is a run that diverged.

    Runs are paired by their seeds, also where one side has fewer; if fewer than two are in common,
    all are compared, unpaired. ``smallest`` is the smallest difference that matters (``None``:
    :data:`MATTERS` of the other's mean), ``lower`` says that lower is better.
    """
    mine, theirs, paired = _matched(values, others, seeds, other_seeds)
    diverged, other_diverged = (sum(not math.isfinite(x) for x in n) for n in (mine, theirs))
    pairs = min(len(mine), len(theirs))
    difference, base = _difference(mine, theirs, paired)
    direction, p = _sign(difference), math.nan
    if pairs > 1 and (diverged or other_diverged):
        worth = 1 if lower else -1
        if paired:
            signs = [_sign(worth * (a - b)) for a, b in zip(mine, theirs, strict=True) if a != b]
            p = sign_test(signs.count(-1), signs.count(1))
            direction = worth * _sign(sum(signs))
        else:
            p = fisher_test(diverged, len(mine), other_diverged, len(theirs))
            direction = worth * _sign(diverged * len(theirs) - other_diverged * len(mine))
    elif pairs > 1:
        apart = [a - b for a, b in zip(mine, theirs, strict=paired)]
        p = t_test(apart) if paired else welch_test(mine, theirs)
    if smallest is None:
        smallest = MATTERS * abs(base)
    relative = difference / base if base else math.nan
    return Contrast(difference, relative, pairs, p, direction, diverged, other_diverged, smallest)


def _matched(
    values: Tensor, others: Tensor, seeds: Sequence[int], other_seeds: Sequence[int]
) -> tuple[list[float], list[float], bool]:
    """Numbers to compare, and whether they are pairs: those of common seeds, else all of them."""
    mine, theirs = values.double().tolist(), others.double().tolist()
    places = {seed: place for place, seed in enumerate(other_seeds)}
    common = [(mine[n], theirs[places[s]]) for n, s in enumerate(seeds) if s in places]
    if len(common) >= 2 or (common and min(len(mine), len(theirs)) < 2):
        return [a for a, _ in common], [b for _, b in common], True
    return mine, theirs, False


def _difference(
    mine: Sequence[float], theirs: Sequence[float], paired: bool
) -> tuple[float, float]:
    """The mean difference and the mean of theirs, where nothing diverged; NaN if nothing is
    left."""
    if paired:
        both = [pair for pair in zip(mine, theirs, strict=True) if all(map(math.isfinite, pair))]
        mine, theirs = [a for a, _ in both], [b for _, b in both]
    else:
        mine, theirs = ([x for x in numbers if math.isfinite(x)] for numbers in (mine, theirs))
    if not mine or not theirs:
        return math.nan, math.nan
    return _mean(mine) - _mean(theirs), _mean(theirs)


def mean(values: Tensor) -> tuple[float, float]:
    """Mean and standard error; the latter is undefined for one run or if a value is infinite."""
    values = values.double()
    if len(values) < 2 or not values.isfinite().all():
        return float(values.mean()), math.nan
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def t_test(differences: Sequence[float]) -> float:
    """Student's paired t-test, two-sided: the probability of so large a mean by chance."""
    n = len(differences)
    middle, deviation = _mean(differences), _deviation(differences)
    if deviation == 0:
        return 1.0 if middle == 0 else 0.0
    return t_tail(abs(middle) / (deviation / math.sqrt(n)), n - 1)


def welch_test(values: Sequence[float], others: Sequence[float]) -> float:
    """Welch's t-test of two samples, two-sided; its degrees of freedom are rounded down."""
    a, b = (_deviation(x) ** 2 / len(x) for x in (values, others))
    difference = abs(_mean(values) - _mean(others))
    if a + b == 0:
        return 1.0 if difference == 0 else 0.0
    freedom = (a + b) ** 2 / (a * a / (len(values) - 1) + b * b / (len(others) - 1))
    return t_tail(difference / math.sqrt(a + b), max(1, math.floor(freedom + 1e-9)))


def t_tail(t: float, freedom: int) -> float:
    """The probability that Student's t with ``freedom`` degrees is beyond ``±t``: the finite sums
    for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    first = 1 if freedom % 2 == 0 else 2  # of the factors k/(k+1) from one term to the next
    term = total = 1.0 if freedom % 2 == 0 else cosine
    for k in range(first, freedom - 2, 2):
        term *= k / (k + 1) * cosine * cosine
        total += term
    if freedom % 2 == 0:
        inside = sine * total
    else:
        inside = 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))
    return min(1.0, max(0.0, 1.0 - inside))


def sign_test(better: int, worse: int) -> float:
    """The exact two-sided sign test: ties are left out."""
    n = better + worse
    tail: float = sum(math.comb(n, k) for k in range(min(better, worse) + 1)) / 2**n
    return min(1.0, 2 * tail)


def fisher_test(some: int, runs: int, others: int, other_runs: int) -> float:
    """Fisher's exact test, two-sided, of ``some`` among ``runs`` against the others' share."""
    drawn, total = some + others, runs + other_runs

    def ways(k: int) -> int:
        return math.comb(runs, k) * math.comb(other_runs, drawn - k)

    possible = range(max(0, drawn - other_runs), min(drawn, runs) + 1)
    return sum(ways(k) for k in possible if ways(k) <= ways(some)) / math.comb(total, drawn)


def by_chance(contrasts: Sequence[Contrast]) -> float:
    """How many of these comparisons would look clear by chance, if no optimizer differed."""
    return CHANCE * sum(contrast.tested for contrast in contrasts)


def written(number: float, error: float) -> str:
    """``0.2490 ± 0.0021``: two digits of the standard error, but no more than five of the
    number; ``2.6e9 ± 2.6e9`` for what has blown up."""
    if abs(number) >= HUGE:
        parts = [f"{x:.2g}".replace("e+0", "e").replace("e+", "e") for x in (number, error)]
        return " ± ".join(parts if error > 0 else parts[:1])
    if not error > 0:
        return f"{number:.4g}"
    places = 1 - math.floor(math.log10(error))
    if number:
        places = min(places, 4 - math.floor(math.log10(abs(number))))
    places = min(9, max(0, places))
    return f"{number:.{places}f} ± {error:.{places}f}"


def in_words(found: Contrast) -> str:
    """``17.5 % lower (p < .001)``, or that nothing is clear."""
    if found.diverged or found.other_diverged:
        text = f"diverged in {found.diverged} of {found.pairs}, the other in {found.other_diverged}"
        return f"{text} ({_chance(found.p)})" if found.tested else text
    if not found.difference and (found.p == 1 or not found.tested):
        return "the same"
    size = f"{abs(found.relative):.1%}".replace("%", " %")
    size += " lower" if found.direction < 0 else " higher"
    if found.relative > 9:
        size = f"{found.relative:.0f} times higher"
    if not found.tested:
        return f"{size} (one run)"
    if not found.significant:
        return f"no clear difference ({_chance(found.p)})"
    return f"{'too little to matter: ' if found.level else ''}{size} ({_chance(found.p)})"


def _chance(p: float) -> str:
    if p < 0.001:
        return "p < .001"
    return f"p = {p:.2g}".replace("0.", ".")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    middle = _mean(values)
    return math.sqrt(sum((x - middle) ** 2 for x in values) / (len(values) - 1))


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)
