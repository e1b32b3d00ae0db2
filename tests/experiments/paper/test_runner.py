"""Experiments as jobs: what is computed, once, in processes or on Dask, and what is found again."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hyperadam import tasks
from hyperadam.experiments import BASELINES, Cell, find, find_result, train
from hyperadam.experiments import jobs as jobs_module
from hyperadam.experiments.jobs import Setup, run_jobs
from hyperadam.experiments.paper import runner, variants
from hyperadam.experiments.paper.runner import CellJob, Place, cell_jobs, damaged, load
from hyperadam.experiments.paper.specs import EXPERIMENTS, find_experiment
from hyperadam.experiments.training import optimizers, rates
from hyperadam.experiments.training.rates import TunedRate

from ..tiny import Mortal, NoisyBowl, quiet
from .small import experiment


def test_the_specs_are_consistent() -> None:
    assert len(EXPERIMENTS) == 13
    for spec in EXPERIMENTS.values():
        for task in (*spec.tasks, *spec.timed):
            tasks.get(task)
        shown = {*spec.tasks, *spec.timed}
        for label in spec.optimizers:
            assert label in variants.VARIANTS or label in (
                *BASELINES,
                "dm",
                "rnnprop",
                "hyperadam-paper",
                "hyperadam-published",
                "hyperadam",
                "hyperadam+horizon",
                "hyperadam-horizon",
                "adam-init",
            )
        for claim in spec.claims:
            assert {claim.better, *claim.worse} <= set(spec.optimizers), spec.name
            assert set(claim.tasks) <= shown
            assert claim.steps is None or claim.steps in (*spec.steps, 1)
        for figure in spec.figures:
            assert figure.task in spec.tasks
            assert figure.steps in spec.steps
        for task, label, steps, _ in spec.published:
            assert task in shown
            assert label in spec.optimizers
            assert steps in (*spec.steps, 1)
        for (task, label, steps), runs in spec.more_runs.items():
            assert task in spec.tasks
            assert label in spec.optimizers
            assert steps in spec.steps
            assert runs > spec.runs
        coarse = spec.coarse()
        assert all(figure.steps in coarse.steps for figure in coarse.figures)
        assert coarse.runs * max(coarse.steps) < spec.runs * max(spec.steps)
    with pytest.raises(
        ValueError, match="no experiment is called 'activation'; did you mean activations"
    ):
        find_experiment("activation")


def test_published_numbers_are_those_of_the_tables() -> None:
    assert (
        EXPERIMENTS["activations"].published["mnist-mlp-tanh", "hyperadam-paper", 100, "final_loss"]
        == 0.36
    )
    assert EXPERIMENTS["lstm"].published["sine-lstm", "dm", 100, "final_loss"] == 3.10
    assert EXPERIMENTS["learners"].published["mnist-cnn2", "rnnprop", 10_000, "test_top2"] == 0.2169
    assert (
        EXPERIMENTS["time"].published["mnist-mlp-9x20", "rnnprop", 1, "seconds_per_step"] == 0.0039
    )


def test_cells_and_their_coarse_version(here: Path) -> None:
    spec = experiment()
    full, quick = spec.cells(), spec.cells(quick=True)
    assert [(c.task, c.steps, c.optimizer.label) for c in full[:4]] == [
        ("noisy-bowl", 4, "sgd"), ("noisy-bowl", 4, "adam"), ("noisy-bowl", 4, "adam-init"), ("noisy-bowl", 8, "sgd")
    ]  # fmt: skip
    assert {c.seeds for c in full} == {(0, 1, 2)}
    assert ({c.seeds for c in quick}, {c.steps for c in quick}) == ({(0, 1)}, {2, 3})
    assert {c.seeds for c in spec.cells(runs=1)} == {(0,)}
    start = full[2].optimizer
    assert (start.label, start.lr, start.lr_source) == (
        "adam-init",
        0.02,
        "as meta-training starts",
    )


def test_some_cells_have_more_runs(here: Path) -> None:
    spec = experiment(runs=1, more_runs={("bowl", "adam", 8): 4})

    def runs(cells: list[Cell]) -> dict[tuple[str, str, int], int]:
        found = {(c.task, c.optimizer.label, c.steps): len(c.seeds) for c in cells}
        return {key: n for key, n in found.items() if n != 1}

    assert runs(spec.cells()) == {("bowl", "adam", 8): 4}
    assert not runs(spec.cells(runs=1)), "the number that is asked for is that of all"
    assert not runs(spec.cells(quick=True))


def test_cnn2_is_judged_on_the_runs_of_table_3() -> None:
    def of_learned(name: str) -> dict[str, tuple[dict[str, object], int]]:
        spec = replace(EXPERIMENTS[name], tasks=("mnist-cnn2",), steps=(10_000,))
        there = EXPERIMENTS["learners"].optimizers
        return {
            c.optimizer.label: (c.settings(), len(c.seeds))
            for c in spec.cells()
            if c.optimizer.label in there
        }

    assert of_learned("long-cnn") == of_learned("learners")


def test_weights_that_are_not_there_are_one_line(here: Path) -> None:
    spec = experiment(optimizers=("sgd", "no-lstm", "nobody"))
    assert {c.optimizer.label for c in spec.cells()} == {"sgd"}
    reasons = spec.unavailable(here)
    assert list(reasons) == ["no-lstm", "nobody"]
    assert "not meta-trained yet" in reasons["no-lstm"]
    assert all("\n" not in reason for reason in reasons.values())


def test_nothing_is_computed_twice_and_all_is_found(here: Path) -> None:
    place, spec = Place(here / "results"), experiment()
    jobs = cell_jobs([spec, experiment(name="other", tasks=("bowl",))], place)
    assert len(jobs) == 12, "experiments share cells"
    labels: list[str] = []
    assert not run_jobs(
        jobs,
        Setup(place.folder),
        lambda label, share, ended: labels.append(label) if ended else None,
    )
    assert len(labels) == 12
    work = [next(job.work for job in jobs if job.label == label) for label in labels]
    assert work == sorted(work), "cheap ones first"
    assert not cell_jobs([spec], place)
    found = load(spec, place.store).results
    assert [(r.task, r.steps, r.label) for r in found] == [
        (c.task, c.steps, c.optimizer.label) for c in spec.cells()
    ]
    assert not cell_jobs([spec], place, runs=2), "two of three are there"
    assert [r.runs for r in load(spec, place.store, runs=2).results] == [2] * 12
    assert [job.cell.seeds for job in cell_jobs([spec], place, runs=5)] == [(3, 4)] * 12
    assert [r.runs for r in load(spec, place.store, runs=5).results] == [3] * 12, (
        "what there is, rather than nothing"
    )
    assert load(spec, Place(here / "results", quick=True).store, quick=True) == ([], {})


def test_runs_that_two_experiments_need_are_computed_once(here: Path) -> None:
    small = experiment(tasks=("bowl",), optimizers=("adam",), steps=(4,), runs=2)
    jobs = cell_jobs([small, replace(small, runs=5)], Place(here / "results"))
    assert [job.cell.seeds for job in jobs] == [(0, 1), (2, 3, 4)]


def test_a_damaged_file_is_named_and_the_rest_is_there(here: Path) -> None:
    place, spec = Place(here / "results"), experiment()
    assert not run_jobs(cell_jobs([spec], place), Setup(place.folder), quiet)
    path = place.store.path(spec.cells()[0].settings())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found = load(spec, place.store)
    assert len(found.results) == 11
    assert list(found.damaged) == [("noisy-bowl", "sgd", 4)]
    assert str(path) in found.damaged["noisy-bowl", "sgd", 4]
    assert not cell_jobs([spec], place), "what is damaged is not overwritten"
    assert list(damaged([spec], place)) == ["noisy-bowl  sgd  4 steps"]
    path.unlink()
    assert len(cell_jobs([spec], place)) == 1


def test_listing_reads_a_weight_file_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    real = optimizers.load_rule

    def counting(name: str, relative: bool | None) -> object:
        loads.append(name)
        return real(name, relative)

    monkeypatch.setattr(optimizers, "load_rule", counting)
    optimizers._loaded.cache_clear()
    spec = experiment(optimizers=("hyperadam", "rnnprop", "adam-init"))
    assert len(cell_jobs([spec, spec], Place(here / "results"))) == 12
    assert sorted(loads) == ["adam-init", "hyperadam", "rnnprop"]


def test_large_learners_are_computed_run_by_run(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NoisyBowl, "runs_at_once", 1)
    place, spec = (
        Place(here / "results"),
        experiment(tasks=("noisy-bowl",), optimizers=("adam",), steps=(4,)),
    )
    (cell,) = spec.cells()
    assert [job.cell.seeds for job in cell_jobs([spec], place)] == [(0,), (1,), (2,)]
    assert not run_jobs(cell_jobs([spec], place, runs=2), Setup(place.folder), quiet)
    assert [job.cell.seeds for job in cell_jobs([spec], place)] == [(2,)], (
        "other numbers of runs share them"
    )
    assert not run_jobs(cell_jobs([spec], place), Setup(place.folder), quiet)
    whole, merged = (
        train("noisy-bowl", cell.optimizer, (0, 1, 2), 4),
        find_result(cell, place.store),
    )
    assert merged is not None
    assert (merged.settings, merged.seeds) == (whole.settings, whole.seeds)
    assert torch.equal(merged.losses, whole.losses)
    assert torch.equal(merged.final_loss, whole.final_loss)


def test_one_failure_stops_no_other(here: Path) -> None:
    spec = experiment(tasks=("broken", "trap", "bowl"), optimizers=("sgd@0.1",), steps=(5,))
    for processes, module in ((1, None), (2, "tiny_module")):
        place = Place(here / f"results{processes}")
        failures = run_jobs(
            cell_jobs([spec], place), Setup(place.folder, module=module), quiet, processes
        )
        assert failures == [("broken  sgd@0.1  5 steps", "RuntimeError: no batch today")]
        trap, bowl = load(spec, place.store).results
        assert trap.diverged_at == (None, 3, None), "a run that diverges is a result"
        assert math.isinf(trap.final_loss[1])
        assert bowl.diverged == 0


def test_a_killed_process_loses_nothing(here: Path) -> None:
    place = Place(here / "results")
    jobs = [
        CellJob(Cell("slow", find(f"sgd@{lr}"), (0,), 30), place.store.folder)
        for lr in (0.1, 0.2, 0.3)
    ]
    killed: list[int] = []

    def kill(label: str, share: float, ended: bool) -> None:
        if share > 0.05 and not killed:
            children = [
                int(p.name)
                for p in Path("/proc").iterdir()
                if p.name.isdigit() and _parent(p) == os.getpid()
            ]
            killed.extend(
                pid
                for pid in children
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
            )
            os.kill(killed[0], signal.SIGKILL)

    assert run_jobs(jobs, Setup(place.folder, module="tiny_module"), kill, processes=2) == []
    assert killed
    for job in jobs:
        there = find_result(job.cell, place.store)
        assert there is not None
        assert torch.equal(there.losses, train("slow", job.cell.optimizer, (0,), 30).losses)


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.mark.parametrize("disk", ["shared", "apart"])
def test_dask_with_a_worker_that_is_killed(
    here: Path, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    if disk == "apart":
        monkeypatch.setattr(
            jobs_module, "_mark", lambda folder: contextlib.nullcontext(here / "nowhere")
        )
    place = Place(here / "results")
    jobs = [
        CellJob(Cell("slow", find(f"sgd@{lr}"), (0, 1), 20), place.store.folder)
        for lr in (0.1, 0.2, 0.3, 0.4)
    ]
    jobs.append(CellJob(Cell("broken", find("sgd@0.1"), (0,), 2), place.store.folder))
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            protocol="tcp",
            dashboard_address=None,
            silence_logs=50,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        pids = client.run(os.getpid)
        killed: list[int] = []

        def kill() -> None:
            while not (
                busy := [pids[address] for address, keys in client.processing().items() if keys]
            ):
                time.sleep(0.05)
            time.sleep(0.3)
            killed.append(busy[0])
            os.kill(busy[0], signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        failures = run_jobs(
            jobs, Setup(place.folder, module="tiny_module"), quiet, dask=cluster.scheduler_address
        )
        killer.join()
        assert killed[0] not in client.run(os.getpid).values()
    assert failures == [("broken  sgd@0.1  2 steps, seed 0", "RuntimeError: no batch today")]
    for job in jobs[:-1]:
        there = find_result(job.cell, place.store)
        assert there is not None
        assert torch.equal(there.losses, train("slow", job.cell.optimizer, (0, 1), 20).losses)
    files = [path.name for path in place.store.folder.rglob("*") if path.is_file()]
    assert sorted(files) == [".lock", "sgd-20.npz"], "results alone come back"


def test_on_a_shared_disk_a_job_goes_on_where_its_dead_worker_was(here: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=True,
        protocol="tcp",
        dashboard_address=None,
        silence_logs=50,
    ) as cluster:
        failures = run_jobs(
            [Mortal(here / "kept")], Setup(Path("results")), quiet, dask=cluster.scheduler_address
        )
    assert failures == []
    assert (here / "kept").read_text() == "went on"
    assert [path.name for path in (here / "results").iterdir()] == ["half done"], "no mark is left"


def test_no_scheduler_is_one_line(here: Path) -> None:
    pytest.importorskip("distributed")
    import dask

    job = CellJob(Cell("bowl", find("sgd@0.1"), (0,), 2), here)
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(OSError, match=r"127\.0\.0\.1:1"),
    ):
        run_jobs([job], Setup(here), quiet, dask="tcp://127.0.0.1:1")


def test_rates_that_are_not_tuned_are_counted(here: Path) -> None:
    spec, place = experiment(), Place(here)
    assert runner.untuned([spec], place) == 8
    stored = TunedRate("bowl", "sgd", 8, 0.1, False, 3, 0, 8, 0.5, "untuned", "torch 2")
    rates.store(place.tuning, stored, [])
    assert runner.untuned([spec], place) == 6, "one rate serves both horizons"
