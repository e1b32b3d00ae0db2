"""The jobs of experiments, where their results are kept, and results as tables and pages want
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hyperadam import tasks
from hyperadam.experiments.jobs import Job
from hyperadam.experiments.paper import timing
from hyperadam.experiments.paper.experiment import Experiment, labels
from hyperadam.experiments.paper.variant_jobs import VariantJob
from hyperadam.experiments.paper.variants import VARIANTS, Variant
from hyperadam.experiments.training.cells import Cell, find_result, run_cell
from hyperadam.experiments.training.rates import Kind
from hyperadam.files import Damaged
from hyperadam.results import Result, Store, pool, settings_key


class Place(NamedTuple):
    """Where things are under the folder of results: those of the quick version are apart, tuned
    rates serve both."""

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
        name = self.cell.optimizer.label
        if name in VARIANTS and self.cell.optimizer.name != VARIANTS[name].file:
            name = self.cell.optimizer.name  # which has the meta-seed in it
        return f"{self.cell.task}  {name}  {self.cell.steps:,} steps{seeds}"

    @property
    def work(self) -> float:
        return self.cell.work

    def compute(self, folder: Path, progress: Callable[[float], None]) -> Result:
        return run_cell(self.cell, Store(folder / "cells"), progress)

    def keep(self, value: Result) -> None:
        store = Store(self.folder)
        if store.missing(value.settings, value.seeds):
            store.add(value)


def variant_jobs(experiments: Iterable[Experiment], place: Place) -> list[VariantJob]:
    """The variants that have to be meta-trained, each once, all from the first meta-seed before
    any from the next."""
    wanted: dict[str, Variant] = {}
    planned = [e.coarse() if place.quick else e for e in experiments]
    for meta_seed in dict.fromkeys(seed for e in planned for seed in e.meta_seeds):
        for label in labels([e for e in planned if meta_seed in e.meta_seeds]):
            if label in VARIANTS:
                made = VARIANTS[label].at(meta_seed)
                wanted[made.file] = made
    chosen = (variant.coarse() if place.quick else variant for variant in wanted.values())
    return [job for variant in chosen if not (job := VariantJob(variant, place.variants)).done]


def cell_jobs(
    experiments: Iterable[Experiment], place: Place, runs: int | None = None
) -> list[CellJob]:
    """The runs that have to be computed, each once, of every optimizer that can be had.

    Runs of a large learner are jobs of their own, which spreads them over processes; others are
    computed together. A run's numbers do not depend on its company. A cell whose file is damaged
    is left alone: :func:`damaged` names it.
    """
    store = place.store
    experiments = list(experiments)
    stale = {job.variant.file for job in variant_jobs(experiments, place)}
    planned: dict[str, set[int]] = {}
    jobs = []
    for cell in _cells(experiments, place, runs):
        if cell.optimizer.label in VARIANTS and cell.optimizer.name in stale:
            continue  # weights of other settings are there: the right ones come first
        settings = cell.settings()
        here = planned.setdefault(settings_key(settings), set())
        wanted = [seed for seed in cell.seeds if seed not in here]
        try:
            missing = store.missing(settings, wanted)
        except Damaged:
            continue
        here.update(missing)
        alone = tasks.get(cell.task).runs_at_once == 1
        groups = [(seed,) for seed in missing] if alone else [missing] if missing else []
        jobs += [CellJob(replace(cell, seeds=seeds), store.folder) for seeds in groups]
    return jobs


def damaged(
    experiments: Iterable[Experiment], place: Place, runs: int | None = None
) -> dict[str, str]:
    """The cells whose files are damaged, by their label, and what is wrong with each file."""
    found: dict[str, str] = {}
    for cell in _cells(experiments, place, runs):
        try:
            place.store.missing(cell.settings(), cell.seeds)
        except Damaged as error:
            found[CellJob(cell, place.store.folder).label] = str(error)
    return found


def _cells(experiments: Iterable[Experiment], place: Place, runs: int | None) -> Iterator[Cell]:
    for experiment in experiments:
        yield from place.cells(experiment, runs)


class Loaded(NamedTuple):
    """What there is of an experiment.

    Attributes:
        results: in the order of its cells; of each cell those runs that are there. A variant's are
            pooled: a row for each meta-seed.
        damaged: what is wrong with the file of a cell, by task, label of the optimizer and steps.
    """

    results: list[Result]
    damaged: dict[tuple[str, str, int], str]


def load(
    experiment: Experiment, store: Store, quick: bool = False, runs: int | None = None
) -> Loaded:
    """The results of an experiment that are in ``store``, the folder ``cells`` of a
    :class:`Place`."""
    folder = store.folder.parent
    place = Place(folder.parent if quick else folder, quick)
    damage = {}
    there: dict[tuple[str, str, int], dict[int, Result]] = {}
    for cell in place.cells(experiment, runs):
        try:
            found = find_result(cell, store)
        except Damaged as error:
            damage[cell.task, cell.optimizer.label, cell.steps] = str(error)
            continue
        if found is not None:
            rows = there.setdefault((found.task, found.label, found.steps), {})
            rows[_meta_seed(cell, experiment)] = found
    results = [
        pool(rows) if label in VARIANTS else rows[0] for (_, label, _), rows in there.items()
    ]
    if experiment.timed:
        try:
            results = timing.attach(results, place.time)
        except Damaged as error:
            for task in experiment.timed:
                damage |= {(task, label, 1): str(error) for label in experiment.optimizers}
    return Loaded(results, damage)


def _meta_seed(cell: Cell, experiment: Experiment) -> int:
    """From which meta-seed the cell's variant is; 0 for what is no variant."""
    made = VARIANTS.get(cell.optimizer.label)
    if made is None:
        return 0
    return next(n for n in experiment.meta_seeds if made.at(n).file == cell.optimizer.name)


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
        cell.optimizer.baseline is not None and cell.optimizer.rate.kind is not Kind.TUNED
        for cell in cells
    )
