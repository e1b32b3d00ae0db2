"""Figures of training curves: the mean over runs, a band for their spread, one colour per optimizer
wherever it appears."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyperadam.files.atomic import open_atomically
from hyperadam.report.plain import in_figure
from hyperadam.report.statistics import summarize
from hyperadam.results import Result

#: The width of a line, unless it is to stand out.
THIN = 1.4


class Look(NamedTuple):
    """How an optimizer is drawn."""

    colour: str
    line: str = "-"
    width: float = THIN


#: Okabe and Ito's colours, which colour-blind people tell apart; learned optimizers are solid,
#: hand-made ones dashed.
LOOKS = {
    "hyperadam": Look("#0072B2", width=2.2),
    "hyperadam+horizon": Look("#0072B2", "-.", 2.2),
    "hyperadam-horizon": Look("#0072B2", "--", 2.2),
    "hyperadam-paper": Look("#56B4E9", width=2.2),
    "hyperadam-published": Look("#661100", width=2.2),
    "adam-init": Look("#000000", ":"),
    "rnnprop": Look("#009E73"),
    "dm": Look("#CC79A7"),
    "adam": Look("#D55E00", "--", 1.8),
    "sgd": Look("#777777", "--"),
    "momentum": Look("#000000", "--"),
    "rmsprop": Look("#E69F00", "--"),
    "adagrad": Look("#8A6D00", "-."),
    "adadelta": Look("#AA4499", "-."),
    "hyperadam2": Look("#AA4499", width=2.4),
    "hyperadam2-start": Look("#AA4499", ":"),
    "adam-linear": Look("#E69F00", "--", 1.8),
    "adamw-cosine": Look("#8A6D00", "--"),
    "schedule-free": Look("#117733", "--"),
    "prodigy": Look("#332288", ":"),
    "prodigy-cosine": Look("#332288", "--"),
    "sgd-cosine": Look("#777777", "-."),
    "muon": Look("#882255", "--"),
}
#: For optimizers without a look of their own, in the order in which they come.
SPARE = tuple(
    Look(colour, line)
    for line in ("-", "-.", ":")
    for colour in ("#117733", "#332288", "#882255", "#44AA99")
)
#: Longer curves are drawn as means over blocks of steps.
POINTS = 200
#: A panel with more curves than this has bands for the broad lines alone.
FEW = 6
#: A mean that is so many times what it began with leaves the panel.
EXPLODED = 3.0


def draw_curves(results: Sequence[Result], stem: Path) -> list[Path]:
    """Draw a panel per task and write ``stem`` as ``.svg`` and ``.png``; their paths. Needs
    matplotlib."""
    return draw_panels(
        [(t, [r for r in results if r.task == t]) for t in dict.fromkeys(r.task for r in results)],
        stem,
    )


def draw_panels(panels: Sequence[tuple[str, Sequence[Result]]], stem: Path) -> list[Path]:
    """Draw curves in panels, each a title and results, and write ``stem`` as ``.svg`` and ``.png``.
    Needs matplotlib."""
    columns = min(len(panels), 3 if len(panels) != 4 else 2)
    rows = math.ceil(len(panels) / columns)
    results = [result for _, group in panels for result in group]
    looks = choose_looks(results)
    with drawing((6.6 * columns, 3.7 * rows + 0.5), stem) as (figure, paths):
        axes = figure.subplots(rows, columns, squeeze=False).flatten()
        for axis, (title, group) in zip(axes, panels, strict=False):
            draw_panel(axis, title, group, looks)
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        runs = sorted({result.runs for result in results})
        one = "meta-seeds or runs" if any(result.pooled for result in results) else "runs"
        banded = any(
            _has_band(result, looks[result.label], group) for _, group in panels for result in group
        )
        spread = ", band: the middle 80 % of them" if banded else ""
        text = (
            f"line: mean of {' or '.join(map(str, runs))} {one}{spread}"
            if max(runs) > 1
            else "one run each"
        )
        figure.supxlabel(text, fontsize=9, color="#555555")
    return paths


def draw_by_task(
    results: Sequence[Result], tasks: Sequence[str], labels: Sequence[str], stem: Path
) -> list[Path]:
    """Draw mean final losses with standard errors, a point for each task and a line for each
    optimizer; as :func:`draw_curves` writes. A line has a gap where a run diverged or nothing was
    computed."""
    looks = choose_looks(results)
    by_cell = {(result.task, result.label): summarize(result) for result in results}
    with drawing((8.0, 4.6), stem) as (figure, paths):
        axis = figure.subplots()
        for label in labels:
            found = [by_cell.get((task, label)) for task in tasks]
            if not any(found):
                continue
            means = [s.mean if s and math.isfinite(s.mean) else math.nan for s in found]
            errors = [
                s.standard_error if s and math.isfinite(s.standard_error) else 0.0 for s in found
            ]
            look = looks[label]
            style = {"color": look.colour, "linestyle": look.line, "linewidth": look.width}
            axis.errorbar(
                range(len(tasks)),
                means,
                errors,
                label=in_figure(label),
                marker="o",
                markersize=3,
                capsize=2,
                **style,
            )
        names = [in_figure(task) for task in tasks]
        axis.set_xticks(range(len(tasks)), names, rotation=30, ha="right", fontsize=8)
        axis.set(ylabel="final loss")
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.legend(fontsize=8, framealpha=0.85, ncols=2)
    return paths


@contextlib.contextmanager
def drawing(size: tuple[float, float], stem: Path) -> Iterator[tuple[Any, list[Path]]]:
    """A figure to draw on, written when the block is over, and its files."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # text stays text, and the same results give the same bytes
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "hyperadam", "font.size": 10}
    ):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png")]
        yield figure, paths
        for path in paths:
            with open_atomically(path) as file:
                figure.savefig(
                    file,
                    format=path.suffix[1:],
                    dpi=140,
                    metadata={"Date": None} if path.suffix == ".svg" else None,
                )


def draw_panel(axis: Any, title: str, results: Sequence[Result], looks: dict[str, Look]) -> None:
    """The curves of one task on matplotlib's ``axis``. A mean ends where a run diverges, and the
    legend says so."""
    means = []
    for result in results:
        look = looks[result.label]
        steps, losses = blocks(result.losses)
        mean = losses.mean(0)
        mean[~mean.isfinite()] = math.nan
        means.append(mean)
        label = in_figure(result.label) + (
            f", {result.diverged} of {result.runs} diverged" if result.diverged else ""
        )
        axis.plot(
            steps, mean, label=label, color=look.colour, linestyle=look.line, linewidth=look.width
        )
        if _has_band(result, look, results):
            low, high = torch.quantile(losses, torch.tensor([0.1, 0.9], dtype=losses.dtype), dim=0)
            drawn = high.isfinite()
            axis.fill_between(
                steps[drawn], low[drawn], high[drawn], color=look.colour, alpha=0.15, linewidth=0
            )
    _scale_losses(axis, torch.stack(means))
    axis.set(title=in_figure(title), xlabel="step", ylabel="training loss")
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _has_band(result: Result, look: Look, panel: Sequence[Result]) -> bool:
    return result.runs > 1 and (len(panel) <= FEW or look.width > THIN)


def _scale_losses(axis: Any, means: Tensor) -> None:
    """A logarithmic axis where all is positive, from which leaves what explodes, so that the others
    can still be seen."""
    from matplotlib.ticker import LogLocator, NullFormatter

    drawn, start = means[means.isfinite()], means[:, 0][means[:, 0].isfinite()]
    if not len(drawn) or drawn.min() <= 0:
        return
    axis.set_yscale("log")
    low, high = float(drawn.min()), float(drawn.max())
    if len(start) and high > EXPLODED * float(start.max()):
        high = EXPLODED * float(start.max())
        axis.set_ylim(low / 1.1, high)
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e4 * low else (1,)))
    axis.yaxis.set_major_formatter("{x:g}")  # 0.5 and not 5 × 10⁻¹
    axis.yaxis.set_minor_formatter(NullFormatter())


def choose_looks(results: Sequence[Result]) -> dict[str, Look]:
    """A look per label: the optimizer's own, and for others of the same optimizer (another rate) a
    spare one."""
    looks: dict[str, Look] = {}
    spare = iter(SPARE * (1 + len(results) // len(SPARE)))
    for result in results:
        if result.label not in looks:
            own = LOOKS.get(result.optimizer.partition("+")[0])  # whatever it is told besides
            looks[result.label] = own if own and own not in looks.values() else next(spare)
    return looks


def blocks(losses: Tensor, points: int = POINTS) -> tuple[Tensor, Tensor]:
    """Steps ``(n,)``, counted from 1, and losses ``(runs, n)`` with n at most ``points``, as means
    over blocks."""
    runs, steps = losses.shape
    size = math.ceil(steps / points)
    whole = steps - steps % size
    means = losses[:, :whole].double().view(runs, -1, size).mean(2)
    return torch.arange(means.shape[1]) * size + (size + 1) / 2, means
