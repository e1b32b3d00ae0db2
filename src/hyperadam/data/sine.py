"""Sine sequences: noisy samples of f(x) = A sin(ωx + φ) at 0, 1, …, and the clean value that follows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hyperadam.data import draws


def sine_sequences(
    seeds: draws.Seeds, step: draws.Steps, count: int = 128, noise: float = 0.1, length: int = 10
) -> tuple[Tensor, Tensor]:
    """Fresh sequences for every seed and step, with A ~ U(0, 10), ω ~ U(0, π/2), φ ~ U(0, 2π).

    Returns inputs ``(runs, length, count)``, f(0) … f(length-1) with Gaussian noise of deviation ``noise``, and targets
    ``(runs, count)``, f(length) without noise; both float64.
    """
    amplitude, omega, phi = draws.uniform(draws.keys(seeds, "sine", step), 3, 1, count).unbind(1)
    x = torch.arange(length + 1, dtype=torch.float64).unsqueeze(-1)
    f = 10 * amplitude * torch.sin(math.pi / 2 * omega * x + 2 * math.pi * phi)
    inputs = f[:, :length] + noise * draws.normal(
        draws.keys(seeds, "sine noise", step), length, count
    )
    return inputs, f[:, length]
