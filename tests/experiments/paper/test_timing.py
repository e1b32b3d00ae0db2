"""Time: of a step, and until the lowest loss of Adam; measured and kept."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from hyperadam.experiments import Result
from hyperadam.experiments.jobs import Setup, run_jobs
from hyperadam.experiments.paper import timing
from hyperadam.experiments.paper.runner import Place, cell_jobs, load

from ..tiny import quiet
from .small import experiment


def curve(label: str, losses: list[float]) -> Result:
    settings = {"task": "bowl", "optimizer": label, "lr": 0.1, "steps": len(losses)}
    rows = torch.tensor([losses])
    return Result(settings, (0,), rows, rows[:, -1], (None,), None, {}, label)


def test_steps_to_the_lowest_loss_of_adam() -> None:
    curves = {
        "adam": curve("adam", [4.0, 3.0, 2.0, 1.0, 1.5]),
        "quick": curve("quick", [4.0, 0.5, 2.0, 2.0, 2.0]),
        "never": curve("never", [4.0, 3.0, math.inf, math.inf, math.inf]),
    }
    assert timing.steps_to_reference(curves) == (1.0, {"adam": 4, "quick": 2, "never": None})
    del curves["adam"]
    assert timing.steps_to_reference(curves) == (None, {})


def test_time_is_measured_and_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ROUNDS", 2)
    monkeypatch.setattr(timing, "UPDATES", 3)
    place, spec = (
        Place(here / "results"),
        experiment(optimizers=("adam", "hyperadam"), tasks=("bowl",), timed=("noisy-bowl",)),
    )
    assert not run_jobs(cell_jobs([spec], place), Setup(place.folder), quiet)
    results = load(spec, place.store).results
    specs = [cell.optimizer for cell in spec.cells()[:2]]
    wanted = timing.settings(specs, spec.timed, results)
    assert not timing.is_measured(place.time, wanted)
    record = timing.measure(specs, spec.timed, results, place.time)
    assert timing.is_measured(place.time, wanted)
    assert not timing.is_measured(place.time, wanted | {"rounds": 3})
    assert record["ratios"]["noisy-bowl"]["adam"] == 1.0
    assert record["made_with"]["torch"] == torch.__version__
    values = timing.values(place.time)
    assert values["noisy-bowl", "hyperadam", 1, "seconds_per_step"] > 0
    assert values["bowl", "adam", 8, "seconds_to_loss"] > 0
    again = load(spec, place.store).results
    by_cell = {(r.task, r.label, r.steps): r for r in again}
    assert len(by_cell["noisy-bowl", "hyperadam", 1].measures["seconds_per_step"]) == 2
    assert by_cell["bowl", "adam", 8].measures["seconds_to_loss"][0] == pytest.approx(
        values["bowl", "adam", 8, "seconds_to_loss"]
    )
    text = place.time.read_text()
    for damage in ("{}", text.replace('"steps": 8', '"steps": 9'), "[" * 100_000, text[:-9], ""):
        place.time.write_text(damage)
        found = load(spec, place.store)
        assert len(found.results) == len(results), "curves are there, times are not"
        assert "time.json is damaged" in found.damaged["noisy-bowl", "adam", 1]
