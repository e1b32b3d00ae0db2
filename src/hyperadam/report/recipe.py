"""Whether the published numbers come from the published recipe: how far it was run, its validation
on the way, and every published number of HyperAdam beside ours."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import torch

from hyperadam.experiments.paper.experiment import Experiment
from hyperadam.experiments.paper.runner import Loaded
from hyperadam.experiments.paper.specs.columns import PAPER, PUBLISHED
from hyperadam.files import Damaged
from hyperadam.meta.settings import preset
from hyperadam.report import measures
from hyperadam.report.curves import Panel, encode
from hyperadam.report.figures import Look
from hyperadam.report.names import called
from hyperadam.report.statistics import CHANCE, t_test
from hyperadam.report.tables import Cell, Grid
from hyperadam.results import Result

#: The folder of the run, among the results, and the file with its validation.
FOLDER, FILE = "published", "validation.csv"
HEADER = ["update", "plain", "scaled"]
#: It was to be stopped early only if so many updates brought nothing on validation.
PATIENCE = 50_000
#: Half of the last digit that the paper writes, of a loss and of an accuracy.
ROUNDING, ROUNDING_OF_SHARES = 0.005, 0.00005
#: The curves of the figure.
PLAIN, SCALED = "as it is", "under Random Scaling"
LOOKS = {PLAIN: Look("#0072B2", width=2.2), SCALED: Look("#D55E00", "--", 2.2)}


class Point(NamedTuple):
    """A validation: the final loss of fresh runs of the MNIST MLP, as it is and under Random
    Scaling."""

    update: int
    plain: float
    scaled: float

    @property
    def score(self) -> float:
        """What the best weights are chosen by."""
        return (self.plain + self.scaled) / 2


class Progress(NamedTuple):
    """How far a meta-training came: so many of its updates, and its validation on the way."""

    updates: int
    planned: int
    points: tuple[Point, ...]

    @property
    def best(self) -> Point:
        return min(self.points, key=lambda point: point.score)

    @property
    def before(self) -> Point:
        """The best before the last :data:`PATIENCE` updates, or the start."""
        early = [p for p in self.points if p.update <= max(0, self.updates - PATIENCE)]
        return min(early, key=lambda point: point.score)

    @property
    def gain(self) -> float:
        """What these updates brought, as a share."""
        return 1 - self.best.score / self.before.score


def read_progress(folder: Path) -> Progress | None:
    """The progress in the folder of the run; ``None`` if there is none.

    Rows are validations; the last may have none, and says how many updates there are."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        points = tuple(Point(int(n), float(a), float(b)) for n, a, b in rows if a or b)
        updates = [int(row[0]) for row in rows]
        if header != HEADER or not points or points[0].update or updates != sorted(updates):
            raise ValueError("it is not one validation after the other, from the start on")
    except (ValueError, csv.Error) as error:
        raise Damaged(f"{path} is damaged: {error}") from error
    return Progress(updates[-1], preset(PUBLISHED).updates, points)


class Reach(Enum):
    """What becomes of a published number."""

    YES = "reached"
    NO = "not reached"
    UNCLEAR = "not clear"
    MISSING = "not measured"


class Ours(NamedTuple):
    """Our number in the place of a published one: how it is written, whether it reaches that, and
    by how much it falls short."""

    text: str
    reach: Reach
    short: str = ""

    def cells(self) -> list[Cell]:
        kind = "missing" if self.reach is Reach.MISSING else ""
        words = f"{self.reach.value}: {self.short}" if self.short else self.reach.value
        return [Cell(self.text, kind=kind), Cell(words, kind=kind)]


class Number(NamedTuple):
    """A number that the paper has for HyperAdam, and ours, by the label of the weights."""

    task: str
    steps: int
    measure: str
    published: float
    ours: Mapping[str, Ours]

    @property
    def title(self) -> str:
        what = measures.describe(self.measure).title
        return f"{called(self.task)}: {what}, {self.steps:,} steps"


@dataclass(frozen=True)
class RecipeSection:
    """The recipe as it is shown."""

    progress: Progress
    numbers: list[Number]
    title: str = "Do the published numbers come from the published recipe?"

    @property
    def sentences(self) -> list[str]:
        """How far it was run, what the last updates brought, and how many numbers are reached."""
        p = self.progress
        gain = f"{100 * p.gain:.1f} %"
        return [
            "The paper meta-trains HyperAdam from a random start, with the learner's gradients "
            f"taken as given. That recipe is run for {p.updates:,} of its {p.planned:,} updates.",
            f"Its best validation is {p.best.score:.4f}, at update {p.best.update:,}: these are "
            f"the weights {PUBLISHED}. Before the last {PATIENCE:,} updates the best was "
            f"{p.before.score:.4f}, at update {p.before.update:,}. They brought {gain}. "
            "A validation is the mean of the two curves.",
            f"{self.count(PUBLISHED)} With our own meta-training of the same rule, {PAPER}: "
            f"{self.count(PAPER)}",
        ]

    def reached(self, label: str) -> dict[Reach, int]:
        """How many published numbers end how."""
        found = [number.ours[label].reach for number in self.numbers]
        return {reach: found.count(reach) for reach in Reach}

    def count(self, label: str) -> str:
        """The same in words."""
        counts = self.reached(label)
        parts = [f"{counts[Reach.YES]} of {len(self.numbers)} published numbers are reached"]
        parts += [f"{n} {reach.value}" for reach, n in counts.items() if n and reach != Reach.YES]
        return ", ".join(parts) + "."

    @property
    def grid(self) -> Grid:
        """Every published number of HyperAdam beside ours."""
        header = ["published number of HyperAdam", "paper"]
        for label in (PUBLISHED, PAPER):
            header += [called(label), "reached?"]
        rows = [
            [
                Cell(n.title),
                Cell(measures.write_published(n.published, n.measure)),
                *n.ours[PUBLISHED].cells(),
                *n.ours[PAPER].cells(),
            ]
            for n in self.numbers
        ]
        return Grid("Published numbers", header, rows)

    @property
    def panels(self) -> list[Panel]:
        """The figure: validation by update."""
        points = self.progress.points
        curves = {PLAIN: [p.plain for p in points], SCALED: [p.scaled for p in points]}
        data = {
            "first": points[0].update,
            "size": points[1].update - points[0].update if len(points) > 1 else 1,
            "x": "meta-update",
            "y": "final loss on validation",
            "series": [
                {"name": name, "runs": 1, "diverged": 0, "mean": encode(torch.tensor(values))}
                for name, values in curves.items()
            ],
            "shown": list(curves),
        }
        title = (
            f"The published recipe: {self.progress.updates:,} of {self.progress.planned:,} updates"
        )
        ends = "; ".join(f"{name} {values[-1]:.3g}" for name, values in curves.items())
        alt = f"Final loss of the MNIST MLP on validation, by meta-update. Last: {ends}."
        return [Panel("recipe-validation", title, True, alt, data)]


def recipe_section(
    found: Sequence[tuple[Experiment, Loaded]], folder: Path
) -> RecipeSection | None:
    """The section of the run in ``folder``; ``None`` if there is no run."""
    progress = read_progress(folder)
    return RecipeSection(progress, numbers(found)) if progress else None


def numbers(found: Sequence[tuple[Experiment, Loaded]]) -> list[Number]:
    """Every number that the paper has for HyperAdam in experiments with the column."""
    made = []
    for experiment, loaded in found:
        if PUBLISHED not in experiment.optimizers:
            continue
        results = {(r.task, r.label, r.steps): r for r in loaded.results}
        for (task, label, steps, measure), number in experiment.published.items():
            if label == PAPER:
                ours = {
                    name: reach(results.get((task, name, steps)), measure, number)
                    for name in (PUBLISHED, PAPER)
                }
                made.append(Number(task, steps, measure, number, ours))
    return made


def reach(result: Result | None, measure: str, number: float) -> Ours:
    """Whether a result reaches a published number.

    It does if its mean, rounded as the paper rounds, is as good. It does not if a run diverged, or
    if Student's t-test finds its mean to be worse than all that rounds to the number, at 95 %.
    """
    values = measures.values(result, measure) if result else None
    if result is None or values is None:
        return Ours("–", Reach.MISSING)
    about, summary = measures.describe(measure), measures.summarize(values)
    if summary.diverged:
        count = f"{about.failed} in {summary.diverged} of {summary.runs}"
        return Ours(count, Reach.NO)
    text = measures.write(summary, measure)
    sign = 1.0 if about.lower else -1.0
    bound = number + sign * (ROUNDING_OF_SHARES if about.percent else ROUNDING)
    beyond = [sign * (x - bound) for x in values.tolist()]
    if sign * (summary.mean - bound) <= 0:
        return Ours(text, Reach.YES)
    if len(beyond) < 2 or t_test(beyond) > CHANCE:
        return Ours(text, Reach.UNCLEAR)
    return Ours(text, Reach.NO, _short(summary.mean, number, about.percent))


def _short(mean: float, number: float, percent: bool) -> str:
    """By how much a mean is worse than a published number."""
    if percent:
        return f"{100 * (number - mean):.1f} points lower"
    share = mean / number - 1
    return f"{share:.0%} higher".replace("%", " %") if share < 9 else f"{share:.0f} times higher"
