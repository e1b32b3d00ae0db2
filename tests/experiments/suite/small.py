"""A suite of two tiny tasks, and results made of given numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import nn

from hyperadam.data import draws
from hyperadam.experiments.suite import runs, tasks
from hyperadam.experiments.suite.files import Run, TaskRuns
from hyperadam.experiments.suite.tasks import SuiteTask, regress
from hyperadam.tasks import ModuleTask, examples


def curve() -> ModuleTask:
    x = draws.normal(draws.keys([1], "x"), 60, 3)[0].float()
    y = x.sin().sum(1, keepdim=True)
    return ModuleTask(
        lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1)),
        regress,
        examples((x[:50], y[:50]), n=8),
        test=lambda: [(x[50:], y[50:])],
    )


def small_tasks() -> dict[str, SuiteTask]:
    """The first is compared with an envelope, the second has no long horizon."""
    return {
        "curve": SuiteTask(
            "curve", "a curve", curve, lambda: "made", (20, 1_000), 3, "ImageMLP_Cifar10_8_Relu32"
        ),
        "again": SuiteTask("again", "the same", curve, lambda: "made", (20,), 3),
    }


@pytest.fixture
def suite() -> Iterator[dict[str, SuiteTask]]:
    """The tiny tasks in place of the real ones, which come back in their order."""
    real, found = dict(tasks.TASKS), small_tasks()
    tasks.TASKS.clear()
    tasks.TASKS.update(found)
    yield found
    tasks.TASKS.clear()
    tasks.TASKS.update(real)


def run(
    optimizer: str, loss: float, lr: float = 0.1, seed: int = 0, points: int = 20, **more
) -> Run:
    """A run whose curve falls in a line from 2 to its loss."""
    curve = tuple(torch.linspace(2, min(loss, 2), points).tolist())
    values = {
        "last": loss,
        "test": 2 * loss,
        "seconds": 1.0,
        "optimizer_seconds": 0.5,
        "curve": curve,
    }
    return Run(optimizer, lr, seed, loss, **values | more)


def cell(
    task: str,
    steps: int,
    losses: dict[str, Sequence[float]],
    parameters: int = 5,
    envelope: str = "",
) -> TaskRuns:
    """A cell with untuned optimizers, and their losses by seed."""
    found = TaskRuns(task, steps, {"parameters": parameters, "envelope": envelope, "title": task})
    for name, values in losses.items():
        found.optimizers[name] = {"lr": 0.1}
        for seed, loss in enumerate(values):
            found.runs[(name, 0.1, seed)] = run(name, loss, seed=seed)
    found.start = dict.fromkeys(runs.SEEDS, 2.0)
    return found
