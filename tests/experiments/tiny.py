"""Tiny tasks that need no data, and results made of given numbers."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hyperadam import tasks
from hyperadam.data import draws
from hyperadam.data.draws import Seeds, Steps
from hyperadam.experiments.jobs import Job
from hyperadam.results import Result, archive
from hyperadam.tasks import Task, registry


class NoisyBowl(Task[tuple[Tensor]]):
    """Mean squared distance to a point that moves."""

    title = "a bowl whose bottom moves"

    def __init__(self) -> None:
        super().__init__(p=11)
        self.batches = 0

    def batch(self, seeds: Seeds, step: Steps) -> tuple[Tensor]:
        self.batches += 1
        return (draws.normal(draws.keys(seeds, "bottom", step), self.p),)

    def losses(self, params: Tensor, batch: tuple[Tensor]) -> Tensor:
        return (params - 3 - batch[0].to(params.dtype)).square().mean(-1)


class Quadratic(Task[tuple[Tensor]]):
    """``h/2 |w|²``, the same in every batch: gradient descent is done in one step at the rate 1/h."""

    title = "a bowl"

    def __init__(self, h: float = 1.0) -> None:
        super().__init__(p=4)
        self.h = h

    def batch(self, seeds: Seeds, step: Steps) -> tuple[Tensor]:
        return (torch.zeros(len(seeds)),)

    def losses(self, params: Tensor, batch: tuple[Tensor]) -> Tensor:
        return self.h / 2 * params.square().sum(-1)


class Trap(NoisyBowl):
    """Runs with an odd seed have no loss from step 3 on."""

    title = "a trap for odd seeds"

    def batch(self, seeds: Seeds, step: Steps) -> tuple[Tensor]:
        (bottom,) = super().batch(seeds, step)
        odd = torch.tensor([int(seed) % 2 for seed in seeds], dtype=torch.bool)
        bottom[odd & (torch.as_tensor(step) >= 3)] = math.nan
        return (bottom,)


class Mortal(Job):
    """Kills the process it runs in, half-way, unless it finds there what it left before."""

    label, work = "mortal", 1.0

    def __init__(self, kept: Path) -> None:
        self.kept = kept

    def compute(self, folder: Path, progress: Callable[[float], None]) -> str:
        half = folder / "half done"
        if not half.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            half.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "went on"

    def keep(self, value: str) -> None:
        self.kept.write_text(value)


def quiet(label: str, share: float, ended: bool) -> None:
    pass


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three tasks of our own, and a folder of our own to work in."""
    monkeypatch.setattr(registry, "_REGISTERED", {})
    for name, kind in {"noisy-bowl": NoisyBowl, "bowl": Quadratic, "trap": Trap}.items():
        tasks.register(name, kind)
    return


def stored(folder: Path) -> list[Result]:
    """Every result in a store."""
    return [found for path in sorted(folder.rglob("*.npz")) for found in archive.read(path)]


def result(
    final: Sequence[float],
    optimizer: str = "adam",
    task: str = "bowl",
    steps: int = 5,
    seeds: Sequence[int] | None = None,
    label: str | None = None,
) -> Result:
    """A result with these final losses, and curves that fall to them; an infinite loss is that of a run that diverged."""
    settings = {
        "task": task,
        "optimizer": optimizer,
        "lr": 0.1,
        "steps": steps,
    }
    losses = torch.tensor(final).unsqueeze(1) + torch.linspace(2, 0, steps)
    diverged = tuple(None if math.isfinite(x) else 2 for x in final)
    return Result(
        settings,
        tuple(seeds or range(len(final))),
        losses,
        torch.tensor(final),
        diverged,
        None,
        {"torch": "2"},
        label or optimizer,
        "tuned",
    )
