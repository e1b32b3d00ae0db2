"""A short run of the fuzzing of every reader; ``make fuzz`` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.fuzz import engine
from tests.fuzz.readers import READERS, Reader


@pytest.mark.parametrize("name", READERS)
def test_a_few_inputs(name: str) -> None:
    tally = engine.with_hypothesis(name, 150, same=True)
    assert tally.finding is None
    assert tally.inputs >= 100
    assert tally.refused > 0


def test_findings_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that found nothing anywhere would be of no use."""

    def read(given: int, folder: Path) -> None:
        if given > 900:
            raise KeyError("a bug")
        if given > 100:
            raise ValueError

    monkeypatch.setitem(READERS, "toy", Reader(lambda: st.integers(0, 1000), read, (ValueError,)))
    tally = engine.with_hypothesis("toy", 500, same=True)
    assert tally.finding is not None
    assert "KeyError: 'a bug'" in tally.finding
    assert tally.refused > 0
