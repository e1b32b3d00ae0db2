"""Pictures of looks: how steps, decay rates and weights change over training and over layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hyperadam.inside.inspection import Look, float_of, list_of, memory
from hyperadam.report.figures import drawing

#: More tensors than this are rows of colours, not lines.
FEW = 10
#: Numbers that are closer together than this factor have a linear axis.
NARROW = 8.0
GREY = "#555555"


class Figure(NamedTuple):
    """A picture: what it is called, how to read it, its files (SVG, PNG)."""

    title: str
    caption: str
    paths: list[Path]


class Field(NamedTuple):
    """A quantity of every candidate, as colours: its ``key`` in a look, and how to show it."""

    title: str
    key: str
    shown: Callable[[float], float] = float
    scale: str = "linear"  # or "log", or "signed" about zero


MOMENT = (
    Field("memory of m in steps, 1/(1−β)", "beta", memory, "log"),
    Field("memory of v in steps, 1/(1−γ)", "gamma", memory, "log"),
    Field("size of m̂/√v̂ (root mean square)", "moment_rms", scale="log"),
    Field("signal-to-noise ratio, m̂²/v̂", "signal_to_noise", scale="log"),
)
WEIGHT = (
    Field("weight ρ (mean over coordinates)", "rho", scale="signed"),
    Field("how ρ differs between coordinates (spread)", "rho_spread"),
)


def draw_all(looks: Sequence[Look], folder: Path) -> list[Figure]:
    """All figures that the looks have something for."""
    figures = [draw_steps(looks, folder / "steps")]
    moment = [field for field in MOMENT if _varies(looks, field)]
    if len(_list(looks[-1], "moment_rms")) > 1 and moment:
        figures.append(
            draw_fields(
                looks,
                moment,
                folder / "moment-field",
                "The moment field",
                "Each row of a panel is one candidate, an Adam with decay rates β and γ of its "
                "own. Colours show how far back it looks, and how large its m̂/√v̂ is: near 1 "
                "where gradients agree, small where they are noise.",
            )
        )
    weight = [field for field in WEIGHT if _has(looks, field) and _some(looks, field)]
    if weight:
        figures.append(
            draw_fields(
                looks,
                weight,
                folder / "weight-field",
                "The weight field",
                "How much each candidate counts in the update. Red is a weight below zero: the "
                "candidate is taken away from the others.",
            )
        )
    return figures


def draw_steps(looks: Sequence[Look], stem: Path) -> Figure:
    """Loss, effective step, gradient norm, and what the rule says of the step's size."""
    own = "log_step" if _has(looks, Field("", "log_step")) else "direction_rms"
    steps = [look.step for look in looks]
    names = list(dict.fromkeys(name for look in looks for name in look.tensors))
    draw = _lines if len(names) <= FEW else _rows
    with drawing((11.0, 6.6), stem) as (figure, paths):
        axes = figure.subplots(2, 2, sharex=True).flatten()
        if any(look.loss is not None for look in looks):
            losses = [math.nan if look.loss is None else look.loss for look in looks]
            axes[0].plot(steps, losses, color=GREY, linewidth=1.6)
            axes[0].set(title="training loss")
            _log(axes[0], losses)
        else:
            pace = [max(float_of(x["pace"]) for x in look.tensors.values()) for look in looks]
            axes[0].plot(steps, pace, color=GREY, linewidth=1.6)
            axes[0].set(title="pace, the share of lr that is taken", ylim=(0, 1.05))
        axes[0].grid(alpha=0.25, linewidth=0.6)
        axes[0].spines[["top", "right"]].set_visible(False)
        draw(axes[1], looks, names, "effective_step", "effective step, % of the weights", _percent)
        draw(axes[2], looks, names, "gradient_norm", "gradient norm")
        if own == "log_step":
            draw(axes[3], looks, names, own, "the TensorCell's factor of the step", math.exp)
        else:
            draw(axes[3], looks, names, own, "size of the rule's output (root mean square)")
        for axis in axes[2:]:
            axis.set_xlabel("step")
        if draw is _lines:
            _legend(figure, names)
    kind = (
        "A line for each tensor, from the first (dark) to the last (light), broader if it is large."
        if draw is _lines
        else f"A row for each tensor, from {names[0]} at the top to {names[-1]} at the bottom."
    )
    caption = (
        f"{kind} The effective step is the root mean square of a step over that of the weights it "
        "moves: far less than elsewhere is a layer that hardly learns."
    )
    return Figure("How far steps go", caption, paths)


def draw_fields(
    looks: Sequence[Look], fields: Sequence[Field], stem: Path, title: str, caption: str
) -> Figure:
    """A row of panels for each field: over training, all coordinates together, and over tensors, at
    the last look. Candidates have the same place in all."""
    last = looks[-1]
    names = list(last.tensors)
    with drawing((11.0, 2.6 * len(fields) + 0.9), stem) as (figure, paths):
        grid = figure.subplots(
            len(fields), 2, squeeze=False, width_ratios=[3, max(1.0, min(3.0, len(names) / 5))]
        )
        for row, field in zip(grid, fields, strict=True):
            order, labels = _order(looks, field)
            over_time = np.array([[field.shown(x) for x in _pooled(look, field)] for look in looks])
            over_tensors = np.array(
                [[field.shown(x) for x in list_of(last.tensors[n][field.key])] for n in names]
            )
            norm, colours = _colours(field, over_time, over_tensors)
            style = {"aspect": "auto", "norm": norm, "cmap": colours, "interpolation": "nearest"}
            x = [look.step for look in looks]
            extent = (x[0] - 0.5, x[-1] + 0.5, len(order) - 0.5, -0.5)
            image = row[0].imshow(over_time.T[order], extent=extent, **style)
            row[1].imshow(over_tensors.T[order], **style)
            row[0].set(
                title=field.title, ylabel="β" if field.key == "signal_to_noise" else "candidate"
            )
            row[0].set_yticks(*labels)
            row[1].set_yticks([])
            row[1].set_xticks([])
            bar = figure.colorbar(image, ax=list(row), aspect=14, pad=0.01, format="{x:g}")
            if field.scale == "log" and norm.vmin > 0:
                _plain_ticks(bar.ax.yaxis, norm.vmax / norm.vmin)
        grid[0][1].set_title(f"by tensor, at step {last.step}")
        grid[-1][0].set_xlabel("step")
        step = math.ceil(len(names) / 24)
        shown = range(0, len(names), step)
        grid[-1][1].set_xticks(
            shown,
            [names[i] for i in shown],
            rotation=40,
            ha="right",
            fontsize=8,
            rotation_mode="anchor",
        )
    return Figure(title, caption, paths)


def _lines(
    axis: Any,
    looks: Sequence[Look],
    names: Sequence[str],
    key: str,
    title: str,
    shown: Callable[[float], float] = float,
) -> None:
    """A line for each tensor."""
    values = []
    sizes = [float_of(numbers["size"]) for look in looks for numbers in look.tensors.values()]
    for name, colour in zip(names, _tensor_colours(names), strict=True):
        seen = [(look.step, look.tensors[name]) for look in looks if name in look.tensors]
        y = [_drawn(shown(float_of(numbers[key]))) for _, numbers in seen]
        width = 0.8 + 1.2 * _rank(float_of(seen[-1][1]["size"]), sizes)
        axis.plot([step for step, _ in seen], y, color=colour, linewidth=width)
        values += y
    axis.set(title=title)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    _log(axis, values)


def _rows(
    axis: Any,
    looks: Sequence[Look],
    names: Sequence[str],
    key: str,
    title: str,
    shown: Callable[[float], float] = float,
) -> None:
    """A row of colours for each tensor."""
    values = np.full((len(names), len(looks)), np.nan)
    for column, look in enumerate(looks):
        for row, name in enumerate(names):
            if name in look.tensors:
                values[row, column] = _drawn(shown(float_of(look.tensors[name][key])))
    wide = np.nanmax(values) > NARROW * np.nanmin(values)
    norm, colours = _colours(Field("", key, scale="log" if wide else "linear"), values)
    image = axis.imshow(
        values,
        aspect="auto",
        norm=norm,
        cmap=colours,
        interpolation="nearest",
        extent=(looks[0].step - 0.5, looks[-1].step + 0.5, len(names) + 0.5, 0.5),
    )
    bar = axis.figure.colorbar(image, ax=axis, aspect=14, pad=0.01, format="{x:g}")
    if wide:
        _plain_ticks(bar.ax.yaxis, norm.vmax / norm.vmin)
    axis.set(title=title, ylabel="tensor")


def _drawn(x: float) -> float:
    """A number that a logarithmic axis can show, or none."""
    return x if math.isfinite(x) and x > 0 else math.nan


def _percent(share: float) -> float:
    return 100 * share


def _rank(size: float, sizes: Sequence[float]) -> float:
    """Where a size lies between the least (0) and the largest (1), by their logarithms."""
    low, high = math.log(min(sizes)), math.log(max(sizes))
    return (math.log(size) - low) / (high - low) if high > low else 1.0


def _log(axis: Any, values: Sequence[float]) -> None:
    """A logarithmic axis with plain numbers, where there is something to spread."""
    drawn = [x for x in values if math.isfinite(x)]
    if not drawn or min(drawn) <= 0 or max(drawn) < NARROW * min(drawn):
        return
    axis.set_yscale("log")
    _plain_ticks(axis.yaxis, max(drawn) / min(drawn))


def _plain_ticks(axis: Any, spread: float) -> None:
    """0.02 and not 2 × 10⁻², on a logarithmic axis whose ends are ``spread`` apart."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if spread < 300 else (1,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _tensor_colours(names: Sequence[str]) -> list[Any]:
    """A colour for each tensor, from dark to light."""
    from matplotlib import colormaps

    last = max(1, len(names) - 1)
    return [colormaps["viridis"](0.92 * i / last) for i in range(len(names))]


def _legend(figure: Any, names: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linewidth=2) for colour in _tensor_colours(names)]
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=9)


def _pooled(look: Look, field: Field) -> list[float]:
    """The mean over all coordinates of all tensors, one for each candidate."""
    tensors = [n for n in look.tensors.values() if field.key in n]
    sizes = np.array([float_of(numbers["size"]) for numbers in tensors])
    values = np.array([list_of(numbers[field.key]) for numbers in tensors])
    if field.key == "moment_rms":  # of root mean squares the squares are averaged
        return list(np.sqrt(sizes @ values**2 / sizes.sum()))
    return list(sizes @ values / sizes.sum())


def _order(looks: Sequence[Look], field: Field) -> tuple[list[int], tuple[list[int], list[str]]]:
    """The candidates from the shortest memory to the longest, and the ticks of their axis."""
    betas, gammas = _list(looks[-1], "beta"), _list(looks[-1], "gamma")
    if field.key == "signal_to_noise":  # of a moment, not of a candidate
        rates = sorted(set(betas))
        return list(range(len(rates))), (list(range(len(rates))), [f"{b:g}" for b in rates])
    if not _varies(looks, Field("", "beta")):
        order = sorted(range(len(betas)), key=lambda j: (betas[j], gammas[j]))
        labels = [f"β {betas[j]:g}, γ {gammas[j]:g}" for j in order]
        return order, (list(range(len(order))), labels)
    # as they began: those whose β are alike stay together, by their γ
    betas, gammas = (_pooled(looks[0], Field("", key)) for key in ("beta", "gamma"))
    spans = [round(2 * math.log2(memory(beta))) for beta in betas]
    order = sorted(range(len(betas)), key=lambda j: (spans[j], gammas[j]))
    return order, ([0, len(order) - 1], ["shortest β", "longest β"])


def _colours(field: Field, *values: Any) -> tuple[Any, str]:
    """Colours that hold for both panels of a field."""
    from matplotlib.colors import LogNorm, Normalize

    drawn = np.concatenate([x.ravel() for x in values])
    drawn = drawn[np.isfinite(drawn)]
    low, high = (float(drawn.min()), float(drawn.max())) if len(drawn) else (0.0, 1.0)
    if field.scale == "signed":
        size = max(abs(low), abs(high), 1e-12)
        return Normalize(-size, size), "RdBu"
    if field.scale == "log" and low > 0:
        return LogNorm(low, max(high, low * 1.01)), "viridis"
    return Normalize(min(0.0, low), max(high, 1e-12)), "viridis"


def _list(look: Look, key: str) -> list[float]:
    """A list of the last look's first tensor, empty if it has none of that name."""
    value = next(iter(look.tensors.values()), {}).get(key, [])
    return value if isinstance(value, list) else []


def _has(looks: Sequence[Look], field: Field) -> bool:
    return any(field.key in numbers for numbers in looks[-1].tensors.values())


def _some(looks: Sequence[Look], field: Field) -> bool:
    """Whether a field is anywhere more than rounding."""
    return max(abs(x) for look in looks for x in _pooled(look, field)) > 1e-6


def _varies(looks: Sequence[Look], field: Field) -> bool:
    """Whether a field is there, and not the same everywhere: fixed decay rates need no picture."""
    if not _has(looks, field):
        return False
    seen = [
        list_of(n[field.key]) for look in looks for n in look.tensors.values() if field.key in n
    ]
    return any(values != seen[0] for values in seen)
