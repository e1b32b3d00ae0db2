"""Whether a claim of the paper holds in our results: every comparison that it makes, judged run by
run on the same seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from hyperadam.experiments.paper.experiment import Claim
from hyperadam.report import measures
from hyperadam.report.statistics import Contrast, in_words
from hyperadam.results import Result

#: Results by task, label of the optimizer, and steps.
Results = Mapping[tuple[str, str, int], Result]


class Outcome(Enum):
    """How one comparison ends, seen from the optimizer that is claimed to be the better one."""

    BETTER = "better"
    WORSE = "worse"
    LEVEL = "too little to matter"
    UNCLEAR = "no clear difference"
    SINGLE = "one number each"
    MISSING = "not measured"


class Verdict(Enum):
    """What becomes of a claim."""

    HOLDS = "holds"
    PARTLY = "holds in part"
    FAILS = "does not hold"
    UNDECIDED = "undecided"
    MISSING = "not measured"


class Comparison(NamedTuple):
    """One optimizer against another on one task. ``text`` is for people: ``17.5 % lower (p <
    .001)``."""

    task: str
    steps: int
    other: str
    outcome: Outcome
    text: str
    contrast: Contrast | None = None


class Diverged(NamedTuple):
    """In how many of its runs on a task an optimizer diverged."""

    task: str
    diverged: int
    runs: int


class Judgement(NamedTuple):
    """A verdict, the comparisons that it comes from, and where the optimizer that is claimed to be
    better diverged."""

    better: str
    verdict: Verdict
    comparisons: tuple[Comparison, ...]
    diverged: tuple[Diverged, ...] = ()

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many comparisons end how."""
        found = Counter(comparison.outcome for comparison in self.comparisons)
        return {outcome: found[outcome] for outcome in Outcome}


def about(claim: Claim, tasks: Sequence[str], lengths: Sequence[int]) -> list[tuple[str, int]]:
    """The tasks and numbers of steps that a claim is about: its own, else those of its
    experiment."""
    return [
        (task, steps)
        for task in claim.tasks or tasks
        for steps in ([claim.steps] if claim.steps else lengths)
    ]


def judge(
    claim: Claim, results: Results, cells: Sequence[tuple[str, int]], better: str | None = None
) -> Judgement:
    """Judge a claim on the ``cells`` (task, steps) that it is :func:`about`.

    ``better`` puts another optimizer in the place of the claim's own. A claim holds if every
    comparison comes out clearly for it, in part if some do; comparisons that were not measured
    count against "every", not for "does not hold".
    """
    name = better or claim.better
    found = []
    for task, steps in cells:
        mine = results.get((task, name, steps))
        for other in claim.worse:
            theirs = results.get((task, other, steps))
            difference = measures.contrast(mine, theirs, claim.measure) if mine and theirs else None
            note = in_words(difference) if difference else "not measured"
            note = note.replace("diverged", measures.describe(claim.measure).failed)
            outcome = _outcome(difference, claim.measure)
            found.append(Comparison(task, steps, other, outcome, note, difference))
    own = [
        result for task, steps in cells if (result := results.get((task, name, steps))) is not None
    ]
    diverged = tuple(
        Diverged(result.task, result.diverged, result.runs) for result in own if result.diverged
    )
    return Judgement(
        name, _verdict([comparison.outcome for comparison in found]), tuple(found), diverged
    )


def _outcome(difference: Contrast | None, measure: str) -> Outcome:
    if difference is None:
        return Outcome.MISSING
    if not difference.tested:
        return Outcome.SINGLE
    if not difference.significant:
        return Outcome.UNCLEAR
    if difference.level:
        return Outcome.LEVEL
    if not measures.better(difference, measure):
        return Outcome.WORSE
    # lower wherever it does not diverge, but diverging more often, is not better
    return Outcome.BETTER if difference.diverged <= difference.other_diverged else Outcome.UNCLEAR


def _verdict(outcomes: Sequence[Outcome]) -> Verdict:
    seen = set(outcomes)
    if seen <= {Outcome.MISSING}:
        return Verdict.MISSING
    if seen == {Outcome.BETTER}:
        return Verdict.HOLDS
    if Outcome.BETTER in seen:
        return Verdict.PARTLY
    return Verdict.FAILS if Outcome.WORSE in seen else Verdict.UNDECIDED
