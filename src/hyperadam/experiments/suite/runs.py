"""Training for the suite: real modules and real optimizers, one run at a time, as a user would; rates tuned on a seed apart."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hyperadam.experiments.suite.files import Folder, Run, TaskRuns
from hyperadam.experiments.suite.rivals import Rival
from hyperadam.experiments.suite.tasks import SuiteTask
from hyperadam.experiments.tuning import FIRST_SEED
from hyperadam.tasks.modules import ModuleTask

#: The seeds that numbers are reported on, the one that rates are tuned on, and the one whose batches the final weights are
#: judged on: three that never meet.
SEEDS = (0, 1, 2)
VALIDATION = FIRST_SEED
EVALUATION = 2 * FIRST_SEED
#: Points of a stored curve, at most.
POINTS = 200
#: A grid never grows by more points than this.
EXTENSIONS = 8
#: The share of the steps, and the least number, over which a loss is averaged at the end of a curve.
LAST, AT_LEAST = 0.05, 5
#: Where the learning rate is varied by these factors, for whom, on which tasks, and how long.
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
VARIED = ("adam", "adam-linear", "hyperadam", "hyperadam2")
VARIED_TASKS = ("fashion8-mlp", "tabular", "mnist-mlp3", "text-lstm")
VARIED_STEPS = 1_000
#: Runs that take longer than this many seconds come a stage later.
HEAVY = 10.0
#: Milliseconds of a gradient on one core, measured; to put cheap runs first.
GRADIENT = {
    "fashion8-mlp": 0.5,
    "cifar8-mlp": 0.6,
    "tabular": 0.7,
    "cifar-ae": 5.0,
    "fashion-mlp": 2.0,
    "mnist-mlp3": 2.0,
    "mnist-ae": 3.0,
    "fashion-ae": 3.0,
    "cifar-mlp-norm": 5.0,
    "finetune": 5.0,
    "text-lstm": 6.0,
    "text-transformer": 10.0,
    "cifar-vit": 10.0,
    "fashion-mlp-1m": 6.5,
    "cifar-cnn2": 24.0,
    "cifar16-conv": 36.0,
    "cifar-conv": 131.0,
}

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """An optimizer on a task at a horizon: its tuning, if it is tuned, and its reported runs. With ``varied`` at the rates
    about its own."""

    task: SuiteTask
    rival: Rival
    steps: int
    varied: bool = False

    @property
    def label(self) -> str:
        return f"{self.task.name}  {self.steps:,} steps  {self.rival.name}"

    def rates(self, lr: float) -> list[float]:
        """The rates of its runs, if its own is ``lr``."""
        if not self.varied:
            return [lr]
        return [float(f"{lr * factor:.6g}") for factor in FACTORS if factor != 1]

    def seconds(self, p: int) -> float:
        """What one run takes, roughly."""
        return self.steps * (GRADIENT.get(self.task.name, 10.0) * 1e-3 + self.rival.cost * p * 1e-9)


def train(task: SuiteTask, rival: Rival, lr: float, steps: int, seed: int, report: bool) -> Run:
    """One run; with ``report`` also its curve and its loss on the test set."""
    learner = task.task
    module = learner.module(seed)
    training = rival.make(module, lr, steps)
    training.begin()
    losses: list[float] = []
    diverged_at: int | None = None
    update = 0.0
    began = time.process_time()
    for step in range(steps):
        loss = learner.module_loss(module, seed, step)
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            diverged_at = step
            break
        training.zero_grad()
        loss.backward()
        before = time.process_time()
        training.step()
        update += time.process_time() - before
        if training.skipped:
            diverged_at = step
            break
    seconds = time.process_time() - began
    training.end()
    final = math.inf if diverged_at is not None else evaluate(learner, module, task.batches)
    if diverged_at is None and not math.isfinite(final):
        diverged_at = steps
    test = math.inf
    if report and diverged_at is None and learner.has_test:
        test = learner.test_loss(module)
    losses += [math.inf] * (steps - len(losses)) if diverged_at is not None else []
    if diverged_at is not None:
        losses[min(diverged_at, steps - 1)] = math.inf
    window = max(AT_LEAST, round(LAST * steps))
    last = sum(losses[-window:]) / len(losses[-window:])
    curve = thinned(losses) if report else ()
    return Run(rival.name, lr, seed, final, last, test, seconds, update, diverged_at, curve)


def evaluate(learner: ModuleTask, module: torch.nn.Module, batches: int) -> float:
    """The mean training loss over fixed batches that no run is trained on."""
    return learner.mean_loss(module, (learner.one_batch(EVALUATION, k) for k in range(batches)))


def thinned(losses: Sequence[float]) -> tuple[float, ...]:
    """Means over blocks of equal length, at most :data:`POINTS`; a rest at the end is left out."""
    size = math.ceil(len(losses) / POINTS)
    return tuple(sum(losses[k : k + size]) / size for k in range(0, len(losses) - size + 1, size))


def about(task: SuiteTask) -> dict[str, Any]:
    """What a task's numbers depend on, to notice when it is no longer the same."""
    return {
        "title": task.title,
        "parameters": task.task.p,
        "data": task.data(),
        "batches": task.batches,
        "envelope": task.envelope,
    }


def tuned_rate(task_runs: TaskRuns | None, rival: Rival) -> float | None:
    """The rate with the lowest loss on the validation seed, once the grid is complete; a given rate as it is."""
    if not rival.rates:
        return rival.lr
    missing = next_rates(task_runs, rival)
    if missing or task_runs is None:
        return None
    return _best(_validated(task_runs, rival))


def next_rates(task_runs: TaskRuns | None, rival: Rival) -> list[float]:
    """The rates that tuning still has to try: the first grid, then one beyond the edge while the best is there."""
    tried = _validated(task_runs, rival) if task_runs else {}
    if missing := [lr for lr in rival.rates if lr not in tried]:
        return missing
    if len(tried) >= len(rival.rates) + EXTENSIONS:
        return []
    factor = rival.rates[1] / rival.rates[0]
    best, rates = _best(tried), sorted(tried)
    if best == rates[0]:
        return [float(f"{best / factor:.6g}")]
    return [float(f"{best * factor:.6g}")] if best == rates[-1] else []


def _validated(task_runs: TaskRuns, rival: Rival) -> dict[float, float]:
    """The losses on the validation seed by rate."""
    runs = task_runs.runs.values()
    return {r.lr: r.loss for r in runs if r.optimizer == rival.name and r.seed == VALIDATION}


def _best(losses: dict[float, float]) -> float:
    # among equals, and where all diverged, the lowest
    return min(losses, key=lambda lr: (losses[lr], lr))


def plan(
    tasks: Sequence[SuiteTask], rivals: Sequence[Rival], steps: Sequence[int] | None = None
) -> list[Job]:
    """All jobs, such that a part is of use: short horizons first, cheap runs first, heavy ones a stage later."""
    jobs = []
    for task in tasks:
        module = task.task.module(0)
        for rival in rivals:
            if rival.applies(module):
                horizons = [n for n in task.steps if steps is None or n in steps]
                jobs += [Job(task, rival, n) for n in horizons]
                if rival.name in VARIED and task.name in VARIED_TASKS:
                    jobs += [Job(task, rival, n, True) for n in horizons if n == VARIED_STEPS]
    stages = sorted({job.steps for job in jobs})

    def order(job: Job) -> tuple[float, float]:
        seconds = job.seconds(job.task.task.p)
        return stages.index(job.steps) + (seconds > HEAVY) + job.rival.later + job.varied, seconds

    return sorted(jobs, key=order)


def complete(
    job: Job, folder: Folder, seeds: Sequence[int] = SEEDS, progress: Progress = lambda text: None
) -> None:
    """Compute what is missing of a job, run by run; each is stored as soon as it is there."""
    task, rival, steps = job.task, job.rival, job.steps
    known = about(task)
    with folder.changing(task.name, steps, known) as task_runs:
        if task_runs.optimizers.get(rival.name) not in (None, rival.record()):
            task_runs.forget(
                rival.name
            )  # other weights or settings than now: not the same optimizer
        task_runs.optimizers[rival.name] = rival.record()
        starts = {seed: start_loss(task, seed) for seed in seeds if seed not in task_runs.start}
        task_runs.start |= starts

    def run(lr: float, seed: int, report: bool) -> None:
        done = train(task, rival, lr, steps, seed, report)
        with folder.changing(task.name, steps, known) as task_runs:
            task_runs.runs[done.key] = done
        progress(f"{job.label}  lr {lr:.3g}  seed {seed}  loss {done.loss:.4g}")

    def stored() -> TaskRuns:
        found = folder.load(task.name, steps)
        assert found is not None
        return found

    while rates := next_rates(stored(), rival) if rival.rates else []:
        for lr in rates:
            run(lr, VALIDATION, False)
    task_runs = stored()
    found = tuned_rate(task_runs, rival)
    assert found is not None
    for rate in job.rates(found):
        for seed in seeds:
            if (rival.name, rate, seed) not in task_runs.runs:
                run(rate, seed, True)


def start_loss(task: SuiteTask, seed: int) -> float:
    """The loss before the first step, on the same batches as at the end."""
    return evaluate(task.task, task.task.module(seed), task.batches)


def missing(jobs: Sequence[Job], folder: Folder, seeds: Sequence[int] = SEEDS) -> Iterator[Job]:
    """The jobs that are not complete."""
    for job in jobs:
        task_runs = folder.load(job.task.name, job.steps)
        lr = tuned_rate(task_runs, job.rival)
        if (
            task_runs is None
            or lr is None
            or task_runs.optimizers.get(job.rival.name) != job.rival.record()
            or any(
                (job.rival.name, rate, seed) not in task_runs.runs
                for rate in job.rates(lr)
                for seed in seeds
            )
        ):
            yield job
