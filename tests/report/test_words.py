"""A comparison in words: true, whoever wins."""

from __future__ import annotations

import math

import pytest

from hyperadam.report.words import in_words

from ..experiments.tiny import result

ADAM = [1.0, 1.1, 1.2, 1.05]


def told(ours: list[float], seconds: dict[str, float] | None = None) -> str:
    found = [
        result(ours, "hyperadam"),
        result(ADAM, "adam"),
        result([3.0, 3.1, 3.2, 3.3][: len(ours)], "adam", label="adam@0.001"),
    ]
    return " ".join(in_words(found, ["hyperadam"], seconds or {}))


def test_a_win() -> None:
    text = told([x * 0.9 for x in ADAM])
    assert text.startswith("One network was trained, 4 times each")
    assert "HyperAdam had nothing tuned. It was put beside tuned Adam and Adam at 0.001." in text
    assert "HyperAdam ends clearly below tuned Adam on 1 of 1 network (by 10 %)" in text
    assert "is kept in these runs" in text
    assert "Who has the lowest mean loss: HyperAdam on 1 (bowl)." in text
    assert "below Adam at 0.001 on 1 of 1 network" in text


def test_a_defeat_says_so_by_itself() -> None:
    text = told([x * 1.2 for x in ADAM])
    assert "clearly above it on 1 (by 20 %)" in text
    assert "is not kept on bowl" in text
    assert "Who has the lowest mean loss: tuned Adam on 1 (bowl)." in text


def test_one_run_says_nothing() -> None:
    assert "With one run nothing is clear" in told([0.5])


@pytest.mark.parametrize("ours", [[math.inf] * 4, [0.5, math.inf, 0.5, 0.5], ADAM])
def test_nothing_is_no_number(ours: list[float]) -> None:
    text = told(ours, {"hyperadam": 0.003, "adam": 0.001})
    assert not any(word in text for word in ("nan", "inf ", "None"))
    assert "A step of HyperAdam takes 3 times as long as one of Adam: 3 ms and 1 ms" in text
