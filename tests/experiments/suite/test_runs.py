"""Runs of the suite: what is computed, in which order, once; and files that survive whatever is in them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from hyperadam.experiments.suite import files, rivals, runs
from hyperadam.experiments.suite.files import Folder, TaskRuns
from hyperadam.experiments.suite.rivals import Rival
from hyperadam.experiments.suite.runs import Job
from hyperadam.experiments.suite.tasks import SuiteTask
from hyperadam.tasks import ModuleTask

from .small import curve, run

KNOWN = rivals.rivals()
#: Rates that are too low on this task, so that the grid has to grow.
SGD = dataclasses.replace(KNOWN["sgd-cosine"], rates=(0.001, 0.003))


def tried(losses: dict[float, float]) -> TaskRuns:
    cell = TaskRuns("curve", 20, {})
    for lr, loss in losses.items():
        cell.runs[("sgd-cosine", lr, runs.VALIDATION)] = run(
            "sgd-cosine", loss, lr, runs.VALIDATION
        )
    return cell


def rival(*rates: float) -> Rival:
    return dataclasses.replace(SGD, rates=rates)


def test_seeds_never_meet() -> None:
    assert not {runs.VALIDATION, runs.EVALUATION} & set(runs.SEEDS)
    assert runs.VALIDATION != runs.EVALUATION


def test_the_grid_grows_where_its_best_point_is() -> None:
    grid = rival(0.1, 0.2, 0.4)
    assert runs.next_rates(None, grid) == [0.1, 0.2, 0.4]
    assert runs.next_rates(tried({0.1: 1, 0.4: 1}), grid) == [0.2]
    assert runs.next_rates(tried({0.1: 1, 0.2: 2, 0.4: 3}), grid) == [0.05]
    assert runs.next_rates(tried({0.1: 3, 0.2: 2, 0.4: 1}), grid) == [0.8]
    assert runs.next_rates(tried({0.1: 3, 0.2: 2, 0.4: 1, 0.8: 0.5}), grid) == [1.6]
    inside = tried({0.1: 3, 0.2: 2, 0.4: 1, 0.8: 2})
    assert runs.next_rates(inside, grid) == []
    assert runs.tuned_rate(inside, grid) == 0.4
    assert runs.tuned_rate(tried({0.1: 3, 0.2: 2, 0.4: 1}), grid) is None, "not before it is done"
    diverged = tried(dict.fromkeys(grid.rates, math.inf))
    assert runs.next_rates(diverged, grid) == [0.05], "where all diverge, lower"


def test_the_grid_ends_somewhere() -> None:
    grid = rival(1.0, 2.0)
    falling = tried({2.0**k: -k for k in range(2 + runs.EXTENSIONS)})
    assert runs.next_rates(falling, grid) == []
    assert runs.tuned_rate(falling, grid) == 2.0 ** (1 + runs.EXTENSIONS)


def test_a_run_is_what_a_user_would_do(suite: dict[str, SuiteTask]) -> None:
    task = suite["curve"]
    done = runs.train(task, KNOWN["adam-linear"], 0.03, 20, seed=1, report=True)
    module = task.task.module(1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.03)
    losses = []
    for step in range(20):
        for group in optimizer.param_groups:
            group["lr"] = 0.03 * (1 - step / 20)
        loss = task.task.module_loss(module, 1, step)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fixed = [task.task.one_batch(runs.EVALUATION, k) for k in range(3)]
    end = sum(float(task.task._loss(module, batch).detach()) for batch in fixed) / 3
    assert done.curve == pytest.approx(losses, rel=1e-4)
    assert done.loss == pytest.approx(end, rel=1e-4)
    assert done.last == pytest.approx(sum(losses[-5:]) / 5, rel=1e-4)
    assert done.test == pytest.approx(task.task.test_loss(module), rel=1e-4)
    again = runs.train(task, KNOWN["adam-linear"], 0.03, 20, seed=1, report=False)
    assert (again.loss, again.last, again.curve) == (done.loss, done.last, ())


def steep() -> ModuleTask:
    """A task whose gradients are finite and their squares are not."""
    made = curve()
    gentle = made._loss
    made._loss = lambda module, batch: 1e25 * gentle(module, batch)
    return made


@pytest.mark.parametrize(
    ("name", "lr", "build"), [("sgd-cosine", 1e19, curve), ("hyperadam-paper", 0.005, steep)]
)
def test_a_run_that_diverges_is_a_result(
    suite: dict[str, SuiteTask], tmp_path: Path, name: str, lr: float, build
) -> None:
    task = dataclasses.replace(suite["curve"], build=build)
    done = runs.train(task, KNOWN[name], lr, 20, seed=0, report=True)
    assert done.diverged_at is not None
    assert done.loss == done.last == done.test == math.inf
    assert done.curve[-1] == math.inf
    folder = Folder(tmp_path)
    with folder.changing("curve", 20, {}) as cell:
        cell.runs[done.key] = done
    stored = folder.load("curve", 20)
    assert stored is not None
    assert stored.runs[done.key].loss == math.inf
    assert stored.runs[done.key].curve[-1] == math.inf
    assert stored.runs[done.key].diverged_at == done.diverged_at


def test_curves_are_thinned() -> None:
    assert runs.thinned([1.0, 2.0]) == (1.0, 2.0)
    assert runs.thinned([float(k) for k in range(400)]) == tuple(2 * k + 0.5 for k in range(200))
    assert len(runs.thinned([0.0] * 10_001)) <= runs.POINTS


def test_a_job_is_done_once(
    suite: dict[str, SuiteTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, job = Folder(tmp_path), Job(suite["curve"], SGD, 20)
    assert list(runs.missing([job], folder)) == [job]
    lines: list[str] = []
    runs.complete(job, folder, progress=lines.append)
    assert list(runs.missing([job], folder)) == []
    cell = folder.load("curve", 20)
    assert cell is not None
    lr = runs.tuned_rate(cell, SGD)
    rates = sorted(key[1] for key in cell.runs if key[2] == runs.VALIDATION)
    assert len(rates) > 2, "the grid has grown"
    assert rates[0] < lr < rates[-1]
    assert {key for key in cell.runs if key[2] in runs.SEEDS} == {
        ("sgd-cosine", lr, seed) for seed in runs.SEEDS
    }
    assert len(lines) == len(cell.runs)
    assert set(cell.start) == set(runs.SEEDS)
    reported = cell.runs[("sgd-cosine", lr, 0)]
    assert len(reported.curve) == 20
    assert cell.runs[("sgd-cosine", rates[0], runs.VALIDATION)].curve == ()

    def never(*args: object) -> None:
        raise AssertionError("nothing is left to train")

    before = folder.file("curve", 20).read_bytes()
    monkeypatch.setattr(runs, "train", never)
    runs.complete(job, folder)
    assert folder.file("curve", 20).read_bytes() == before


def test_it_goes_on_where_it_was_stopped(
    suite: dict[str, SuiteTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = Folder(tmp_path / "whole"), Folder(tmp_path / "cut")
    job = Job(suite["curve"], SGD, 20)
    runs.complete(job, whole)
    train, count = runs.train, 0

    def at_most_one(*args, **options):
        nonlocal count
        count += 1
        if count % 2 == 0:
            raise KeyboardInterrupt
        return train(*args, **options)

    monkeypatch.setattr(runs, "train", at_most_one)
    for _ in range(100):
        try:
            runs.complete(job, cut)
            break
        except KeyboardInterrupt:
            continue
    a, b = whole.load("curve", 20), cut.load("curve", 20)
    assert a is not None
    assert b is not None
    assert {k: r.loss for k, r in a.runs.items()} == {k: r.loss for k, r in b.runs.items()}


def test_other_settings_are_another_optimizer(suite: dict[str, SuiteTask], tmp_path: Path) -> None:
    folder, task = Folder(tmp_path), suite["curve"]
    plain = Job(task, KNOWN["adamw-cosine"], 20)
    runs.complete(plain, folder)
    runs.complete(Job(task, KNOWN["prodigy"], 20), folder)
    changed = Job(task, dataclasses.replace(KNOWN["adamw-cosine"], settings={"new": 1}), 20)
    assert list(runs.missing([plain, changed], folder)) == [changed]
    first = folder.load("curve", 20)
    runs.complete(changed, folder, seeds=(0,))
    second = folder.load("curve", 20)
    assert first is not None
    assert second is not None
    mine = [key for key in second.runs if key[0] == "adamw-cosine"]
    assert mine == [("adamw-cosine", 0.001, 0)], "what came before is gone"
    assert sum(key[0] == "prodigy" for key in second.runs) == 3, "and others' stays"


def test_rates_are_varied_about_the_own(
    suite: dict[str, SuiteTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "VARIED", ("adamw-cosine",))
    monkeypatch.setattr(runs, "VARIED_TASKS", ("curve",))
    monkeypatch.setattr(runs, "VARIED_STEPS", 20)
    jobs = runs.plan(list(suite.values()), [KNOWN["adamw-cosine"], KNOWN["prodigy"]], [20])
    varied = [job for job in jobs if job.varied]
    assert [(job.task.name, job.rival.name) for job in varied] == [("curve", "adamw-cosine")]
    assert jobs[-1] == varied[0], "they come after what they are compared with"
    folder = Folder(tmp_path)
    for job in jobs:
        runs.complete(job, folder, seeds=(0,))
    cell = folder.load("curve", 20)
    assert cell is not None
    rates = sorted(key[1] for key in cell.runs if key[0] == "adamw-cosine")
    assert rates == pytest.approx([0.00025, 0.0005, 0.001, 0.002, 0.004])


def test_short_and_cheap_first(
    suite: dict[str, SuiteTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runs.GRADIENT, "curve", 1.0)
    chosen = [KNOWN[name] for name in ("hyperadam-paper", "adam", "sgd-cosine")]
    jobs = runs.plan(list(suite.values()), chosen)
    names = [(job.rival.name, job.steps) for job in jobs]
    assert len(jobs) == 9
    assert names.index(("adam", 20)) < names.index(("adam", 1_000))
    assert names.index(("adam", 1_000)) < names.index(("sgd-cosine", 20))
    assert names.index(("sgd-cosine", 20)) < names.index(("hyperadam-paper", 20))
    assert runs.plan(list(suite.values()), chosen, [7]) == []


def test_files_of_another_version_are_refused(suite: dict[str, SuiteTask], tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    job = Job(suite["curve"], KNOWN["prodigy"], 20)
    runs.complete(job, folder, seeds=(0,))
    before = folder.file("curve", 20).read_bytes()
    other = dataclasses.replace(suite["curve"], data=lambda: "other text")
    with pytest.raises(ValueError, match=r"another version of curve: \{'data': 'made'\} there"):
        runs.complete(Job(other, KNOWN["prodigy"], 20), folder)
    assert folder.file("curve", 20).read_bytes() == before


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "hyperadam-suite/0"}'])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "curve.20.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"curve\.20\.json is not a result of the suite"):
        files.read(path)
