"""The suite's figures on the page: curves over steps and seconds, sensitivity to the rate, and dot
plots of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from hyperadam.experiments.suite import scores
from hyperadam.experiments.suite.runs import FACTORS, VARIED, VARIED_STEPS, VARIED_TASKS
from hyperadam.experiments.suite.scores import REFERENCE, Entry, Results
from hyperadam.experiments.suite.tasks import TASKS
from hyperadam.report.curves import Panel, encode, first_shown
from hyperadam.report.dots import DotPlot, Number, dot_plot
from hyperadam.report.names import called
from hyperadam.report.suite_tables import loss_of

#: Whose speed-ups are drawn: more would hide each other.
FAST = ("hyperadam2", "hyperadam", "adam", "adam-linear", "schedule-free", "muon")


def panels(results: Results, shown: Sequence[str]) -> list[Panel]:
    """Training curves of every task at every horizon; those whose rate is varied stand open."""
    made = []
    for task in TASKS:
        for steps in sorted((n for t, n in results.cells if t == task), reverse=True):
            entries = [
                e for name in shown if (e := results.entries.get((task, steps, name))) is not None
            ]
            if entries:
                open = task in VARIED_TASKS and steps == VARIED_STEPS
                made.append(_panel(task, steps, entries, open))
    return made


def _panel(task: str, steps: int, entries: Sequence[Entry], open: bool) -> Panel:
    size = steps / len(entries[0].curve)
    series: list[dict[str, Any]] = [
        {
            "name": e.optimizer,
            "runs": len(e.losses),
            "diverged": sum(not math.isfinite(x) for x in e.losses),
            "mean": encode(torch.from_numpy(e.curve)),
            "seconds": float(f"{e.seconds:.4g}"),
        }
        for e in entries
    ]
    shown = first_shown({e.optimizer: e.loss for e in entries})
    data = {"first": (size + 1) / 2, "size": size, "series": series, "shown": shown}
    ends = "; ".join(f"{called(e.optimizer)} {e.loss:.3g}" for e in entries)
    alt = f"Training loss by step on {called(task)}. Loss at the end: {ends}."
    return Panel(f"suite-{task}-{steps}", f"{called(task)}, {steps:,} steps", open, alt, data)


def sensitivity(results: Results) -> list[Panel]:
    """The loss at the end over what multiplies the rate, with tuned linear Adam's own as 1."""
    made = []
    for task in VARIED_TASKS:
        found = {
            name: points
            for name in VARIED
            if len(points := scores.sensitivity(results, name, task, VARIED_STEPS)) > 1
        }
        if not found or (task, VARIED_STEPS, REFERENCE) not in results.entries:
            continue
        one = results.at((task, VARIED_STEPS), REFERENCE).loss
        series, words = [], []
        for name, points in found.items():
            numbers = [points.get(factor, math.nan) / one for factor in FACTORS]
            mean = encode(torch.tensor(numbers, dtype=torch.float64))
            lost = sum(math.isinf(x) for x in numbers)
            series.append({"name": name, "runs": len(FACTORS), "diverged": lost, "mean": mean})
            words.append(f"{called(name)} {', '.join(f'{x:.3g}' for x in numbers)}")
        data = {
            "xs": list(FACTORS),
            "x": "the learning rate, times its own",
            "y": "loss / tuned decayed Adam's",
            "series": series,
            "shown": list(found),
        }
        alt = f"Loss at the end on {called(task)} for a rate times {list(FACTORS)}: "
        title = f"{called(task)}, {VARIED_STEPS:,} steps"
        made.append(Panel(f"rates-{task}", title, True, alt + "; ".join(words), data))
    return made


def overview(results: Results, shown: Sequence[str]) -> DotPlot:
    """All optimizers: the interquartile mean of their losses, with its interval."""
    rows = []
    for name in shown:
        found = scores.ratios(results, name, loss_of)
        if found and name != REFERENCE:
            rows.append((f"{called(name)} ({len(found)})", name, Number(*scores.middle(found))))
    rows.sort(key=lambda row: row[2].value)
    return dot_plot(
        "suite-overview",
        "All optimizers, over all trainings",
        "Interquartile mean of the loss at the end, with that of tuned Adam with linear decay as "
        "1, and its 95 % interval; left is better. In brackets how many trainings there are.",
        [(title, {name: number}) for title, name, number in rows],
        [name for _, name, _ in rows],
    )


def speed_ups(results: Results) -> list[DotPlot]:
    """Speed-ups over VeLOdrome's envelope, a plot for each horizon from 1,000 steps on."""
    made = []
    horizons = sorted({n for _, n in results.cells if n >= 1_000})
    names = [n for n in FAST if any(scores.speed_ups(results, n, steps) for steps in horizons)]
    for steps in horizons:
        found = {name: scores.speed_ups(results, name, steps) for name in names}
        ours = found[names[0]] if names else {}
        tasks = [t for t in TASKS if any(t in speeds for speeds in found.values())]
        tasks.sort(key=lambda t: -ours[t][0] if t in ours else 0.0)
        rows = [
            (
                called(t),
                {
                    name: Number(speeds[t][0], least=not speeds[t][1])
                    for name, speeds in found.items()
                    if t in speeds
                },
            )
            for t in tasks
        ]
        if rows:
            about = "How many times as many steps the envelope needs to get there; right is better."
            title = f"Speed-up over VeLOdrome's envelope, {steps:,} steps"
            made.append(dot_plot(f"speed-{steps}", title, about, rows, names, (0.25, 32.0)))
    return made
