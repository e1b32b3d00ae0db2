"""Claims: what it takes for one to hold, and that nothing unmeasured, unclear or diverged passes for a success."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hyperadam.experiments.paper.experiment import Claim
from hyperadam.report.claims import Outcome, Verdict, about, finding, judge
from hyperadam.report.measures import values
from hyperadam.results import Result

from ..experiments.tiny import result
from .synthetic import make

GOOD, EQUAL, BAD = [0.1, 0.2, 0.3], [0.5, 1.2, 1.0], [2.1, 2.2, 2.4]
BASE = [1.0, 1.1, 1.2]
CLAIM = Claim("a beats b and c.", "a", ("b", "c"))


def keyed(*found: Result) -> dict[tuple[str, str, int], Result]:
    return {(r.task, r.label, r.steps): r for r in found}


def verdict(claim: Claim, *found: Result) -> Verdict:
    return judge(claim, keyed(*found), [("bowl", 5)]).verdict


def test_holds_only_if_every_comparison_is_clear() -> None:
    a = result(BASE, "a")
    assert verdict(CLAIM, a, result(BAD, "b"), result(BAD, "c")) is Verdict.HOLDS
    assert verdict(CLAIM, a, result(BAD, "b"), result(GOOD, "c")) is Verdict.PARTLY
    assert verdict(CLAIM, a, result(BAD, "b"), result(EQUAL, "c")) is Verdict.PARTLY
    assert verdict(CLAIM, a, result(EQUAL, "b"), result(GOOD, "c")) is Verdict.FAILS
    assert verdict(CLAIM, a, result(EQUAL, "b"), result(EQUAL, "c")) is Verdict.UNDECIDED


def test_what_is_not_measured_is_neither_for_nor_against() -> None:
    a = result(BASE, "a")
    assert verdict(CLAIM) is Verdict.MISSING
    assert verdict(CLAIM, a) is Verdict.MISSING
    assert verdict(CLAIM, result(BAD, "b"), result(BAD, "c")) is Verdict.MISSING
    assert verdict(CLAIM, a, result(BAD, "b")) is Verdict.PARTLY
    assert verdict(CLAIM, a, result(GOOD, "b")) is Verdict.FAILS
    assert verdict(CLAIM, a, result(EQUAL, "b")) is Verdict.UNDECIDED


def test_divergences_are_counted() -> None:
    one = Claim("a beats b.", "a", ("b",))
    rarely, always = [math.inf] + [0.5] * 99, [math.inf] * 100
    assert verdict(one, result(rarely, "a"), result(always, "b")) is Verdict.HOLDS
    assert verdict(one, result(always, "a"), result(rarely, "b")) is Verdict.FAILS
    assert verdict(one, result(rarely, "a"), result(rarely, "b")) is Verdict.UNDECIDED
    broken = [0.1, math.inf, 0.1]
    assert verdict(one, result(broken, "a"), result(BASE, "b")) is Verdict.UNDECIDED, "of three"
    judged = judge(one, keyed(result(broken, "a"), result(BASE, "b")), [("bowl", 5)])
    assert judged.comparisons[0].text == "diverged in 1 of 3, the other in 0 (p = 1)"
    assert "diverged in 1 of 3 runs on bowl" in finding(judged)


def test_who_diverges_more_often_is_not_better() -> None:
    one = Claim("a beats b.", "a", ("b",))
    a, b = [math.inf] + [0.1] * 19, [0.5] * 20
    judged = judge(one, keyed(result(a, "a"), result(b, "b")), [("bowl", 5)])
    assert judged.comparisons[0].contrast is not None
    assert judged.comparisons[0].contrast.significant, "it is lower in 19 of 20"
    assert judged.comparisons[0].outcome is Outcome.UNCLEAR


def test_one_run_decides_nothing() -> None:
    one = Claim("a beats b.", "a", ("b",))
    judged = judge(one, keyed(result([0.1], "a"), result([5.0], "b")), [("bowl", 5)])
    assert judged.verdict is Verdict.UNDECIDED
    assert judged.comparisons[0].outcome is Outcome.SINGLE
    assert "one number each in 1, so that nothing is clear (98.0 % lower than b on bowl)" in (
        finding(judged)
    )
    assert verdict(one, result([0.1], "a"), result([math.inf], "b")) is Verdict.UNDECIDED


def test_two_losses_at_chance_are_no_win() -> None:
    one = Claim("a beats b.", "a", ("b",))
    a, b = [2.302, 2.3021, 2.3019], [2.304, 2.3041, 2.3039]
    judged = judge(one, keyed(result(a, "a"), result(b, "b")), [("bowl", 5)])
    assert judged.comparisons[0].outcome is Outcome.LEVEL
    assert judged.comparisons[0].text == "too little to matter: 0.1 % lower (p < .001)"
    assert judged.verdict is Verdict.UNDECIDED
    assert "too close to matter in 1 (b on bowl)" in finding(judged)
    accuracies = [[0.984, 0.985, 0.986], [0.981, 0.982, 0.983]]
    top1 = Claim("a beats b.", "a", ("b",), measure="test_top1")
    tested = [
        replace(result(a, label), test={"top1": torch.tensor(found)})
        for label, found in zip("ab", accuracies, strict=True)
    ]
    (comparison,) = judge(top1, keyed(*tested), [("bowl", 5)]).comparisons
    assert comparison.outcome is Outcome.LEVEL, "three tenths of a point"


def test_tasks_and_steps() -> None:
    tasks, steps = ("t", "u"), (10, 20)
    assert about(Claim("", "a", ("b",)), tasks, steps) == [
        ("t", 10),
        ("t", 20),
        ("u", 10),
        ("u", 20),
    ]
    assert about(Claim("", "a", ("b",), ("u",), 20), tasks, steps) == [("u", 20)]
    assert about(Claim("", "a", ("b",), ("elsewhere",), 1), tasks, steps) == [("elsewhere", 1)]


def test_of_accuracies_the_higher_is_better() -> None:
    claim = Claim("", "a", ("b",), measure="test_top1")

    def with_top1(label: str, *top1: float) -> Result:
        found = result([1.0] * len(top1), label)
        tensor = found.final_loss.new_tensor(top1)
        return replace(found, test=dict.fromkeys(("loss", "top1", "top2"), tensor))

    assert (
        verdict(claim, with_top1("a", 0.98, 0.97, 0.98), with_top1("b", 0.9, 0.91, 0.9))
        is Verdict.HOLDS
    )
    assert (
        verdict(claim, with_top1("a", 0.9, 0.91, 0.9), with_top1("b", 0.98, 0.97, 0.98))
        is Verdict.FAILS
    )
    always = with_top1("b", *[math.nan] * 8)
    assert verdict(claim, with_top1("a", *[0.9] * 8), always) is Verdict.HOLDS, "b diverged"
    assert verdict(claim, replace(always, label="a"), with_top1("b", *[0.9] * 8)) is Verdict.FAILS
    assert verdict(claim, result(BASE, "a"), result(BASE, "b")) is Verdict.MISSING, "no test set"


def test_another_optimizer_in_the_place_of_the_better() -> None:
    found = keyed(result(BASE, "a"), result(BAD, "b"), result(GOOD, "ours"))
    one = Claim("a beats b.", "a", ("b",))
    judged = judge(one, found, [("bowl", 5)], "ours")
    assert (judged.better, judged.verdict) == ("ours", Verdict.HOLDS)
    assert judged.counts[Outcome.BETTER] == 1


def test_times() -> None:
    claim = Claim("a is sooner there.", "a", ("b",), measure="seconds_to_loss")

    def timed(label: str, seconds: float) -> Result:
        return replace(result(BASE, label), measures={"seconds_to_loss": torch.tensor([seconds])})

    judged = judge(claim, keyed(timed("a", 20.0), timed("b", math.inf)), [("bowl", 5)])
    assert judged.verdict is Verdict.UNDECIDED, "one number each"
    assert judged.comparisons[0].text == "never there in 0 of 1, the other in 1"
    judged = judge(claim, keyed(timed("a", 20.0), timed("b", 30.0)), [("bowl", 5)])
    assert judged.verdict is Verdict.UNDECIDED
    assert judged.comparisons[0].outcome is Outcome.SINGLE


@pytest.mark.parametrize(
    ("measure", "worst"),
    [("final_loss", math.inf), ("test_top1", -math.inf), ("test_loss", math.inf)],
)
def test_a_diverged_run_has_the_worst_value(measure: str, worst: float) -> None:
    found = values(make("t", "adam", 10, 4, test=True, diverged=1), measure)
    assert found is not None
    assert found[0] == worst
    assert found[1:].isfinite().all()
    assert values(result(BASE), "seconds_per_step") is None
