"""What the page opens with: computed, and right whichever way the numbers fall."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from hyperadam.experiments.suite.scores import Results
from hyperadam.report.answer import Answer, answer, percent, relation, share
from hyperadam.report.dots import Number, dot_plot
from hyperadam.report.words import as_long
from tests.experiments.suite.small import cell, suite

__all__ = ["suite"]

BYTES = {"hyperadam2": 20, "adam-linear": 8}


def told(ours: float, **others: float) -> Answer:
    """The answer where ours ends at a loss, tuned Adam with decay at 1."""
    losses = {"adam-linear": 1.0, "hyperadam2": ours} | others
    found = answer(
        Results([cell("curve", 20, {name: [loss] * 3 for name, loss in losses.items()})]), BYTES
    )
    assert found is not None
    return found


def test_a_win(suite) -> None:
    made = told(0.9, adam=1.2)
    good, cost, loses = (sentence.text for sentence in made.sentences)
    assert good == (
        "With nothing tuned, HyperAdam2 ends at or below tuned Adam in 1 of 1 and at or below "
        "tuned Adam with linear decay in 1 of 1 trainings."
    )
    assert "it keeps 20 bytes a parameter where Adam keeps 8" in cost
    assert loses.startswith("Not to Adam: in none of 1 trainings")
    assert "Muon" not in loses
    assert made.more[0].startswith("Its loss is typically 10 % lower than that of tuned Adam")
    assert not any("It also ends above" in line for line in made.more)


def test_a_defeat(suite) -> None:
    made = told(1.5, adam=1.2, muon=1.3, **{"hyperadam2-start": 1.4})
    good, _, loses = (sentence.text for sentence in made.sentences)
    assert "tuned Adam in 0 of 1" in good
    assert "in 1 of 1 trainings, that is with the curve after 20 steps (50 % higher)" in loses
    assert loses.endswith(" Tuned Muon ends below it in 1 of the 1 where both have run.")
    assert "lower in 0 of 1 trainings and higher in 1" in made.more[-1]


@pytest.mark.parametrize("loss", [0.5, 0.995, 1.005, 1.3, 5.0, math.inf])
def test_it_reads_well_whichever_way_the_numbers_fall(suite, loss: float) -> None:
    made = told(loss)
    for text in [*(sentence.text for sentence in made.sentences), *made.more]:
        assert re.fullmatch(r"[A-Z][^{}]*\.", text), text
        assert not re.search(r"\b(nan|inf|None)\b", text), text


def test_without_ours_there_is_no_answer(suite) -> None:
    assert answer(Results([cell("curve", 20, {"adam-linear": [1.0] * 3})]), BYTES) is None


def test_numbers_in_words() -> None:
    assert [percent(x) for x in (0.93, 1.001, 1.2, 2.4, math.inf)] == [
        *("7 % lower", "level", "20 % higher", "2.4 times as high", "diverged")
    ]
    assert [relation(x) for x in (0.93, 0.995, 3.0)] == ["7 % lower than", "level with", "3 times"]
    assert [as_long(x) for x in (0.9, 1.0, 1.4)] == [
        *("about as long as", "about as long as", "1.4 times as long as")
    ]
    assert [share(x) for x in (0.95, 1.2, 2.6)] == ["95 %", "120 %", "2.6 times"]


def test_dots_stay_on_their_axis() -> None:
    rows = [
        ("a", {"x": Number(0.7), "y": Number(9.0)}),
        ("b", {"x": Number(1.0, 0.9, math.inf), "y": Number(math.inf)}),
    ]
    made = dot_plot("id", "t", "about", rows, ["x", "y"])
    dots = [dot for row in made.rows for dot in row.dots]
    assert all(0 <= dot.place <= 100 for dot in dots)
    assert [dot.name for dot in made.rows[0].dots] == ["y", "x"], "the first lies on top"
    assert [dot.beyond for dot in made.rows[0].dots] == ["right", ""]
    assert made.rows[1].dots[0].text == "diverged"
    assert made.rows[1].dots[1].text == "1 (0.9 to ∞)"
    assert [tick.text for tick in made.ticks if tick.place == made.one] == ["1"]
    places = [tick.place for tick in made.ticks]
    assert min(b - a for a, b in itertools.pairwise(places)) >= 8
