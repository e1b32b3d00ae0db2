"""Training a task with an optimizer from many seeds as one computation, with checkpoints; a run
that diverges is a result."""

from __future__ import annotations

import io
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hyperadam
from hyperadam import tasks
from hyperadam.experiments.training import optimizers
from hyperadam.experiments.training.optimizers import OptimizerSpec
from hyperadam.experiments.training.steppers import RuleStepper, Stepper
from hyperadam.files import Damaged, read_checked, write_checked
from hyperadam.results import Result
from hyperadam.rules import UpdateRule
from hyperadam.tasks import Metrics, Task

#: Called after every step with the share of the work that is done, from 0 to 1.
Progress = Callable[[float], None]
#: Bytes that the optimizer's state, parameters and gradients may take together: this bounds how
#: many runs advance at once.
MEMORY = 512 * 2**20
#: Seconds between two checkpoints.
INTERVAL = 120.0


class Record(NamedTuple):
    """What is known so far of all runs: losses ``(runs, steps)``, and ``(runs,)`` or, on the test
    set, ``(3, runs)``."""

    losses: Tensor
    final_loss: Tensor
    diverged_at: Tensor
    test: Tensor


def train(
    task: str | Task[Any],
    optimizer: str | UpdateRule[Any] | OptimizerSpec,
    seeds: Sequence[int],
    steps: int,
    *,
    final_batches: int | None = None,
    test: bool = False,
    tuning: Path | None = None,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
    interval: float = INTERVAL,
    runs_at_once: int | None = None,
) -> Result:
    """Train ``task`` from every seed and return all losses.

    A run whose loss, gradient or parameters cease to be finite has diverged: it is stopped there,
    and recorded so. A gradient whose squared norm overflows counts as not finite.

    Args:
        task: a name or a task.
        optimizer: a name such as ``adam``, ``adam@0.01`` or ``hyperadam``, a path to weights, or a
            rule.
        seeds: one a run.
        steps: of each run.
        final_batches: the final loss is the mean over so many of a run's batches, evenly spread;
            ``None``: over all.
        test: also evaluate on the test set.
        tuning: a folder of tuned learning rates.
        progress: told the share of the work that is done.
        checkpoint: a file to resume from if it is there, and to write every ``interval`` seconds;
            it stays, complete, when the training is over. A resumed training gives the same numbers
            to the bit. Beside it lies the one before it, which serves if the latest is damaged.
        runs_at_once: how many runs advance together; by default as many as :data:`MEMORY` holds.
    """
    name = task if isinstance(task, str) else task.title or type(task).__name__
    task = tasks.get(task) if isinstance(task, str) else task
    spec = optimizers.find(optimizer, name, steps, tuning)
    settings = describe(name, task, spec, steps, final_batches, test)
    numbers = tuple(int(seed) for seed in seeds)
    if not numbers:
        raise ValueError("seeds is empty, expected one seed a run")
    chunk = runs_at_once or max(1, MEMORY // (task.p * (spec.state_bytes + 16)))
    session = _Session(task, spec, settings, numbers, chunk, progress or (lambda share: None))
    if checkpoint is not None:
        session.keep(checkpoint, interval)
    session.run()
    losses, final_loss, diverged_at, on_test = session.record
    return Result(
        settings,
        numbers,
        losses,
        final_loss,
        tuple(None if at < 0 else at for at in diverged_at.tolist()),
        Metrics(*on_test)._asdict() if test else None,
        made_with(session.backend),
        spec.label,
        spec.lr_source,
    )


def describe(
    name: str,
    task: Task[Any],
    optimizer: OptimizerSpec,
    steps: int,
    final_batches: int | None = None,
    test: bool = False,
) -> dict[str, Any]:
    """All that the numbers of a run depend on but its seed, as JSON; refuses what makes no sense.

    ``final_batches`` has an entry if they are fewer than the steps, ``test`` if it is asked for."""
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if final_batches is not None and final_batches < 1:
        raise ValueError(f"final_batches must be at least 1, got {final_batches}")
    if test and not hasattr(task, "test_metrics"):
        raise ValueError(f"task {name} has no test set")
    return {
        "task": name,
        "p": task.p,
        **optimizer.settings(),
        "steps": steps,
        **({"final_batches": final_batches} if (final_batches or steps) < steps else {}),
        **({"test": True} if test else {}),
    }


def made_with(backend: str = "torch") -> dict[str, str]:
    """Versions of what computes results."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "hyperadam": hyperadam.__version__,
        "torch": torch.__version__,
        "python": python,
        "backend": backend,
    }


class _Session:
    """A training under way: chunks of runs one after the other, steps one after the other."""

    def __init__(
        self,
        task: Task[Any],
        spec: OptimizerSpec,
        settings: dict[str, Any],
        seeds: Sequence[int],
        chunk: int,
        progress: Progress,
    ) -> None:
        self.task, self.spec, self.settings, self.progress = task, spec, settings, progress
        self.seeds = list(seeds)
        self.steps: int = settings["steps"]
        self.final_batches: int = settings.get("final_batches", self.steps)
        self.chunk, self.first, self.step = chunk, 0, 0
        self.backend = "torch"
        runs = len(self.seeds)
        self.record = Record(
            torch.full((runs, self.steps), math.inf),
            torch.full((runs,), math.inf),
            torch.full((runs,), -1, dtype=torch.int64),
            torch.full((3, runs), math.nan),
        )
        self._resume: dict[str, Any] | None = None
        self._file: Path | None = None
        self._interval = self._saved_at = 0.0

    def run(self) -> None:
        while self.first < len(self.seeds):
            seeds = self.seeds[self.first : self.first + self.chunk]
            params = self.task.init(seeds)
            stepper = self.spec.stepper(params, self.task.shapes, self.steps)
            if isinstance(stepper, RuleStepper):
                self.backend = stepper.backend
            if self._resume is not None:
                params.copy_(self._resume["params"])
                stepper.load_state_dict(self._resume["stepper"])
                self._resume = None
            self._advance(stepper, seeds)
            self._finish(params, seeds)
            self.first, self.step = self.first + self.chunk, 0
        self._save(None, at_once=True)

    def _advance(self, stepper: Stepper, seeds: list[int]) -> None:
        """The remaining steps of a chunk of runs."""
        params, rows = stepper.params, slice(self.first, self.first + len(seeds))
        losses, diverged_at = self.record.losses[rows], self.record.diverged_at[rows]
        while self.step < self.steps and (diverged_at < 0).any():
            loss, grad = self.task.loss_and_grad(params, self.task.batch(seeds, self.step))
            alive = (diverged_at < 0) & loss.isfinite() & grad.square().sum(1).isfinite()
            losses[alive, self.step] = loss[alive].float()
            grad[~alive] = 0
            stepper.step(grad)
            alive &= params.sum(1).isfinite()
            params[~alive] = 0  # a stopped run stays in the batch, as zeros that harm nobody
            diverged_at[~alive & (diverged_at < 0)] = self.step
            self.step += 1
            self.progress(self._share())
            self._save(stepper)

    def _finish(self, params: Tensor, seeds: list[int]) -> None:
        """Final losses of a chunk of runs, and how they do on the test set."""
        rows = slice(self.first, self.first + len(seeds))
        alive = self.record.diverged_at[rows] < 0
        if alive.any():
            final = final_loss(self.task, params, seeds, self.steps, self.final_batches)
            self.record.diverged_at[rows][alive & ~final.isfinite()] = self.steps
            alive &= final.isfinite()
            self.record.final_loss[rows][alive] = final[alive].float()
            if self.settings.get("test"):
                metrics = torch.stack(self.task.test_metrics(params))  # type: ignore[attr-defined]
                self.record.test[:, rows][:, alive] = metrics[:, alive].float()
        self.progress((self.first + len(seeds)) / len(self.seeds))

    def _share(self) -> float:
        """The part of all work that is done, a final batch taken for half a step."""
        size = min(self.chunk, len(self.seeds) - self.first)
        done = self.step / (self.steps + self.final_batches / 2)
        return (self.first + size * done) / len(self.seeds)

    def keep(self, path: Path, interval: float) -> None:
        """Resume from ``path`` if it is there, and write it every ``interval`` seconds."""
        self._file, self._interval, self._saved_at = path, interval, time.monotonic()
        damaged = False
        for file in checkpoint_files(path):
            if not file.is_file():
                continue
            try:
                content = read_checked(file)
            except Damaged as error:
                print(f"hyperadam: {error}", file=sys.stderr, flush=True)
                damaged = True
                continue
            self._take_over(file, content)
            if damaged:
                print(f"hyperadam: going on from {file}", file=sys.stderr, flush=True)
            return
        if damaged:
            what = f"{self.settings['task']} with {self.spec.label}"
            print(f"hyperadam: {what} starts anew", file=sys.stderr, flush=True)

    def _take_over(self, path: Path, content: bytes) -> None:
        """Go on from a checkpoint that is what was written."""
        try:
            saved = torch.load(io.BytesIO(content), weights_only=True)
            settings = json.loads(saved["settings"])
        except Exception as error:  # another version's file fails in torch's reader in many ways
            raise ValueError(
                f"{path} is not a checkpoint that can be read: delete it and run again"
            ) from error
        mine = self._all_settings()
        if settings != mine:
            differ = ", ".join(key for key in mine if settings.get(key) != mine[key])
            raise ValueError(
                f"{path} is a checkpoint of another training ({differ} differ): "
                "delete it or name another file"
            )
        self.record, self.backend = Record(*saved["record"]), saved["backend"]
        self.chunk, self.first, self.step = saved["chunk"], saved["first"], saved["step"]
        self._resume = saved if saved["params"] is not None else None

    def _all_settings(self) -> dict[str, Any]:
        return self.settings | {"seeds": list(self.seeds)}

    def _save(self, stepper: Stepper | None, at_once: bool = False) -> None:
        """Write the checkpoint if it is time, or the training over; the one before it is kept."""
        if self._file is None or not (
            at_once or time.monotonic() - self._saved_at >= self._interval
        ):
            return
        state = {
            "settings": json.dumps(self._all_settings()),
            "record": list(self.record),
            "backend": self.backend,
            "chunk": self.chunk,
            "first": self.first,
            "step": self.step,
            "params": stepper and stepper.params,
            "stepper": stepper and stepper.state_dict(),
        }
        latest, previous = checkpoint_files(self._file)
        write_checked(latest, lambda file: torch.save(state, file), previous)
        self._saved_at = time.monotonic()


def checkpoint_files(path: Path) -> tuple[Path, Path]:
    """The files of a checkpoint: the latest, and the one before it, should that be damaged."""
    return path, path.with_name(f"{path.stem}.previous{path.suffix}")


@torch.no_grad()
def final_loss(
    task: Task[Any], params: Tensor, seeds: Sequence[int], steps: int, batches: int
) -> Tensor:
    """The mean loss of ``params (runs, p)`` over ``batches`` of the batches of steps ``0 …
    steps-1``, ``(runs,)``."""
    if batches >= steps:
        return task.final_loss(params, seeds, steps)
    total = torch.zeros(len(params), dtype=torch.float64)
    for k in range(batches):
        total += task.loss(params, task.batch(seeds, (2 * k + 1) * steps // (2 * batches)))
    return (total / batches).to(params.dtype)
