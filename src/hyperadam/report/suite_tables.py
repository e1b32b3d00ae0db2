"""The suite's tables: scores, losses, times and rates, made from result files alone, with what is
missing named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from hyperadam.experiments.suite import rivals, scores
from hyperadam.experiments.suite.runs import VALIDATION
from hyperadam.experiments.suite.scores import REFERENCE, Entry, Pair, Results
from hyperadam.experiments.suite.tasks import TASKS
from hyperadam.report.tables import Cell, Grid, texts

#: What an optimizer's losses are counted against, and what the columns are called.
AGAINST = {
    "adam": "tuned constant Adam",
    "adam-linear": "tuned linear Adam",
    "adamw-cosine": "AdamW 1e-3, cosine",
    "schedule-free": "schedule-free AdamW",
    "prodigy-cosine": "Prodigy, cosine",
    "muon": "tuned Muon",
}
#: Networks from this size on are looked at apart where seconds are compared.
LARGE = 100_000


class Missing(NamedTuple):
    """A task at a horizon, and whose results it lacks; of nobody: it has none."""

    task: str
    steps: int
    optimizers: list[str]

    def text(self, call: Callable[[str], str] = str) -> str:
        """A line about it, in which ``call`` names tasks and optimizers."""
        absent = ", ".join(map(call, self.optimizers))
        lack = f"no {absent}" if absent else "not computed yet"
        return f"{call(self.task)}, {self.steps:,} steps: {lack}"


def loss_of(entry: Entry) -> float:
    return entry.loss


def test_of(entry: Entry) -> float:
    return entry.test


def headline(results: Results, shown: Sequence[str]) -> Grid:
    """A row for each optimizer: how often it is at or below the others, and how far."""
    against = [name for name in AGAINST if name in shown]
    header = ["optimizer", "pairs", *(f"at or below {AGAINST[name]}" for name in against)]
    header += [
        "training loss / tuned linear Adam's",
        "test loss / tuned linear Adam's",
        "runs failed",
    ]
    rows = []
    for name in shown:
        row = [name, str(len(results.pairs(name)))]
        row += [
            _count(scores.ratios(results, name, loss_of, other), name, other) for other in against
        ]
        for value in (loss_of, test_of):
            found = scores.ratios(results, name, value)
            row.append(_interval(found) if name != REFERENCE else "1")
        mine = [results.at(pair, name) for pair in results.pairs(name)]
        row.append(f"{sum(e.diverged for e in mine)} of {sum(len(e.losses) for e in mine)}")
        rows.append(texts(*row))
    return Grid("Scores", header, rows)


def _count(found: dict[Pair, float], name: str, other: str) -> str:
    if name == other or not found:
        return "–"
    return f"{scores.count_level(found.values())} of {len(found)}"


def _interval(found: dict[Pair, float]) -> str:
    if not found:
        return "–"
    value, low, high = scores.middle(found)
    return _ratio(value) + (f" ({_ratio(low)} to {_ratio(high)})" if math.isfinite(low) else "")


def _ratio(number: float) -> str:
    return f"{number:.3g}" if math.isfinite(number) else "∞"


def times(results: Results, shown: Sequence[str]) -> Grid:
    """Steps and seconds to tuned linear Adam's final loss."""
    header = ["optimizer", "pairs that get there", "steps", "seconds"]
    header += [f"fewer seconds, of pairs with {LARGE:,} parameters and more"]
    rows = []
    for name in shown:
        steps = scores.steps_to_reference(results, name)
        seconds = scores.steps_to_reference(results, name, lambda entry: entry.seconds)
        if not steps:
            continue
        large = {p: s for p, s in seconds.items() if results.at(p, name).parameters >= LARGE}
        there = sum(math.isfinite(ratio) for ratio in steps.values())
        row = [name, f"{there} of {len(steps)}", *(_median(x.values()) for x in (steps, seconds))]
        faster = f"{sum(ratio < 1 for ratio in large.values())} of {len(large)}"
        rows.append(texts(*row, "–" if name == REFERENCE else faster))
    return Grid("Steps and seconds to tuned linear Adam's final loss", header, rows)


def _median(numbers: Iterable[float]) -> str:
    ordered = sorted(numbers)
    half = len(ordered) // 2
    value = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    return f"{value:.2f}" if math.isfinite(value) else "∞"


def velodrome(results: Results, shown: Sequence[str]) -> Grid:
    """Interquartile means of the speed-ups over the published envelope, by horizon; those of 1,000
    steps and more."""
    horizons = sorted({n for (task, n) in results.cells if n >= 1_000 and TASKS[task].envelope})
    rows = []
    for name in shown:
        found = [scores.speed_ups(results, name, steps) for steps in horizons]
        if any(found):
            rows.append(texts(name, *map(_speed, found)))
    return Grid(
        "Speed-up over VeLOdrome's envelope, interquartile mean over tasks",
        ["optimizer", *(f"{steps:,} steps" for steps in horizons)],
        rows,
    )


def _speed(found: dict[str, tuple[float, bool]]) -> str:
    if not found:
        return "–"
    middle = scores.interquartile_mean([value for value, _ in found.values()])
    least = "at least " if not all(exact for _, exact in found.values()) else ""
    return f"{least}{middle:.2f} ({len(found)} tasks)"


def losses(
    results: Results,
    shown: Sequence[str],
    steps: int,
    title: str,
    value: Callable[[Entry], float],
) -> Grid:
    """A row for each task at one horizon."""
    rows = []
    for task in TASKS:
        if (task, steps) not in results.cells:
            continue
        found = {
            name: results.entries[(task, steps, name)]
            for name in shown
            if (task, steps, name) in results.entries
        }
        numbers = {name: value(entry) for name, entry in found.items()}
        best = min(numbers.values(), default=math.inf)
        cells = [_cell(found.get(name), numbers.get(name), best) for name in shown]
        if found:
            rows.append([Cell(task), *cells])
    return Grid(f"{title[0].upper()}{title[1:]}, {steps:,} steps", ["task", *shown], rows)


def _cell(entry: Entry | None, number: float | None, best: float) -> Cell:
    if entry is None or number is None:
        return Cell("–", kind="missing", why="not measured")
    if not math.isfinite(number):
        count = sum(not math.isfinite(x) for x in entry.losses)
        return Cell(f"diverged in {count}", kind="diverged")
    return Cell(f"{number:.3g}", best=number == best)


def cost(results: Results, shown: Sequence[str]) -> Grid:
    """Milliseconds of a step: the gradient with its data, and each optimizer's own part."""
    rows = []
    for task in TASKS:
        found: dict[str, Entry] = {}
        for steps in sorted(n for t, n in results.cells if t == task):
            for name in shown:  # of the longest horizon, where it is measured best
                if (entry := results.entries.get((task, steps, name))) is not None:
                    found[name] = entry
        if found:
            rest = sorted(e.seconds - e.optimizer_seconds for e in found.values())[len(found) // 2]
            size = f"{next(iter(found.values())).parameters:,}"
            own = [
                f"{1e3 * found[name].optimizer_seconds:.2f}" if name in found else "–"
                for name in shown
            ]
            rows.append(texts(task, size, f"{1e3 * rest:.2f}", *own))
    return Grid(
        "Milliseconds of a step (processor time): the gradient, then the optimizers' own part",
        ["task", "parameters", "gradient", *shown],
        rows,
    )


def rates(results: Results) -> Grid:
    """What tuning tried and chose."""
    rows = []
    for (task, steps), cell in sorted(results.cells.items(), key=order):
        for name, settings in cell.optimizers.items():
            chosen = scores.rate(cell, name)
            if "first_rates" not in settings or chosen is None:
                continue
            tried = sorted(
                (run.lr, run.loss)
                for run in cell.runs.values()
                if run.optimizer == name and run.seed == VALIDATION
            )
            edge = ", at the edge" if chosen in (tried[0][0], tried[-1][0]) else ""
            points = "  ".join(
                f"{lr:.3g} → {loss:.3g}" if math.isfinite(loss) else f"{lr:.3g} → diverged"
                for lr, loss in tried
            )
            rows.append(texts(task, f"{steps:,}", name, f"{chosen:.3g}{edge}", points))
    return Grid(
        "Tuned rates",
        ["task", "steps", "optimizer", "rate", "rate → loss on the tuning seed"],
        rows,
    )


def order(item: tuple[Pair, Any]) -> tuple[int, int]:
    (task, steps), _ = item
    return list(TASKS).index(task), steps


def about_optimizers(shown: Sequence[str]) -> Grid:
    """What each name stands for."""
    known = rivals.rivals()
    return Grid("Optimizers", ["name", "what it is"], [texts(n, known[n].about) for n in shown])


def missing(results: Results, shown: Sequence[str]) -> list[Missing]:
    """What the suite has and these results have not, an entry for each horizon of a task."""
    found = []
    for name, task in TASKS.items():
        for steps in task.steps:
            there = {o for t, n, o in results.entries if (t, n) == (name, steps)}
            absent = [o for o in shown if o not in there] if there else []
            if absent or not there:
                found.append(Missing(name, steps, absent))
    return found
