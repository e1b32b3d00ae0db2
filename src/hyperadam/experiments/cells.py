"""Cells of a grid of experiments, each with a file of its own that is found again by its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyperadam import tasks
from hyperadam.experiments.atomic import safe_name
from hyperadam.experiments.optimizers import OptimizerSpec
from hyperadam.experiments.results import Result, settings_key
from hyperadam.experiments.training import Progress, describe, train


@dataclass(frozen=True)
class Cell:
    """A task trained by an optimizer from given seeds. The arguments are those of :func:`~.training.train`."""

    task: str
    optimizer: OptimizerSpec
    seeds: Sequence[int]
    steps: int
    final_batches: int | None = None
    test: bool = False

    def settings(self) -> dict[str, Any]:
        """All that the cell's numbers depend on, as JSON."""
        task = tasks.get(self.task)
        return describe(self.task, task, self.optimizer, self.seeds, self.steps, self.final_batches, self.test)

    @property
    def work(self) -> float:
        """Roughly how long the cell takes against others: what the optimizer keeps is also what it computes."""
        return len(self.seeds) * self.steps * tasks.get(self.task).p * (40.0 + self.optimizer.state_bytes)


class Store:
    """A folder of results. A finished cell is never computed again, an interrupted one goes on where it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, cell: Cell) -> Path:
        """The cell's JSON file, there or not."""
        settings = cell.settings()
        parts = (safe_name(cell.task), safe_name(cell.optimizer.label), str(cell.steps), settings_key(settings))
        return self.folder / (".".join(parts) + ".json")

    def find(self, cell: Cell) -> Result | None:
        """The cell's result, if it is there."""
        path = self.path(cell)
        return Result.load(path) if path.is_file() else None

    def run(self, cell: Cell, progress: Progress | None = None, fresh: bool = False) -> Result:
        """The cell's result, computed if it is not there or if ``fresh``."""
        path = self.path(cell)
        if path.is_file() and not fresh:
            return Result.load(path)
        checkpoint = path.with_suffix(".checkpoint")
        if fresh:
            checkpoint.unlink(missing_ok=True)
        result = train(
            cell.task,
            cell.optimizer,
            cell.seeds,
            cell.steps,
            final_batches=cell.final_batches,
            test=cell.test,
            progress=progress,
            checkpoint=checkpoint,
        )
        result.save(path)
        checkpoint.unlink(missing_ok=True)
        return result
