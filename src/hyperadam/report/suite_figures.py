"""The suite's figures as files: ratios to tuned linear Adam, training curves, VeLOdrome's
speed-ups, sensitivity to the rate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from hyperadam.experiments.suite import scores
from hyperadam.experiments.suite.runs import FACTORS, VARIED, VARIED_STEPS, VARIED_TASKS
from hyperadam.experiments.suite.scores import REFERENCE, Results
from hyperadam.experiments.suite.tasks import TASKS
from hyperadam.report.figures import LOOKS, SPARE, Look, drawing
from hyperadam.report.names import called

#: Ratios are drawn within these bounds; beyond, at the border.
BOUNDS = (0.5, 4.0)
#: A colour for each horizon.
HORIZONS = {100: "#56B4E9", 1_000: "#0072B2", 2_000: "#332288", 10_000: "#882255"}
#: Whose curves are drawn: more would hide each other.
DRAWN = (
    "adam",
    "adam-linear",
    "schedule-free",
    "prodigy-cosine",
    "muon",
    "hyperadam",
    "hyperadam2",
)


def draw(results: Results, folder: Path) -> list[Path]:
    """All figures that there are results for, as SVG and PNG; their files. Needs matplotlib."""
    return [
        *draw_ratios(results, folder / "ratios"),
        *draw_speed_ups(results, folder / "velodrome"),
        *draw_sensitivity(results, folder / "sensitivity"),
        *draw_curves(results, folder / "curves"),
    ]


def look(name: str) -> Look:
    """How an optimizer is drawn, here as on the rest of the page."""
    return LOOKS.get(name, SPARE[0])


def draw_ratios(results: Results, stem: Path) -> list[Path]:
    """A line of points for each optimizer, a point for each pair, and the interquartile mean with
    its interval."""
    found = {
        name: scores.ratios(results, name, lambda entry: entry.loss)
        for name in results.optimizers()
        if name != REFERENCE
    }
    middles = {name: scores.middle(ratios) for name, ratios in found.items() if ratios}
    order = sorted(middles, key=lambda name: (middles[name].value, name), reverse=True)
    if not order:
        return []
    title = "Training loss at the end, in the place of 1 of tuned linear Adam's"
    with drawing((9.0, 0.42 * len(order) + 1.4), stem) as (figure, paths):
        axis = figure.subplots()
        axis.axvline(1, color="#D55E00", linewidth=1.2)
        for row, name in enumerate(order):
            pairs = sorted(found[name])
            for number, (task, steps) in enumerate(pairs):
                ratio = found[name][(task, steps)]
                x = min(max(ratio, BOUNDS[0]), BOUNDS[1])
                marker = "o" if x == ratio else (">" if x < ratio else "<")
                spread = row + 0.3 * (number / max(1, len(pairs) - 1) - 0.5)
                axis.plot(
                    x,
                    spread,
                    marker,
                    color=HORIZONS.get(steps, "#777777"),
                    ms=4.5,
                    alpha=0.75,
                    mew=0,
                )
            value, low, high = (min(max(x, BOUNDS[0]), BOUNDS[1]) for x in middles[name])
            if math.isfinite(middles[name].low):
                axis.plot([low, high], [row, row], color="black", linewidth=2.2)
            axis.plot(value, row, "D", color="black", ms=6)
        axis.set_xscale("log")
        axis.set_xlim(BOUNDS[0] / 1.05, BOUNDS[1] * 1.05)
        ticks = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.25, 1.5, 2, 3, 4)
        axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axis.set_xticks([], minor=True)
        axis.set_yticks(range(len(order)), [f"{called(n)} ({len(found[n])})" for n in order])
        axis.grid(axis="x", alpha=0.25, linewidth=0.6)
        seen = sorted({steps for ratios in found.values() for _, steps in ratios})
        for steps in seen:
            axis.plot([], [], "o", color=HORIZONS.get(steps, "#777777"), label=f"{steps:,} steps")
        axis.plot([], [], "D-", color="black", label="interquartile mean, 95 %")
        figure.legend(loc="outside lower center", ncols=len(seen) + 1, fontsize=8, frameon=False)
        axis.set(title=title)
        axis.set_xlabel(
            "left is better; in brackets the number of pairs; beyond the border: at it", fontsize=9
        )
    return paths


def draw_curves(results: Results, stem: Path) -> list[Path]:
    """A panel for each task, at 1,000 steps where that is there."""
    chosen = []
    for task in TASKS:
        pairs = [p for p in results.pairs(REFERENCE) if p[0] == task and p[1] <= 1_000]
        if pairs:
            chosen.append(max(pairs, key=lambda pair: pair[1]))
    if not chosen:
        return []
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    with drawing((4.6 * columns, 2.9 * rows + 0.7), stem) as (figure, paths):
        axes = figure.subplots(rows, columns, squeeze=False).flatten()
        handles: dict[str, Any] = {}
        for axis, (task, steps) in zip(axes, chosen, strict=False):
            for name in DRAWN:
                if entry := results.entries.get((task, steps, name)):
                    smooth = scores.smooth(entry.curve)
                    places = (np.arange(len(smooth)) + 1) * steps / len(smooth)
                    (handles[name],) = axis.plot(places, smooth, **_style(name))
            axis.set_title(f"{called(task)}, {steps:,} steps", fontsize=9)
            axis.set_yscale("log")
            _plain_ticks(axis)
            _zoom(axis)
            axis.tick_params(labelsize=8)
            axis.grid(alpha=0.25, linewidth=0.6)
        for axis in axes[len(chosen) :]:
            axis.set_axis_off()
        figure.legend(
            list(handles.values()),
            [called(name) for name in handles],
            loc="outside lower center",
            ncols=min(4, len(handles)),
            fontsize=9,
            frameon=False,
        )
    return paths


def _style(name: str) -> dict[str, Any]:
    chosen = look(name)
    return {"color": chosen.colour, "linestyle": chosen.line, "linewidth": chosen.width}


def _zoom(axis: Any) -> None:
    """The part of a panel where curves differ: the first tenth of the steps may leave it at the
    top."""
    lines = [line.get_ydata() for line in axis.get_lines()]
    late = np.concatenate([y[len(y) // 10 :] for y in lines])
    late = late[np.isfinite(late) & (late > 0)]
    if len(late):
        low, high = late.min(), np.quantile(late, 0.98)
        axis.set_ylim(low / 1.05, max(high, low * 1.2) * 1.1)


def _plain_ticks(axis: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())


def draw_speed_ups(results: Results, stem: Path) -> list[Path]:
    """Speed-ups over VeLOdrome's envelope, a panel for each horizon from 1,000 steps on."""
    panels = {}
    for steps in sorted({n for _, n in results.cells if n >= 1_000}):
        found = {name: scores.speed_ups(results, name, steps) for name in DRAWN}
        if any(found.values()):
            panels[steps] = {name: speeds for name, speeds in found.items() if speeds}
    if not panels:
        return []
    names = [name for name in DRAWN if any(name in found for found in panels.values())]
    seen = {task for found in panels.values() for speeds in found.values() for task in speeds}
    tasks = [name for name in TASKS if name in seen]
    with drawing((8.5, 2.9 * len(panels) + 1.2), stem) as (figure, paths):
        axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True).flatten()
        handles: dict[str, Any] = {}
        for axis, (steps, found) in zip(axes, panels.items(), strict=True):
            axis.axhline(1, color="#777777", linewidth=0.8)
            for number, name in enumerate(names):
                shift = 0.5 * (number / max(1, len(names) - 1) - 0.5)
                here = [t for t in tasks if t in found.get(name, {})]
                x = [tasks.index(t) + shift for t in here]
                y = [max(found[name][t][0], 0.1) for t in here]
                (handles[name],) = axis.plot(x, y, "o", color=look(name).colour, ms=6)
                for px, py, t in zip(x, y, here, strict=True):
                    if not found[name][t][1]:
                        axis.annotate("≥", (px, py), fontsize=9, ha="center", va="bottom")
            axis.set(ylabel="speed-up", title=f"{steps:,} steps", yscale="log")
            ticks = (0.25, 0.5, 1, 2, 4, 8, 16, 32)
            axis.set_yticks(ticks, [f"{t:g}" for t in ticks])
            axis.set_yticks([], minor=True)
            axis.set_xlim(-0.5, len(tasks) - 0.5)
            axis.grid(alpha=0.25, linewidth=0.6)
            axis.set_xticks(
                range(len(tasks)), [called(t) for t in tasks], rotation=25, ha="right", fontsize=8
            )
        figure.legend(
            list(handles.values()),
            [called(name) for name in handles],
            loc="outside lower center",
            ncols=min(4, len(handles)),
            fontsize=8,
            frameon=False,
        )
    return paths


def draw_sensitivity(results: Results, stem: Path) -> list[Path]:
    """The loss at the end over what multiplies the rate, a panel for each task, in the place of 1
    of tuned linear Adam's."""
    panels: list[tuple[str, dict[str, dict[float, float]]]] = []
    for task in VARIED_TASKS:
        found = {
            name: points
            for name in VARIED
            if len(points := scores.sensitivity(results, name, task, VARIED_STEPS)) > 1
        }
        if found and (task, VARIED_STEPS, REFERENCE) in results.entries:
            panels.append((task, found))
    if not panels:
        return []
    with drawing((3.6 * len(panels), 3.9), stem) as (figure, paths):
        axes = figure.subplots(1, len(panels), squeeze=False).flatten()
        handles: dict[str, Any] = {}
        for axis, (task, found) in zip(axes, panels, strict=True):
            reference = results.at((task, VARIED_STEPS), REFERENCE).loss
            for name, points in found.items():
                x = [f for f in FACTORS if f in points]
                y = [min(points[f] / reference, 100.0) for f in x]
                (handles[name],) = axis.plot(x, y, marker="o", ms=4, **_style(name))
            axis.set_xscale("log", base=2)
            axis.set_xticks(FACTORS, ["¼", "½", "1", "2", "4"])
            axis.set_yscale("log")
            axis.set_ylim(top=min(axis.get_ylim()[1], 6.0))
            _plain_ticks(axis)
            axis.axhline(1, color="#777777", linewidth=0.8)
            axis.set_title(called(task), fontsize=10)
            axis.tick_params(labelsize=8)
            axis.grid(alpha=0.25, linewidth=0.6)
        axes[0].set_ylabel("loss / tuned linear Adam's")
        figure.supxlabel("the rate, times", fontsize=9)
        figure.legend(
            list(handles.values()),
            [called(name) for name in handles],
            loc="outside upper center",
            ncols=min(4, len(handles)),
            fontsize=9,
            frameon=False,
        )
    return paths
