"""What a step costs: measured in turn, kept by task, and used while the optimizer is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperadam.experiments.suite import rivals, timing
from hyperadam.experiments.suite.scores import Results
from hyperadam.experiments.suite.tasks import SuiteTask
from hyperadam.experiments.suite.timing import Cost

from .small import cell

KNOWN = rivals.rivals()
CHOSEN = [KNOWN["adam"], KNOWN["muon"], KNOWN["hyperadam-paper"]]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ROUNDS", 3)
    monkeypatch.setattr(timing, "STEPS", 2)


def test_costs(suite: dict[str, SuiteTask], short: None, tmp_path: Path) -> None:
    path, lines = tmp_path / "times.json", []
    timing.measure_all([suite["curve"]], CHOSEN, path, lines.append)
    timing.measure_all([suite["again"]], CHOSEN[:1], path)
    found = timing.load(path)
    assert set(found) == {"curve", "again"}, "what was there stays"
    assert set(found["curve"]) == {"adam", "muon", "hyperadam-paper"}
    for cost, _ in found["curve"].values():
        assert 0 < cost.optimizer_seconds < cost.seconds < 1
    assert found["curve"]["adam"][1] == KNOWN["adam"].record()
    assert lines[0].startswith("curve  ms a step: adam ")


def test_costs_count_while_the_optimizer_is_the_same() -> None:
    cells = [cell("a", 100, {"x": [1.0] * 3, "y": [1.0] * 3})]
    times = {"a": {"x": (Cost(7.0, 3.0), {"lr": 0.1}), "y": (Cost(7.0, 3.0), {"lr": 0.2})}}
    results = Results(cells, times)
    assert results.at(("a", 100), "x").seconds == 7.0
    assert results.at(("a", 100), "x").optimizer_seconds == 3.0
    assert results.at(("a", 100), "y").seconds == pytest.approx(0.01), "its own runs'"


def test_nothing_and_nonsense(tmp_path: Path) -> None:
    assert timing.load(tmp_path / "times.json") == {}
    (tmp_path / "times.json").write_text("[]")
    with pytest.raises(ValueError, match=r"times\.json holds no times of the suite"):
        timing.load(tmp_path / "times.json")
