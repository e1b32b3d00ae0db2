"""Every rate that the experiments need, tuned as jobs in several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperadam.experiments import FIRST_SEED, tuned_lr
from hyperadam.experiments.jobs import Setup, run_jobs
from hyperadam.experiments.paper.experiment import Experiment
from hyperadam.experiments.paper.specs import EXPERIMENTS
from hyperadam.experiments.training.rates import Kind, Rate
from hyperadam.experiments.tuning import bulk
from hyperadam.experiments.tuning.bulk import TuneJob, tuning_jobs

from ..tiny import quiet

MODULE = """
from hyperadam import tasks
from tests.experiments.tiny import Quadratic, Trap

tasks.register("bowl", Quadratic)
tasks.register("trap", Trap)
"""


def test_what_the_experiments_need(tmp_path: Path) -> None:
    jobs = tuning_jobs(EXPERIMENTS.values(), tmp_path)
    by_pair = {(job.task, job.optimizer, job.steps): job for job in jobs}
    assert len(by_pair) == len(jobs)
    assert by_pair["mnist-mlp-elu", "momentum", 100].runs == 10
    assert by_pair["mnist-mlp-9x20", "sgd", 1000].runs == 10
    assert by_pair["cifar10-cnn1-bn", "adagrad", 100].runs == 2
    assert by_pair["cifar10-cnn2", "adadelta", 300].runs == 1
    assert ("mnist-cnn1", "sgd", 300) not in by_pair, "the long runs of CNN-1 are Adam's alone"
    assert ("mnist-cnn1", "adam", 300) in by_pair
    assert {job.steps for job in jobs} == {100, 300, 1000}
    assert all(job.seeds[0] == FIRST_SEED for job in jobs)
    assert [job for job in jobs if not job.done] == [], "all rates come with the package"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module that registers tiny tasks, for processes that know nothing of ours."""
    (tmp_path / "tiny_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    # spawned processes take this path over, however pytest was started
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    return tmp_path


@pytest.mark.usefixtures("tiny")
def test_rates_are_found_in_processes_and_stored(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "SMALL", (2, 2))
    experiment = Experiment(
        "x", "", "", "", ("bowl", "trap"), ("sgd", "momentum", "hyperadam"), (4,)
    )
    jobs = [
        TuneJob(job.task, job.optimizer, 2, 4, job.folder)
        for job in tuning_jobs([experiment], elsewhere)
    ]
    assert [(job.task, job.optimizer) for job in jobs] == [
        ("bowl", "momentum"),
        ("bowl", "sgd"),
        *(("trap", o) for o in ("momentum", "sgd")),
    ]
    failures = run_jobs(jobs, Setup(elsewhere, module="tiny_module"), quiet, processes=2)
    assert tuned_lr("sgd", "bowl", 4, elsewhere) == Rate(1.0, Kind.TUNED)
    assert sorted(failure.label for failure in failures) == [
        "tune trap momentum 4 steps",
        "tune trap sgd 4 steps",
    ]
    assert "diverged on trap at every learning rate" in failures[0].error
    assert [job.done for job in jobs] == [True, True, False, False]
    assert not TuneJob("bowl", "sgd", 3, 4, elsewhere).done, "more runs are asked for"
