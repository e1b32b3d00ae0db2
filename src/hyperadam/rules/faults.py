"""What no step can have left in a state: how a rule recognises one that is damaged."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

#: A field of a state, and what is wrong with it.
Fault = tuple[str, str]

#: How far an entry may lie above 1 where exact arithmetic ends at 1: some rounding steps of
#: bfloat16, whose numbers are 1/128 apart there.
ROUNDING = 1 / 16
#: A first moment may exceed its bound by this factor: bfloat16 rounds both moments at random.
SLACK = 2.0
#: No training is so long that the cell of an LSTM gets there.
LARGEST_CELL = 1e9


def extremes(x: Tensor) -> tuple[float, float]:
    """The least and the largest entry, not numbers if one entry is none; zeros if there are none."""
    if not x.numel():
        return 0.0, 0.0
    low, high = torch.stack(torch.aminmax(x)).cpu().tolist()
    return low, high


@cache
def largest_gradient(dtype: torch.dtype) -> float:
    """The largest entry of a gradient that a step in ``dtype`` takes.

    Its square is far enough from the largest number for second moments that are rounded up,
    corrected for their bias, and added.
    """
    return math.sqrt(torch.finfo(dtype).max) / 16


def lstm_fault(s: Tensor, c: Tensor, layer: str = "") -> Fault | None:
    """An LSTM's output is a sigmoid times a tanh; a step adds at most 1 to its cell."""
    for name, x, limit in ((f"s{layer}", s, 1.0), (f"c{layer}", c, LARGEST_CELL)):
        low, high = extremes(x)
        if max(-low, high) > limit + ROUNDING:
            return name, f"has an entry beyond ±{limit:g}"
    return None


def correction_fault(name: str, hat: Tensor, least: float) -> Fault | None:
    """A bias correction is 0 before the first step, and then from ``least`` to 1."""
    low, high = extremes(hat)
    if low < 0:
        return name, "has a negative entry"
    if high > 1 + ROUNDING:
        return name, "has an entry above 1"
    least /= SLACK
    if low < least and ((hat > 0) & (hat < least)).any():
        return name, f"has an entry between 0 and {least:.1g}, less than one step leaves"
    return None


def moment_fault(
    m: Tensor,
    v: Tensor,
    beta_hat: Tensor,
    gamma_hat: Tensor,
    bound: float,
    epsilon: float,
) -> Fault | None:
    """Corrected moments are weighted means of gradients and of their squares: the first is at most
    ``bound`` times the root of the second. ``epsilon`` stands for squares that underflow."""
    if extremes(v)[0] < 0:
        return "v", "has a negative entry"
    if ((beta_hat == 0) != (gamma_hat == 0)).any():
        return "beta_hat", "is zero where 'gamma_hat' is not, or the other way round"
    numbers = torch.finfo(m.dtype)
    # where gamma_hat is zero so is beta_hat, and any root will do
    limit = (v / gamma_hat.clamp(min=numbers.tiny)).add_(epsilon).sqrt_().mul_(bound)
    # no larger gradient is ever stepped on, and no mean of gradients is larger than all of them
    limit.clamp_(max=largest_gradient(m.dtype)).mul_(beta_hat).mul_(SLACK)
    if (m.abs() > limit).any():
        return "m", "has an entry too large for its 'v' and 'beta_hat'"
    return None
