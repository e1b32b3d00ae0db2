"""Training curves small enough for a web page: means over runs and blocks of steps, a band, sixteen
bits a number."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hyperadam.report.figures import blocks
from hyperadam.results import Result

#: Points of a curve at most.
POINTS = 300
#: The band leaves out this share of the runs on either side.
TAIL = 0.1
#: The code of what is not finite; the codes below are spread evenly over a curve's range.
NOTHING = 0xFFFF


def panel(results: Sequence[Result]) -> dict[str, Any]:
    """The curves of one task and number of steps, as JSON. Point k is at step ``first + k *
    size``."""
    steps = blocks(results[0].losses, POINTS)[0]
    return {
        "first": float(steps[0]),
        "size": float(steps[1] - steps[0]) if len(steps) > 1 else 1.0,
        "series": [series(result) for result in results],
    }


def series(result: Result) -> dict[str, Any]:
    """Mean and band of one optimizer. The mean ends where a run diverges."""
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
