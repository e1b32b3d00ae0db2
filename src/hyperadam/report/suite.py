"""The suite's section: tables of scores, losses, times and rates, made from result files alone, with what is missing named."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hyperadam.experiments.suite import rivals, scores, timing
from hyperadam.experiments.suite.files import Folder
from hyperadam.experiments.suite.runs import VALIDATION
from hyperadam.experiments.suite.scores import REFERENCE, Entry, Pair, Results
from hyperadam.experiments.suite.tasks import TASKS
from hyperadam.files import write_atomically
from hyperadam.report import suite_figures

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
ABOUT = (
    "Networks as people build them, with the usual start, trained by real torch optimizers, one run at a time. No meta-training "
    "has seen these tasks. Learning rates of Adam, of Adam with linear decay (no warm-up), of SGD and of Muon are tuned for every task and "
    "horizon: at least seven rates, more while the best is at an edge, on a seed that no number here comes from. All others "
    "have nothing tuned. A run's score is the training loss of its final weights, on fixed batches that no run is trained on."
)
NOTES = (
    "A pair is a task at a horizon. Numbers are means over three seeds. Losses are level if they are within 1 %.",
    "Interquartile means are taken over pairs, of the logarithm of the ratio to tuned linear Adam; in brackets the 95 % interval of a bootstrap over "
    "tasks. Below 1 is better.",
    "Steps and seconds are those to tuned linear Adam's loss at the end (the mean of its last 5 % of steps, on curves smoothed over as many), in the place of 1 of "
    "its own; the median over pairs, ∞ for pairs in which it is never reached. Seconds are processor time on one thread, gradient and data included, "
    "measured for all optimizers of a task in turn (where that is still to be done: in the runs themselves). What tuning took is not counted against anybody.",
    "A run failed if its loss ceased to be finite, or ended above where it began.",
    "VeLOdrome's speed-up: the steps that the lower envelope of sixty published baselines needs to the same training loss, in the place of one. Those "
    "baselines do not know the horizon, and the envelope is smoothed and lags: what our own tuned constant Adam gets is the yardstick's zero.",
)


CSV = (
    "task",
    "steps",
    "parameters",
    "optimizer",
    "lr",
    "loss",
    "standard_error",
    "test",
    "last",
    "failed",
    "seconds_per_step",
    "optimizer_seconds_per_step",
    "ratio_to_linear_adam",
)


class Grid(NamedTuple):
    """A table of texts; a cell that starts with ``*`` is the best of its row."""

    title: str
    header: list[str]
    rows: list[list[str]]


def section(results: Results) -> dict[str, Any]:
    """All that the suite's part of the page shows."""
    shown = [name for name in rivals.rivals() if name in results.optimizers()]
    horizons = sorted({steps for _, steps in results.cells})
    return {
        "title": "The suite: networks as people build them",
        "about": ABOUT,
        "command": "hyperadam suite",
        "notes": list(NOTES),
        "grids": [
            headline(results, shown),
            times(results, shown),
            velodrome(results, shown),
            *(
                losses(results, shown, steps, "training loss at the end", _loss)
                for steps in horizons
            ),
            *(losses(results, shown, steps, "test loss", _test) for steps in horizons),
        ],
        "more": [cost(results, shown), rates(results), about_optimizers(shown)],
        "missing": missing(results, shown),
    }


def _loss(entry: Entry) -> float:
    return entry.loss


def _test(entry: Entry) -> float:
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
            _count(scores.ratios(results, name, _loss, other), name, other) for other in against
        ]
        for value in (_loss, _test):
            found = scores.ratios(results, name, value)
            row.append(_interval(found) if name != REFERENCE else "1")
        mine = [results.at(pair, name) for pair in results.pairs(name)]
        row.append(f"{sum(e.diverged for e in mine)} of {sum(len(e.losses) for e in mine)}")
        rows.append(row)
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
        rows.append([*row, "–" if name == REFERENCE else faster])
    return Grid("Steps and seconds to tuned linear Adam's final loss", header, rows)


def _median(numbers: Iterable[float]) -> str:
    ordered = sorted(numbers)
    half = len(ordered) // 2
    value = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    return f"{value:.2f}" if math.isfinite(value) else "∞"


def velodrome(results: Results, shown: Sequence[str]) -> Grid:
    """Interquartile means of the speed-ups over the published envelope, by horizon; those of 1,000 steps and more."""
    horizons = sorted({n for (task, n) in results.cells if n >= 1_000 and TASKS[task].envelope})
    rows = []
    for name in shown:
        found = [scores.speed_ups(results, name, steps) for steps in horizons]
        if any(found):
            rows.append([name, *map(_speed, found)])
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
        if any(cell != "–" for cell in cells):
            rows.append([task, *cells])
    return Grid(f"{title[0].upper()}{title[1:]}, {steps:,} steps", ["task", *shown], rows)


def _cell(entry: Entry | None, number: float | None, best: float) -> str:
    if entry is None or number is None:
        return "–"
    if not math.isfinite(number):
        return f"diverged in {sum(not math.isfinite(x) for x in entry.losses)}"
    return f"{'*' if number == best else ''}{number:.3g}"


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
            rows.append([task, size, f"{1e3 * rest:.2f}", *own])
    return Grid(
        "Milliseconds of a step (processor time): the gradient, then the optimizers' own part",
        ["task", "parameters", "gradient", *shown],
        rows,
    )


def rates(results: Results) -> Grid:
    """What tuning tried and chose."""
    rows = []
    for (task, steps), cell in sorted(results.cells.items(), key=_order):
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
            rows.append([task, f"{steps:,}", name, f"{chosen:.3g}{edge}", points])
    return Grid(
        "Tuned rates",
        ["task", "steps", "optimizer", "rate", "rate → loss on the tuning seed"],
        rows,
    )


def _order(item: tuple[Pair, Any]) -> tuple[int, int]:
    (task, steps), _ = item
    return list(TASKS).index(task), steps


def about_optimizers(shown: Sequence[str]) -> Grid:
    """What each name stands for."""
    known = rivals.rivals()
    return Grid("Optimizers", ["name", "what it is"], [[n, known[n].about] for n in shown])


def missing(results: Results, shown: Sequence[str]) -> list[str]:
    """What the suite has and these results have not, a line for each horizon of a task."""
    lines = []
    for name, task in TASKS.items():
        for steps in task.steps:
            there = {o for t, n, o in results.entries if (t, n) == (name, steps)}
            absent = [o for o in shown if o not in there]
            if not there:
                lines.append(f"{name}, {steps:,} steps: not computed yet")
            elif absent:
                lines.append(f"{name}, {steps:,} steps: no {', '.join(absent)}")
    return lines


def load(folder: Path) -> Results | None:
    """The results in the suite's folder; ``None`` if there are none that can be compared."""
    cells = [cell for cell in Folder(folder / "runs").all() if cell.task in TASKS]
    results = Results(cells, timing.load(folder / "times.json"))
    return results if results.pairs(REFERENCE) else None


def write_suite(folder: Path) -> dict[str, Any] | None:
    """Write ``table.md``, ``table.csv`` and the figures into the suite's folder; its section, or ``None`` if nothing is there."""
    results = load(folder)
    if results is None:
        return None
    made = section(results)
    try:
        made["figures"] = suite_figures.draw(results, folder)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        made["figures"] = []
    write_atomically(folder / "table.md", markdown(made))
    write_atomically(folder / "table.csv", as_csv(results))
    return made


def markdown(made: dict[str, Any]) -> str:
    """The section as Markdown."""
    lines = [f"# {made['title']}", "", made["about"], ""]
    lines += [f"Made by `{made['command']}`, then `{made['command']} --report`.", ""]
    for grid in made["grids"] + made["more"]:
        if grid.rows:
            lines += [f"## {grid.title}", "", _row(grid.header), _row(["---"] * len(grid.header))]
            lines += [_row([_bold(cell) for cell in row]) for row in grid.rows]
            lines.append("")
    lines += ["## How to read it", "", *(f"- {note}" for note in made["notes"]), ""]
    if made["missing"]:
        lines += ["## Not there yet", "", *(f"- {line}" for line in made["missing"]), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bold(cell: str) -> str:
    return f"**{cell[1:]}**" if cell.startswith("*") else cell


def as_csv(results: Results) -> str:
    """A line for each optimizer, task and horizon."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV)
    for (task, steps, name), e in sorted(
        results.entries.items(), key=lambda item: (_order((item[0][:2], None)), item[0][2])
    ):
        ratio = scores.ratios(results, name, _loss).get((task, steps), math.nan)
        numbers = [e.loss, e.standard_error, e.test, e.last]
        times = [e.seconds, e.optimizer_seconds, ratio]
        texts = [[f"{x:.6g}" for x in part] for part in ([e.lr, *numbers], times)]
        writer.writerow([task, steps, e.parameters, name, *texts[0], e.diverged, *texts[1]])
    return text.getvalue()
