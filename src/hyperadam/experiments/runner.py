"""The jobs of experiments, where their results are kept, and results as tables and pages want them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hyperadam import tasks
from hyperadam.experiments import timing
from hyperadam.experiments.atomic import safe_name
from hyperadam.experiments.cells import Cell, Store
from hyperadam.experiments.experiment import Experiment, labels
from hyperadam.experiments.jobs import Job
from hyperadam.experiments.results import Result, merge
from hyperadam.experiments.training import describe
from hyperadam.experiments.variant_jobs import VariantJob
from hyperadam.experiments.variants import VARIANTS


class Place(NamedTuple):
    """Where things are under the folder of results: those of the quick version are apart, tuned rates serve both."""

    root: Path
    quick: bool = False

    @property
    def folder(self) -> Path:
        return self.root / "quick" if self.quick else self.root

    @property
    def store(self) -> Store:
        """The cells of all experiments: what two of them need is computed once."""
        return Store(self.folder / "cells")

    @property
    def tuning(self) -> Path:
        return self.root / "tuning"

    @property
    def variants(self) -> Path:
        return self.folder / "ablations"

    @property
    def time(self) -> Path:
        return self.folder / "time" / "time.json"

    def cells(self, experiment: Experiment, runs: int | None = None) -> list[Cell]:
        """The experiment's cells, with the rates and weights that are here."""
        return experiment.cells(self.quick, runs, self.tuning, self.variants)


@dataclass(frozen=True)
class CellJob(Job):
    """Compute a cell; ``folder`` is where its result is to be kept."""

    cell: Cell
    folder: Path

    @property
    def label(self) -> str:
        seeds = f", seed {self.cell.seeds[0]}" if len(self.cell.seeds) == 1 else ""
        return f"{self.cell.task}  {self.cell.optimizer.label}  {self.cell.steps:,} steps{seeds}"

    @property
    def work(self) -> float:
        return self.cell.work

    def compute(self, folder: Path, progress: Callable[[float], None]) -> Result:
        return Store(folder / "cells").run(self.cell, progress)

    def keep(self, value: Result) -> None:
        path = Store(self.folder).path(self.cell)
        if not path.is_file():
            value.save(path)


def parts(cell: Cell) -> list[Cell]:
    """What a cell is computed as: a large learner's runs one by one, which spreads them over processes, and lets experiments
    with other numbers of runs share them; else all at once. A run's numbers do not depend on its company."""
    if tasks.get(cell.task).runs_at_once > 1:
        return [cell]
    return [replace(cell, seeds=(seed,)) for seed in cell.seeds]


def variant_jobs(experiments: Iterable[Experiment], place: Place) -> list[VariantJob]:
    """The variants that have to be meta-trained, each once."""
    wanted = {
        VARIANTS[label].file: VARIANTS[label]
        for label in labels(list(experiments))
        if label in VARIANTS
    }
    chosen = (variant.coarse() if place.quick else variant for variant in wanted.values())
    return [job for variant in chosen if not (job := VariantJob(variant, place.variants)).done]


def cell_jobs(
    experiments: Iterable[Experiment], place: Place, runs: int | None = None
) -> list[CellJob]:
    """The cells that have to be computed, each once, of every optimizer that can be had."""
    store = place.store
    experiments = list(experiments)
    stale = {job.variant.file for job in variant_jobs(experiments, place)}
    found = {}
    for experiment in experiments:
        for cell in place.cells(experiment, runs):
            if cell.optimizer.label in VARIANTS and cell.optimizer.name in stale:
                continue  # weights of other settings are there: the right ones come first
            for part in parts(cell):
                path = store.path(part)
                if not path.is_file():
                    found[path] = CellJob(part, store.folder)
    return list(found.values())


def load(
    experiment: Experiment, store: Store, quick: bool = False, runs: int | None = None
) -> list[Result]:
    """The results of an experiment that are in ``store``, which is the folder ``cells`` of a :class:`Place`, in the order of
    its cells. Where a cell has been computed with other runs than asked for, the one with the most runs is taken."""
    folder = store.folder.parent
    place = Place(folder.parent if quick else folder, quick)
    results = [
        result
        for cell in place.cells(experiment, runs)
        if (result := gather(store, cell)) is not None
    ]
    return timing.attach(results, place.time) if experiment.timed else results


def gather(store: Store, cell: Cell) -> Result | None:
    """A cell's result: of the cell itself, of its parts, or else of as many other runs as there are from seed 0 on."""
    if (whole := store.find(cell)) is not None:
        return whole
    found = [result for part in parts(cell) if (result := store.find(part)) is not None]
    if found:
        return merge(found)
    like = _but_seeds(cell)
    others = []
    for path in store.folder.glob(
        f"{safe_name(cell.task)}.{safe_name(cell.optimizer.name)}.{cell.steps}.*.json"
    ):
        result = Result.load(path)
        if result.settings | {"seeds": 0} == like and result.settings["seeds"] == list(
            range(result.runs)
        ):
            others.append(result)
    if not others:
        return None
    most = max(others, key=lambda result: result.runs)
    return replace(most, label=cell.optimizer.label, lr_source=cell.optimizer.lr_source)


def _but_seeds(cell: Cell) -> dict[str, object]:
    task = tasks.get(cell.task)
    settings = describe(
        cell.task, task, cell.optimizer, cell.seeds, cell.steps, cell.final_batches, cell.test
    )
    return settings | {"seeds": 0}


def unavailable(experiments: Sequence[Experiment], place: Place) -> dict[str, str]:
    """The optimizers of experiments that cannot be had, each once, and why."""
    found: dict[str, str] = {}
    for experiment in experiments:
        found |= experiment.unavailable(place.variants)
    return found


def untuned(experiments: Iterable[Experiment], place: Place) -> int:
    """How many cells have a hand-made optimizer whose rate is not tuned."""
    cells = (cell for experiment in experiments for cell in place.cells(experiment))
    return sum(
        cell.optimizer.baseline is not None and not cell.optimizer.lr_source.startswith("tuned")
        for cell in cells
    )
