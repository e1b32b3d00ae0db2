"""The tensors of a learner, and the ways in which people start them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hyperadam.data import draws
from hyperadam.tasks.base import Shape


class Slot(NamedTuple):
    """One tensor of a learner: its shape, what it does, and the fans that its start depends on.

    ``role`` is ``"weight"``, ``"bias"``, ``"gain"`` or ``"embedding"``. A bias has the fans of the
    weight beside it.
    """

    shape: Shape
    role: str
    fan_in: int = 1
    fan_out: int = 1


def dense(inputs: int, outputs: int, kernel: int = 1) -> list[Slot]:
    """Weight and bias of a linear layer, or of a convolution with a square ``kernel``."""
    area = kernel * kernel
    shape = (outputs, inputs) if kernel == 1 else (outputs, inputs, kernel, kernel)
    fans = (inputs * area, outputs * area)
    return [Slot(shape, "weight", *fans), Slot((outputs,), "bias", *fans)]


def norm(units: int) -> list[Slot]:
    """Gain and offset of a layer normalisation. The offset starts at zero: its fan-in is none."""
    return [Slot((units,), "gain"), Slot((units,), "bias", 0)]


#: The ways to start: PyTorch's own, Kaiming's, Xavier's, a truncated normal, GPT's small one, and
#: the paper's, which has the same normal numbers for weights and biases of all shapes.
STARTS = ("torch", "kaiming", "xavier", "truncated", "small", "paper")
#: The deviations of GPT's start and of the paper's.
SMALL, PAPER = 0.02, 0.1


def start(slots: Sequence[Slot], how: str, seed: int, factor: float = 1.0) -> list[Tensor]:
    """Initial tensors, float32, by the method ``how``; weights and biases times ``factor``."""
    if how not in STARTS:
        raise ValueError(f"how must be one of {', '.join(STARTS)}, got {how!r}")
    return [
        _start(slot, how, draws.keys([seed], "family start", k), factor).float()
        for k, slot in enumerate(slots)
    ]


def _start(slot: Slot, how: str, key: Tensor, factor: float) -> Tensor:
    shape, role, fan_in, fan_out = slot
    if role == "gain":
        return torch.ones(shape)
    if how == "paper":
        return draws.normal(key, *shape)[0] * (factor * PAPER)
    if role == "embedding":
        return draws.normal(key, *shape)[0] * (SMALL if how == "small" else 1.0)
    if role == "bias":
        if how != "torch" or fan_in == 0:
            return torch.zeros(shape)
        return _uniform(key, shape, factor / math.sqrt(fan_in))
    if how == "torch":
        return _uniform(key, shape, factor / math.sqrt(fan_in))
    if how == "kaiming":
        return draws.normal(key, *shape)[0] * (factor * math.sqrt(2 / fan_in))
    if how == "xavier":
        return _uniform(key, shape, factor * math.sqrt(6 / (fan_in + fan_out)))
    if how == "small":
        return draws.normal(key, *shape)[0] * (factor * SMALL)
    return _truncated(key, shape, factor / math.sqrt(fan_in))


def _uniform(key: Tensor, shape: Shape, bound: float) -> Tensor:
    return (2 * draws.uniform(key, *shape)[0] - 1) * bound


def _truncated(key: Tensor, shape: Shape, deviation: float) -> Tensor:
    """Normal numbers of that deviation, none beyond twice of it."""
    inside = math.erf(math.sqrt(2))  # the share of a normal within two deviations
    u = (2 * draws.uniform(key, *shape)[0] - 1) * inside
    return torch.erfinv(u) * (math.sqrt(2) * deviation)
