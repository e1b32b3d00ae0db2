"""Cells of a grid of experiments: what is in the store, and computing what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hyperadam import tasks
from hyperadam.experiments.training.optimizers import OptimizerSpec, find
from hyperadam.experiments.training.session import Progress, checkpoint_files, describe, train
from hyperadam.results import Result, Store

#: Seconds for a gradient, roughly: of a small learner, and of one so large that runs go through it
#: one by one.
GRADIENT, GRADIENT_ALONE = 1.5e-3, 0.12


@dataclass(frozen=True)
class Cell:
    """A task trained by an optimizer from given seeds. The arguments are those of
    :func:`~.session.train`."""

    task: str
    optimizer: OptimizerSpec
    seeds: Sequence[int]
    steps: int
    final_batches: int | None = None
    test: bool = False

    def settings(self) -> dict[str, Any]:
        """All that a run's numbers depend on but its seed, as JSON."""
        task = tasks.get(self.task)
        return describe(self.task, task, self.optimizer, self.steps, self.final_batches, self.test)

    @property
    def work(self) -> float:
        """Roughly how many seconds the cell takes: a gradient's, and for the update a nanosecond
        for each byte of state."""
        task = tasks.get(self.task)
        gradient = GRADIENT_ALONE if task.runs_at_once == 1 else GRADIENT
        batches = self.steps if self.final_batches is None else min(self.steps, self.final_batches)
        step = gradient + 1e-9 * task.p * (4 + self.optimizer.state_bytes)
        return len(self.seeds) * (self.steps * step + batches * gradient / 3)


def find_result(cell: Cell, store: Store) -> Result | None:
    """The runs of the cell that are in the store, under the name that it was asked for by."""
    found = store.find(cell.settings(), cell.seeds)
    if found is None:
        return None
    return replace(found, label=cell.optimizer.label, lr_source=cell.optimizer.lr_source)


def run_cell(
    cell: Cell, store: Store, progress: Progress | None = None, fresh: bool = False
) -> Result:
    """The cell's result. Runs are computed if they are not in the store, or if ``fresh``; an
    interrupted computation goes on where it was."""
    settings = cell.settings()
    missing = tuple(cell.seeds) if fresh else store.missing(settings, cell.seeds)
    if missing:
        checkpoint = store.checkpoint(settings, missing)
        # now, and not after hours: the folder may be impossible
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            _forget(checkpoint)
        result = train(
            cell.task,
            cell.optimizer,
            missing,
            cell.steps,
            final_batches=cell.final_batches,
            test=cell.test,
            progress=progress,
            checkpoint=checkpoint,
        )
        store.add(result)
        _forget(checkpoint)
        if missing == tuple(cell.seeds):
            return result
    found = find_result(cell, store)
    assert found is not None
    return found


def _forget(checkpoint: Path) -> None:
    for path in checkpoint_files(checkpoint):
        path.unlink(missing_ok=True)


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
    """Every task with every optimizer, task by task, rates as :func:`~.optimizers.find` finds them
    for each task."""
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
    """The results of all cells, in order; ``progress`` is told the current cell and the share of
    all work that is done."""
    missing = {
        number: cell.work
        for number, cell in enumerate(cells)
        if fresh or store.missing(cell.settings(), cell.seeds)
    }
    total, done = sum(missing.values()), 0.0
    results = []
    for number, cell in enumerate(cells):
        work = missing.get(number, 0.0)

        def report(share: float, cell: Cell = cell, done: float = done, work: float = work) -> None:
            if progress is not None:
                progress(cell, (done + share * work) / total)

        results.append(run_cell(cell, store, report, fresh))
        done += work
    return results
