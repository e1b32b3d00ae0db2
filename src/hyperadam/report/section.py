"""One experiment as it is shown: tables, claims with what we find, and the curves of every task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from hyperadam.experiments.paper.experiment import Claim, Experiment
from hyperadam.files.names import safe_name
from hyperadam.report import curves, measures
from hyperadam.report.claims import ClaimFindings, Finding, Results, about, chance, judge
from hyperadam.report.curves import Panel
from hyperadam.report.statistics import Contrast
from hyperadam.report.tables import Cell, Grid
from hyperadam.results import Result

#: The paper's rule and ours with bounded decay rates: a claim about one is judged for the other
#: too.
TWINS = {"hyperadam-paper": "hyperadam", "hyperadam": "hyperadam-paper"}
#: What is wrong with the file of a cell, by task, label of the optimizer and steps.
Damage = Mapping[tuple[str, str, int], str]


class Column(NamedTuple):
    """A task and a number of steps."""

    task: str
    steps: int


@dataclass(frozen=True)
class Entry:
    """What a table says of an optimizer in a column.

    Attributes:
        runs: how many there are: none if nothing was measured.
        diverged: how many of them have no number, and ``failed`` what happened to them.
        mean: over runs, if none diverged; ``text`` is how it is written, with its standard error.
        one: what these are, if not runs: meta-seeds, each with the mean of its runs.
        rest: the same of those runs that did not diverge, where some did.
        paper: the paper's number.
        best: whether its mean is the best of the column; ``tied``: it is not clearly behind.
        damaged: what is wrong with the file of its results.
    """

    runs: int = 0
    diverged: int = 0
    failed: str = ""
    mean: float | None = None
    text: str = ""
    rest: str = ""
    paper: str = ""
    best: bool = False
    tied: bool = False
    damaged: str = ""
    one: str = "run"

    @property
    def missing(self) -> bool:
        return not self.runs

    def cell(self) -> Cell:
        """As people read it."""
        if self.missing:
            text, why = ("damaged", self.damaged) if self.damaged else ("–", "not measured")
            return Cell(text, paper=self.paper, kind="missing", why=why)
        if self.diverged:
            count = f" in {self.diverged} of {self.runs}" if self.failed == "diverged" else ""
            return Cell(f"{self.failed}{count}", False, False, self.rest, self.paper, "diverged")
        return Cell(self.text, self.best, self.tied and not self.best, paper=self.paper)


class Row(NamedTuple):
    """An optimizer, with an entry for each column."""

    optimizer: str
    entries: list[Entry]


class Table(NamedTuple):
    """A measure of all optimizers on all tasks; ``one`` is what each of its numbers comes from
    where that is no meta-seed."""

    measure: str
    title: str
    lower: bool
    one: str
    columns: list[Column]
    rows: list[Row]

    @property
    def several(self) -> bool:
        """Whether its columns differ in their number of steps."""
        return len({column.steps for column in self.columns}) > 1

    def grid(self, call: Callable[[str], str] = str, always: bool = True) -> Grid:
        """As people read it. Tasks and optimizers are named by ``call``; the number of steps stands
        in every column, or, not ``always``, where columns differ in it."""
        columns = [
            call(task) + (f", {steps:,} steps" if (always and steps > 1) or self.several else "")
            for task, steps in self.columns
        ]
        rows = [[Cell(call(o)), *(entry.cell() for entry in entries)] for o, entries in self.rows]
        return Grid(self.title[:1].upper() + self.title[1:], ["optimizer", *columns], rows)


@dataclass(frozen=True)
class Section:
    """One experiment as it is shown.

    ``planned`` cells have ``measured`` results, ``short`` of them with fewer runs than planned:
    ``planned_runs`` are the numbers there are, ``meta_seeds`` how many of them variants of the rule
    should have, if there are such. ``contrasts`` are the comparisons behind the claims.
    """

    name: str
    title: str
    paper: str
    about: str
    command: str
    planned: int
    measured: int
    short: int
    planned_runs: list[int]
    runs: list[int]
    seeds: list[str]
    final_batches: list[int]
    steps: list[int]
    tables: list[Table]
    claims: list[ClaimFindings]
    panels: list[Panel]
    contrasts: dict[tuple[Any, ...], Contrast] = field(default_factory=dict)
    meta_seeds: int = 0

    @property
    def complete(self) -> bool:
        return self.measured == self.planned and not self.short

    @property
    def extent(self) -> str:
        """How much is there: ``8 of 12 cells``, and how many of them have fewer runs than
        planned."""
        runs = " or ".join(f"{n:,}" for n in self.planned_runs)
        seeds = f" of {self.meta_seeds} meta-seeds" if self.meta_seeds else ""
        fewer = f", {self.short} of them with fewer than the {runs} runs{seeds} planned"
        return f"{self.measured} of {self.planned} cells{fewer if self.short else ''}"

    @property
    def chance(self) -> str:
        return chance(self.contrasts)


def section(
    experiment: Experiment,
    results: Sequence[Result],
    quick: bool = False,
    damaged: Damage | None = None,
) -> Section:
    """An experiment with its results; the cells whose files are ``damaged`` are marked."""
    by_cell: dict[tuple[str, str, int], Result] = {(r.task, r.label, r.steps): r for r in results}
    cells = [(task, steps) for task in experiment.tasks for steps in experiment.steps]
    trained = [r for r in results if r.losses.numel()]  # and not only timed
    labels = list(dict.fromkeys([*experiment.optimizers, *(r.label for r in results)]))
    planned = {(task, label, steps) for task, steps in cells for label in experiment.optimizers}
    claims = [_claim(experiment, n, c, by_cell) for n, c in enumerate(experiment.claims, 1)]
    contrasts = {
        (found.measure, c.task, c.steps, *sorted((one.better, c.other))): c.contrast
        for found in claims
        for one in found.findings
        for c in one.judged.comparisons
        if c.contrast
    }
    return Section(
        name=experiment.name,
        title=experiment.title,
        paper=experiment.paper,
        about=experiment.about,
        command=f"hyperadam reproduce {experiment.name}" + (" --quick" if quick else ""),
        planned=len(planned),
        measured=len(planned & set(by_cell)),
        short=sum(_is_short(r, experiment) for r in trained),
        planned_runs=sorted({experiment.runs, *experiment.more_runs.values()}),
        runs=sorted({r.pooled or r.runs for r in trained}),
        seeds=sorted(
            {f"meta-seeds {ranges(r.seeds)}" if r.pooled else ranges(r.seeds) for r in trained}
        ),
        final_batches=sorted({int(r.settings.get("final_batches", r.steps)) for r in trained}),
        steps=list(experiment.steps),
        tables=[
            table(experiment, by_cell, labels, measure, damaged or {})
            for measure in shown_measures(experiment)
        ],
        claims=claims,
        panels=_panels(experiment, cells, labels, by_cell),
        contrasts=contrasts,
        meta_seeds=len(experiment.meta_seeds) if any(r.pooled for r in trained) else 0,
    )


def _is_short(result: Result, experiment: Experiment) -> bool:
    """Whether it has fewer runs than planned, or fewer meta-seeds."""
    planned = experiment.runs_of(result.task, result.label, result.steps)
    if result.pooled:
        return result.pooled < planned or result.runs < len(experiment.meta_seeds)
    return result.runs < planned


def shown_measures(experiment: Experiment) -> list[str]:
    """The measures that the experiment is about, in the order of :data:`~.measures.MEASURES`."""
    named = {claim.measure for claim in experiment.claims}
    named |= {key[3] for key in experiment.published}
    named |= {"test_loss", "test_top1", "test_top2"} if experiment.test else set()
    named |= {"final_loss"} if experiment.figures or not named else set()
    known = list(measures.MEASURES)
    return sorted(
        named, key=lambda name: (known.index(name) if name in known else len(known), name)
    )


def columns_of(experiment: Experiment, measure: str) -> list[Column]:
    """Where a measure is of interest: where the paper or a claim names it, and for losses and test
    metrics everywhere."""
    named = [(task, steps) for task, _, steps, name in experiment.published if name == measure]
    for claim in experiment.claims:
        if claim.measure == measure:
            named += about(claim, experiment.tasks, experiment.steps)
    if measure == "final_loss" or measure.startswith("test_"):
        named = [(task, steps) for task in experiment.tasks for steps in experiment.steps] + named
    return [Column(*pair) for pair in dict.fromkeys(named)]


def table(
    experiment: Experiment,
    results: Results,
    labels: Sequence[str],
    measure: str,
    damaged: Damage,
) -> Table:
    """Our numbers, the paper's, the winner of each column, and who is not clearly behind it."""
    rows = [Row(label, []) for label in labels]
    columns = columns_of(experiment, measure)
    for task, steps in columns:
        numbers: dict[str, Tensor] = {}
        for label in labels:
            result = results.get((task, label, steps))
            found = measures.values(result, measure) if result else None
            if found is not None:
                numbers[label] = found
        best = _best(numbers, measure)
        for label, entries in rows:
            published = experiment.published.get((task, label, steps, measure))
            difference = None
            if best and label in numbers and label != best:
                mine, winner = results[task, label, steps], results[task, best, steps]
                difference = measures.contrast(mine, winner, measure)
            entries.append(
                Entry(
                    **_numbers(results[task, label, steps], measure) if label in numbers else {},
                    paper="" if published is None else measures.write_published(published, measure),
                    best=label == best,
                    tied=bool(difference and difference.tested and not difference.clear),
                    damaged=damaged.get((task, label, steps), ""),
                )
            )
    what = measures.describe(measure)
    return Table(measure, what.title, what.lower, what.one, columns, rows)


def _numbers(result: Result, measure: str) -> dict[str, Any]:
    """The fields of an entry that are about our runs."""
    values = measures.values(result, measure)
    assert values is not None
    summary = measures.summarize(values)
    found: dict[str, Any] = {"runs": summary.runs, "diverged": summary.diverged, "one": result.one}
    if not summary.diverged:
        mean = float(f"{summary.mean:.6g}")
        text = measures.write(summary, measure)
        if result.pooled:
            text += f" ({measures.write_meta_seeds(values, measure)})"
        return found | {"text": text, "mean": mean}
    rest = values[values.isfinite()]
    if len(rest):
        found["rest"] = measures.write(measures.summarize(rest), measure)
    return found | {"failed": measures.describe(measure).failed}


def _best(numbers: Mapping[str, Tensor], measure: str) -> str | None:
    """The optimizer with the best mean, if there are others and it did not diverge."""
    means = {
        label: float(found.mean()) for label, found in numbers.items() if found.isfinite().all()
    }
    if len(numbers) < 2 or not means:
        return None
    sign = 1 if measures.describe(measure).lower else -1
    return min(means, key=lambda label: sign * means[label])


def _panels(
    experiment: Experiment,
    cells: Sequence[tuple[str, int]],
    labels: Sequence[str],
    results: Results,
) -> list[Panel]:
    """The figures; those of the paper come first, and stand open."""
    titles = {(figure.task, figure.steps): figure.title for figure in experiment.figures}
    panels = []
    for task, steps in sorted(cells, key=lambda cell: cell not in titles):
        there = [r for label in labels if (r := results.get((task, label, steps))) is not None]
        group = [r for r in there if r.losses.numel()]
        if group:
            name = f"{experiment.name}-{safe_name(task)}-{steps}"
            title, open = titles.get((task, steps), ""), not titles or (task, steps) in titles
            panels.append(curves.panel(name, task, group, title, open))
    return panels


def _claim(experiment: Experiment, number: int, claim: Claim, results: Results) -> ClaimFindings:
    cells = about(claim, experiment.tasks, experiment.steps)
    own = judge(claim, results, cells)
    name = TWINS.get(claim.better)
    twin = None
    if name in experiment.optimizers and name not in claim.worse:
        twin = Finding(judge(claim, results, cells, name))
    return ClaimFindings(
        f"{experiment.name}-claim-{number}",
        claim.text,
        measures.describe(claim.measure).title,
        Finding(own),
        twin,
    )


def ranges(seeds: Sequence[int]) -> str:
    """``0–99``, or a list where seeds do not follow each other."""
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))
