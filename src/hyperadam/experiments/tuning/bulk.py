"""Tuning in bulk: every hand-made optimizer on every task and horizon that experiments need, as
jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hyperadam import tasks
from hyperadam.experiments.jobs import Job
from hyperadam.experiments.paper.experiment import Experiment
from hyperadam.experiments.training import rates
from hyperadam.experiments.training.cells import Cell
from hyperadam.experiments.training.optimizers import BASELINES, find
from hyperadam.experiments.tuning import FIRST_SEED, Tuning, tune
from hyperadam.results import Store

#: How many runs judge a rate, at 100 steps and at the longer horizon: for small learners, and for
#: convolutional ones.
SMALL, LARGE = (10, 10), (2, 1)
#: Horizons beyond 100 steps are tuned at this one, again for small and convolutional learners; the
#: nearest serves.
LONG_SMALL, LONG_LARGE = 1000, 300
#: The final loss of longer runs is over so many batches.
FINAL_BATCHES = 100
#: How many rates a grid has, as a rule.
POINTS = 9


@dataclass(frozen=True)
class TuneJob(Job):
    """Find the rate of one optimizer on one task at one horizon, and store it in ``folder``."""

    task: str
    optimizer: str
    runs: int
    steps: int
    folder: Path

    @property
    def label(self) -> str:
        return f"tune {self.task} {self.optimizer} {self.steps:,} steps"

    @property
    def work(self) -> float:
        return (
            POINTS
            * Cell(self.task, find(self.optimizer), self.seeds, self.steps, FINAL_BATCHES).work
        )

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(range(FIRST_SEED, FIRST_SEED + self.runs))

    @property
    def done(self) -> bool:
        """Whether a rate found with as many runs or more is stored, here or in the package."""
        wanted = (self.task, self.optimizer, self.steps)
        stored = (rate for path in rates.rate_files(self.folder) for rate in rates.read_rates(path))
        return any(rate[:3] == wanted and rate.runs >= self.runs for rate in stored)

    def compute(self, folder: Path, progress: Callable[[float], None]) -> Tuning:
        tried: list[Cell] = []

        def report(cell: Cell, share: float) -> None:
            if cell not in tried:
                tried.append(cell)
            progress((len(tried) - 1 + share) / max(POINTS, len(tried)))

        batches = min(self.steps, FINAL_BATCHES)
        return tune(
            self.task,
            self.optimizer,
            self.seeds,
            self.steps,
            Store(folder / "cells"),
            final_batches=batches,
            progress=report,
        )

    def keep(self, value: Tuning) -> None:
        value.save(self.folder)


def tuning_jobs(experiments: Iterable[Experiment], folder: Path) -> list[TuneJob]:
    """A job for each rate that the experiments need, those that are stored included (see
    :attr:`TuneJob.done`)."""
    needed = {
        (task, optimizer, steps > 100)
        for experiment in experiments
        for task in experiment.tasks
        for optimizer in experiment.optimizers
        if optimizer in BASELINES
        for steps in experiment.steps
    }
    jobs = []
    for task, optimizer, long in sorted(needed):
        large = tasks.get(task).runs_at_once == 1
        runs = (LARGE if large else SMALL)[long]
        steps = (LONG_LARGE if large else LONG_SMALL) if long else 100
        jobs.append(TuneJob(task, optimizer, runs, steps, folder))
    return jobs
