"""Cells of a grid of experiments, each with a file of its own that is found again by its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hyperadam import tasks
from hyperadam.experiments.atomic import safe_name
from hyperadam.experiments.optimizers import OptimizerSpec, find
from hyperadam.experiments.results import Result, settings_key
from hyperadam.experiments.training import Progress, describe, train

#: Seconds for a gradient, roughly: of a small learner, and of one so large that runs go through it one by one.
GRADIENT, GRADIENT_ALONE = 1.5e-3, 0.12


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
        return describe(
            self.task, task, self.optimizer, self.seeds, self.steps, self.final_batches, self.test
        )

    @property
    def work(self) -> float:
        """Roughly how many seconds the cell takes: a gradient's, and for the update a nanosecond for each byte of state."""
        task = tasks.get(self.task)
        gradient = GRADIENT_ALONE if task.runs_at_once == 1 else GRADIENT
        batches = self.steps if self.final_batches is None else min(self.steps, self.final_batches)
        step = gradient + 1e-9 * task.p * (4 + self.optimizer.state_bytes)
        return len(self.seeds) * (self.steps * step + batches * gradient / 3)


class Store:
    """A folder of results. A finished cell is never computed again, an interrupted one goes on where it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, cell: Cell) -> Path:
        """The cell's JSON file, there or not."""
        settings = cell.settings()
        parts = (
            safe_name(cell.task),
            safe_name(cell.optimizer.name),
            str(cell.steps),
            settings_key(settings),
        )
        return self.folder / (".".join(parts) + ".json")

    def find(self, cell: Cell) -> Result | None:
        """The cell's result, if it is there."""
        path = self.path(cell)
        if not path.is_file():
            return None
        # the same numbers may have been asked for by another name, or with the rate from elsewhere
        return replace(
            Result.load(path), label=cell.optimizer.label, lr_source=cell.optimizer.lr_source
        )

    def run(self, cell: Cell, progress: Progress | None = None, fresh: bool = False) -> Result:
        """The cell's result, computed if it is not there or if ``fresh``."""
        if not fresh and (found := self.find(cell)):
            return found
        self.folder.mkdir(
            parents=True, exist_ok=True
        )  # now, and not after hours: the folder may be impossible
        path = self.path(cell)
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


def grid(
    task_names: Sequence[str],
    optimizers: Sequence[str | OptimizerSpec],
    seeds: Sequence[int],
    steps: int,
    *,
    final_batches: int | None = None,
    test: bool = False,
    tuning: Path | None = None,
) -> list[Cell]:
    """Every task with every optimizer, task by task, rates as :func:`~.optimizers.find` finds them for each task."""
    pairs = [
        (task, find(optimizer, task, steps, tuning))
        for task in task_names
        for optimizer in optimizers
    ]
    cells = [
        Cell(task, optimizer, tuple(seeds), steps, final_batches, test) for task, optimizer in pairs
    ]
    for cell in cells:
        cell.settings()  # refuses what makes no sense before anything is computed
    return cells


def run_cells(
    cells: Sequence[Cell],
    store: Store,
    progress: Callable[[Cell, float], None] | None = None,
    fresh: bool = False,
) -> list[Result]:
    """The results of all cells, in order; ``progress`` is told the current cell and the share of all work that is done."""
    missing = {
        number: cell.work
        for number, cell in enumerate(cells)
        if fresh or not store.path(cell).is_file()
    }
    total, done = sum(missing.values()), 0.0
    results = []
    for number, cell in enumerate(cells):
        work = missing.get(number, 0.0)

        def report(share: float, cell: Cell = cell, done: float = done, work: float = work) -> None:
            if progress is not None:
                progress(cell, (done + share * work) / total)

        results.append(store.run(cell, report, fresh))
        done += work
    return results
