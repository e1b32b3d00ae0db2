"""The paper beside our results: all that the page shows, as one typed document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hyperadam.experiments.paper.experiment import Experiment
from hyperadam.experiments.paper.runner import Loaded
from hyperadam.experiments.training.rates import (
    GRIDS,
    RATES,
    GridPoint,
    TunedRate,
    read_grids,
    read_rates,
)
from hyperadam.report.claims import Verdict
from hyperadam.report.figures import Look, choose_looks
from hyperadam.report.section import Section, chance, ranges, section
from hyperadam.results import Result

#: The experiment whose first table opens the page.
HEADLINE = "activations"


class Version(NamedTuple):
    """A set of versions, and how many results were made with it."""

    made_with: str
    results: int


class UsedWeights(NamedTuple):
    """Weights that made results: the rule, its options that are not at their defaults, a hash."""

    optimizer: str
    rule: str
    step_size: float
    options: str
    sha256: str


class UsedRate(NamedTuple):
    """The learning rate of a hand-made optimizer on a task, and the grid that it was chosen
    from."""

    task: str
    steps: int
    optimizer: str
    lr: float
    source: str
    seeds: str = ""
    grid: str = ""


class Document(NamedTuple):
    """Everything that the page shows; ``suite`` is the suite's section, if there is one."""

    sections: list[Section]
    counts: dict[Verdict, int]
    versions: list[Version]
    weights: list[UsedWeights]
    rates: list[UsedRate]
    looks: dict[str, Look]
    quick: bool = False
    suite: dict[str, Any] | None = None

    @property
    def headline(self) -> Section | None:
        """The experiment that opens the page."""
        named = (part for part in self.sections if part.name == HEADLINE)
        return next(named, self.sections[0] if self.sections else None)

    @property
    def chance(self) -> str:
        contrasts = [pair for part in self.sections for pair in part.contrasts.items()]
        return chance(dict(contrasts))


def document(
    found: Sequence[tuple[Experiment, Loaded]],
    tuning: Path | None = None,
    quick: bool = False,
    suite: dict[str, Any] | None = None,
) -> Document:
    """The document of experiments with their results; ``tuning`` is the folder of tuned rates."""
    sections = [section(e, loaded.results, quick, loaded.damaged) for e, loaded in found]
    verdicts = Counter(claim.own.verdict for part in sections for claim in part.claims)
    everything = [result for _, loaded in found for result in loaded.results]
    return Document(
        sections,
        {verdict: verdicts[verdict] for verdict in Verdict},
        versions(everything),
        weights(everything),
        rates(everything, tuning),
        choose_looks(everything),
        quick,
        suite,
    )


def versions(results: Iterable[Result]) -> list[Version]:
    """Every set of versions that computed results, and how many it computed."""
    counts = Counter(
        ", ".join(f"{name} {version}" for name, version in sorted(result.made_with.items()))
        for result in results
    )
    return [Version(*pair) for pair in sorted(counts.items())]


def weights(results: Iterable[Result]) -> list[UsedWeights]:
    """Every set of weights that was used."""
    found = {}
    for r in results:
        if "weights" in r.settings:
            config = r.settings.get("config", {})
            options = ", ".join(f"{name}={value}" for name, value in config.items()) or "none"
            found[r.label, r.settings["weights"]] = UsedWeights(
                r.label, r.settings.get("rule", ""), r.lr, options, r.settings["weights"]
            )
    return [found[key] for key in sorted(found)]


def rates(results: Iterable[Result], folder: Path | None) -> list[UsedRate]:
    """The learning rate of every hand-made optimizer on every task, with the grid in ``folder``."""
    stored = read_rates(folder / RATES) if folder else ()
    points = read_grids(folder / GRIDS) if folder else ()
    found = {}
    for r in results:
        if "weights" not in r.settings and r.losses.numel():
            rate = UsedRate(r.task, r.steps, r.label, r.lr, r.lr_source)
            found[rate[:3]] = _with_grid(rate, r.optimizer, stored, points)
    return [found[key] for key in sorted(found)]


def _with_grid(
    rate: UsedRate, optimizer: str, stored: Sequence[TunedRate], points: Sequence[GridPoint]
) -> UsedRate:
    """The rate with the grid that it comes from, if there is one."""
    for tuned in stored:
        if (tuned.task, tuned.optimizer, tuned.lr) == (rate.task, optimizer, rate.lr):
            grid = "  ".join(_point(point) for point in points if point[:3] == tuned[:3])
            seeds = ranges(range(tuned.first_seed, tuned.first_seed + tuned.runs))
            edge = ", at the edge of the grid" if tuned.at_edge else ""
            return rate._replace(source=rate.source + edge, seeds=seeds, grid=grid)
    return rate


def _point(point: GridPoint) -> str:
    lost = f"{point.diverged} diverged"
    return f"{point.lr:.3g} → {f'{point.score:.4g}' if math.isfinite(point.score) else lost}"
