"""Curves small enough for a web page: means over runs and blocks of steps, a band, sixteen bits a
number; and which of them are shown at first."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hyperadam.report.figures import blocks
from hyperadam.report.names import called
from hyperadam.results import Result

#: Points of a curve at most.
POINTS = 300
#: The band leaves out this share of the runs on either side.
TAIL = 0.1
#: The code of what is not finite; the codes below are spread evenly over a curve's range.
NOTHING = 0xFFFF
#: Of each group the first that is there is shown at once, and the best of the others.
FIRST = (
    ("hyperadam2", "hyperadam2+horizon", "hyperadam", "full", "j20"),
    ("adam-linear", "adam"),
    ("hyperadam2-start", "adam-init"),
)
#: So many curves are shown at once; a panel that has but one more shows all.
SHOWN = 4


class Panel(NamedTuple):
    """A figure that the page draws: its name, title, whether it stands open, it in words, and its
    curves as JSON."""

    id: str
    title: str
    open: bool
    alt: str
    data: dict[str, Any]


def first_shown(ends: Mapping[str, float]) -> list[str]:
    """Which curves are shown at once, of those that end so low: ours, tuned Adam, the untrained
    start, and the best of the others."""
    if len(ends) <= SHOWN + 1:
        return list(ends)
    chosen = [next((name for name in group if name in ends), None) for group in FIRST]
    wanted = [name for name in chosen if name is not None]
    others = sorted((name for name in ends if name not in wanted), key=lambda name: ends[name])
    wanted += others[: SHOWN - len(wanted)]
    return [name for name in ends if name in wanted]


def panel(
    id: str, task: str, results: Sequence[Result], title: str = "", open: bool = True
) -> Panel:
    """The curves of one task and number of steps. Point k is at step ``first + k * size``."""
    steps = blocks(results[0].losses, POINTS)[0]
    ends = {
        r.label: math.inf if r.diverged else float(r.final_loss.double().mean()) for r in results
    }
    data = {
        "first": float(steps[0]),
        "size": float(steps[1] - steps[0]) if len(steps) > 1 else 1.0,
        "series": [series(result) for result in results],
        "shown": first_shown(ends),
    }
    title = title or f"{called(task)}, {results[0].steps:,} steps"
    return Panel(id, title, open, _alt(task, results), data)


def _alt(task: str, results: Sequence[Result]) -> str:
    """The figure in words: where every curve ends."""
    ends = []
    for r in results:
        last = float(r.losses[:, -1].double().mean())
        lost = f"diverged in {r.diverged} of {r.runs} {r.one}s"
        ends.append(f"{called(r.label)} {f'{last:.3g}' if math.isfinite(last) else lost}")
    return f"Training loss by step on {called(task)}. Mean at the last step: {'; '.join(ends)}."


def series(result: Result) -> dict[str, Any]:
    """Mean and band of one optimizer, and the seconds of a step where they are known. The mean ends
    where a run diverges."""
    means = blocks(result.losses, POINTS)[1]
    found: dict[str, Any] = {
        "name": result.label,
        "runs": result.runs,
        "diverged": result.diverged,
        "mean": encode(means.mean(0)),
    }
    if result.runs > 1:
        ranks = torch.tensor([TAIL, 1 - TAIL], dtype=means.dtype)
        low, high = torch.quantile(means, ranks, dim=0)
        found |= {"low": encode(low), "high": encode(high)}
    seconds, steps = (result.measures.get(f"{what}_to_loss") for what in ("seconds", "steps"))
    if seconds is not None and steps is not None and math.isfinite(float(seconds[0])):
        found["seconds"] = float(f"{float(seconds[0] / steps[0]):.4g}")
    return found


def encode(numbers: Tensor) -> list[Any]:
    """``[lowest, highest, whether logarithmic, base64 of little-endian codes]``; logarithmic where
    all numbers are positive."""
    x = numbers.double().numpy()
    finite = np.isfinite(x)
    if not finite.any():
        return [0, 0, 0, _base64(np.full(len(x), NOTHING))]
    low, high = float(x[finite].min()), float(x[finite].max())
    logarithmic = low > 0
    low, high = float(f"{low:.6g}"), float(f"{high:.6g}")
    a, b = (math.log(low), math.log(high)) if logarithmic else (low, high)
    y = np.log(np.where(finite, x, 1.0)) if logarithmic else np.where(finite, x, 0.0)
    share = np.clip((y - a) / (b - a), 0, 1) if b > a else np.zeros(len(x))
    codes = np.where(finite, np.rint(share * (NOTHING - 1)), NOTHING)
    return [low, high, int(logarithmic), _base64(codes)]


def decode(coded: Sequence[Any]) -> Tensor:
    """The numbers of :func:`encode`, as the page reads them."""
    low, high, logarithmic, text = coded
    codes = np.frombuffer(base64.b64decode(text), "<u2").astype(np.float64)
    share = codes / (NOTHING - 1)
    numbers = (
        low * np.exp(share * math.log(high / low)) if logarithmic else low + share * (high - low)
    )
    return torch.from_numpy(np.where(codes == NOTHING, math.nan, numbers))


def _base64(codes: Any) -> str:
    return base64.b64encode(codes.astype("<u2").tobytes()).decode()
