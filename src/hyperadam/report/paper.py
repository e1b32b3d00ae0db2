"""The paper beside our results: all that the page shows, as one typed document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

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
from hyperadam.report.claims import ClaimFindings, Verdict, chance
from hyperadam.report.figures import Look, choose_looks
from hyperadam.report.recipe import LOOKS as RECIPE_LOOKS
from hyperadam.report.recipe import RecipeSection
from hyperadam.report.section import Section, ranges, section
from hyperadam.report.suite import SuiteSection
from hyperadam.report.suite_figures import look
from hyperadam.results import Result


class Version(NamedTuple):
    """A set of versions, and how many results were made with it."""

    made_with: str
    results: int


class Protocol(NamedTuple):
    """How an experiment was run: lengths, runs, seeds, and how much of it there is."""

    experiment: str
    steps: str
    runs: str
    seeds: str
    final_batches: str
    measured: str


class UsedWeights(NamedTuple):
    """Weights that made results: the rule, its options that are not at their defaults, a hash."""

    optimizer: str
    rule: str
    step_size: str
    options: str
    sha256: str


class UsedRate(NamedTuple):
    """The learning rate of a hand-made optimizer on a task, and the grid that it was chosen
    from."""

    task: str
    steps: str
    optimizer: str
    lr: str
    source: str
    seeds: str = "–"
    grid: str = "–"


class Document(NamedTuple):
    """Everything that the page shows; ``suite`` is the suite's section, if there is one, and
    ``recipe`` that of the published recipe."""

    sections: list[Section]
    versions: list[Version]
    weights: list[UsedWeights]
    rates: list[UsedRate]
    looks: dict[str, Look]
    quick: bool = False
    suite: SuiteSection | None = None
    recipe: RecipeSection | None = None

    @property
    def by_verdict(self) -> dict[Verdict, list[ClaimFindings]]:
        """All claims, by what becomes of them."""
        claims = [claim for part in self.sections for claim in part.claims]
        return {v: [c for c in claims if c.own.verdict is v] for v in Verdict}

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many claims there are of each verdict."""
        return {verdict: len(claims) for verdict, claims in self.by_verdict.items()}

    @property
    def protocol(self) -> list[Protocol]:
        return [_protocol(part) for part in self.sections]

    @property
    def chance(self) -> str:
        contrasts = [pair for part in self.sections for pair in part.contrasts.items()]
        return chance(dict(contrasts))


def document(
    found: Sequence[tuple[Experiment, Loaded]],
    tuning: Path | None = None,
    quick: bool = False,
    suite: SuiteSection | None = None,
    recipe: RecipeSection | None = None,
) -> Document:
    """The document of experiments with their results; ``tuning`` is the folder of tuned rates."""
    sections = [section(e, loaded.results, quick, loaded.damaged) for e, loaded in found]
    everything = [result for _, loaded in found for result in loaded.results]
    return Document(
        sections,
        versions(everything),
        weights(everything),
        rates(everything, tuning),
        choose_looks(everything)
        | {name: look(name) for name in (suite.optimizers if suite else ())}
        | (RECIPE_LOOKS if recipe else {}),
        quick,
        suite,
        recipe,
    )


def _protocol(part: Section) -> Protocol:
    def numbers(found: Iterable[int]) -> str:
        return ", ".join(f"{n:,}" for n in found)

    runs = f"{numbers(part.runs) or 'none'} (planned: {numbers(part.planned_runs)})"
    seeds, batches = "; ".join(part.seeds), numbers(part.final_batches)
    return Protocol(part.title, numbers(part.steps), runs, seeds, batches, part.extent)


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
            for sha256 in r.settings["weights"].split():  # one for each meta-seed
                found[r.label, sha256] = UsedWeights(
                    r.label, r.settings.get("rule", ""), f"{r.lr:g}", options, sha256
                )
    return [found[key] for key in sorted(found)]


def rates(results: Iterable[Result], folder: Path | None) -> list[UsedRate]:
    """The learning rate of every hand-made optimizer on every task, with the grid in ``folder``."""
    stored = read_rates(folder / RATES) if folder else ()
    points = read_grids(folder / GRIDS) if folder else ()
    found = {}
    for r in results:
        if "weights" not in r.settings and r.losses.numel():
            found[r.task, r.steps, r.label] = _used_rate(r, stored, points)
    return [found[key] for key in sorted(found)]


def _used_rate(r: Result, stored: Sequence[TunedRate], points: Sequence[GridPoint]) -> UsedRate:
    """A result's rate, with the grid that it comes from, if there is one."""
    rate = UsedRate(r.task, f"{r.steps:,}", r.label, f"{r.lr:.4g}", r.lr_source)
    for tuned in stored:
        if (tuned.task, tuned.optimizer, tuned.lr) == (r.task, r.optimizer, r.lr):
            grid = "  ".join(_point(point) for point in points if point[:3] == tuned[:3])
            seeds = ranges(range(tuned.first_seed, tuned.first_seed + tuned.runs))
            edge = ", at the edge of the grid" if tuned.at_edge else ""
            return rate._replace(source=rate.source + edge, seeds=seeds, grid=grid)
    return rate


def _point(point: GridPoint) -> str:
    lost = f"{point.diverged} diverged"
    return f"{point.lr:.3g} → {f'{point.score:.4g}' if math.isfinite(point.score) else lost}"
