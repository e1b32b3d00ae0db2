"""Learning rates found on a logarithmic grid that grows where its best point is at an edge; grid
and result are a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hyperadam.experiments.training import optimizers, rates
from hyperadam.experiments.training.cells import Cell, run_cell
from hyperadam.experiments.training.optimizers import OptimizerSpec
from hyperadam.experiments.training.rates import GridPoint, Kind, TunedRate, starting_rate
from hyperadam.results import Result, Store

#: The first grid: so many doublings to either side of the starting point.
SPAN = 3
#: The grid never goes further from the starting point, in doublings.
LIMIT = 10
#: Seeds of tuning start here, far from those that results are reported on.
FIRST_SEED = 1_000_000


@dataclass(frozen=True)
class Tuning:
    """The rates that were tried, ascending, with their results; the best of them, and whether the
    grid ended there."""

    start: float
    start_source: str
    results: tuple[Result, ...]
    best: Result
    at_edge: bool

    @property
    def lr(self) -> float:
        return self.best.lr

    def save(self, folder: Path) -> Path:
        """Put the rate and its grid where :func:`hyperadam.experiments.training.rates.tuned_lr`
        finds them; the file of rates."""
        best = self.best
        rates.store(
            folder,
            TunedRate(
                task=best.task,
                optimizer=best.optimizer,
                steps=best.steps,
                lr=self.lr,
                at_edge=self.at_edge,
                runs=best.runs,
                first_seed=best.seeds[0],
                final_batches=best.settings.get("final_batches", best.steps),
                start=self.start,
                start_source=self.start_source,
                made_with=", ".join(f"{name} {best.made_with[name]}" for name in best.made_with),
            ),
            [
                GridPoint(r.task, r.optimizer, r.steps, r.lr, score(r), r.diverged)
                for r in self.results
            ],
        )
        return folder / rates.RATES


def score(result: Result) -> float:
    """The mean final loss; infinite if a run diverged."""
    return float(result.final_loss.double().mean())


def tune(
    task: str,
    optimizer: str | OptimizerSpec,
    seeds: Sequence[int],
    steps: int,
    store: Store,
    *,
    final_batches: int | None = None,
    progress: Callable[[Cell, float], None] | None = None,
) -> Tuning:
    """Find the learning rate with the lowest :func:`score`.

    A grid of doublings about the published rate and the optimizer's usual one (or about the one in
    ``adam@0.01``) is extended until its best point lies inside; then the two points at a factor √2
    from the best are tried. Cells that ``store`` has are not computed again.
    """
    spec = optimizers.find(optimizer, task, steps)
    start, usual = spec.rate, 0
    # a rate that is given is where to start; one that an earlier tuning found is not
    if spec.baseline is not None and spec.rate.kind is not Kind.GIVEN:
        start = starting_rate(spec.name, task, steps, spec.baseline.start)
        # on a plateau a low rate looks best from nearby, and one that leaves the plateau lies far
        # off
        usual = 2 * round(math.log2(spec.baseline.start / start.lr))
    tried: dict[int, Result] = {}  # by half doublings from the start

    def try_at(point: int) -> None:
        lr = float(f"{start.lr * 2 ** (point / 2):.6g}")
        cell = Cell(task, spec.at(lr), tuple(seeds), steps, final_batches)
        tried[point] = run_cell(cell, store, progress and (lambda share: progress(cell, share)))

    def best() -> int:
        # among equals the nearest to the start; but if every rate diverged, the lowest is the
        # nearest to one that does not
        losses = {point: score(result) for point, result in tried.items()}
        return min(
            tried,
            key=lambda point: (
                losses[point],
                abs(point) if math.isfinite(losses[point]) else point,
            ),
        )

    for point in range(min(0, usual) - 2 * SPAN, max(0, usual) + 2 * SPAN + 1, 2):
        try_at(point)
    while best() in (min(tried), max(tried)) and abs(best()) < 2 * LIMIT:
        try_at(best() - 2 if best() == min(tried) else best() + 2)
    if not math.isfinite(score(tried[best()])):
        lowest, highest = (f"{tried[point].lr:g}" for point in (min(tried), max(tried)))
        raise ValueError(
            f"{spec.name} diverged on {task} at every learning rate from {lowest} to {highest}"
        )
    at_edge = best() in (min(tried), max(tried))
    middle = best()
    for point in (middle - 1, middle + 1):
        try_at(point)
    results = tuple(tried[point] for point in sorted(tried))
    return Tuning(start.lr, start.source, results, tried[best()], at_edge)
