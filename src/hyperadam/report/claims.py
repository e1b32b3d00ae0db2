"""Whether a claim of the paper holds in our results: every comparison that it makes, judged run by
run on the same seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from hyperadam.experiments.paper.experiment import Claim
from hyperadam.report import measures
from hyperadam.report.statistics import Contrast, by_chance, in_words
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
    """In how many of its runs on a task an optimizer diverged; ``one`` is what these are."""

    task: str
    diverged: int
    runs: int
    one: str = "run"


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


class Finding(NamedTuple):
    """What we find of a claim, for one optimizer."""

    judged: Judgement

    def text(self, call: Callable[[str], str] = str) -> str:
        """A sentence about it, in which ``call`` names tasks and optimizers."""
        return finding(self.judged, call)

    @property
    def better(self) -> str:
        return self.judged.better

    @property
    def verdict(self) -> Verdict:
        return self.judged.verdict


class ClaimFindings(NamedTuple):
    """A claim of the paper; ``twin`` is what becomes of it when it is said of our own rule."""

    id: str
    text: str
    measure: str
    own: Finding
    twin: Finding | None

    @property
    def findings(self) -> list[Finding]:
        return [self.own, self.twin] if self.twin else [self.own]


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
        Diverged(result.task, result.diverged, result.runs, result.one)
        for result in own
        if result.diverged
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


def finding(judged: Judgement, call: Callable[[str], str] = str) -> str:
    """A sentence: how often clearly better, worse, not clearly different or not measured, and
    where."""
    who = call(judged.better)
    counts, total = judged.counts, len(judged.comparisons)
    measured = total - counts[Outcome.MISSING]
    if not measured:
        return f"{who}: no results yet."
    several = "" if measured == 1 else "s"
    parts = [f"clearly better in {counts[Outcome.BETTER]} of {measured} comparison{several}"]
    for outcome, words in (
        (Outcome.WORSE, "clearly worse"),
        (Outcome.LEVEL, "too close to matter"),
        (Outcome.UNCLEAR, "not clearly different"),
    ):
        if counts[outcome]:
            parts.append(f"{words} in {counts[outcome]} ({_where(judged, outcome, call)})")
    if counts[Outcome.SINGLE]:
        parts.append(
            f"one number each in {counts[Outcome.SINGLE]}, so that nothing is clear "
            f"({_where(judged, Outcome.SINGLE, call)})"
        )
    if counts[Outcome.MISSING]:
        parts.append(f"{counts[Outcome.MISSING]} more not measured")
    parts += [
        f"it diverged in {d.diverged} of {d.runs} {d.one}s on {call(d.task)}"
        for d in judged.diverged
    ]
    return f"{who}: {'; '.join(parts)}."


def _where(judged: Judgement, outcome: Outcome, call: Callable[[str], str], most: int = 4) -> str:
    """The comparisons that end so; with their size where nothing says how clear it is."""
    several_lengths = len({c.steps for c in judged.comparisons}) > 1
    places = []
    for c in judged.comparisons:
        if c.outcome is outcome:
            place = f"{call(c.other)} on {call(c.task)}"
            place += f" at {c.steps:,} steps" if several_lengths else ""
            size = c.text.removesuffix(" (one run)")
            places.append(f"{size} than {place}" if outcome is Outcome.SINGLE else place)
    more = f" and {len(places) - most} more" if len(places) > most else ""
    return ("; " if call is not str else ", ").join(places[:most]) + more


def chance(contrasts: Mapping[Any, Contrast]) -> str:
    """How many comparisons were tested, found a difference, and would have by chance."""
    tested = [found for found in contrasts.values() if found.tested]
    if not tested:
        return "no comparison has runs enough to be tested"
    significant, expected = sum(found.significant for found in tested), by_chance(tested)
    return (
        f"{len(tested)} comparisons were tested and {significant} found a difference; if no "
        f"optimizer differed from another, about {expected:.{expected < 2:d}f} would have"
    )
