"""The small layers that rules are made of, on ``(..., rows, p)`` tensors: coordinates last, weights shared by all."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

#: Guards ``x / ‖x‖`` against the zero vector.
NORM_GUARD = 1e-16


def sum_of_squares(x: Tensor) -> Tensor:
    """Sum of squares over coordinates in float64, where none overflows: ``(..., rows, p) -> (..., rows)``."""
    return x.double().square().sum(-1)


def normalize(x: Tensor, squared_norm: Tensor) -> Tensor:
    """Each row of ``x`` divided by its guarded Euclidean norm over the whole vector."""
    return x * torch.rsqrt(squared_norm + NORM_GUARD).to(x.dtype).unsqueeze(-1)


def glorot(
    rows: int, columns: int, fan_out: int | None = None, fan_in: int | None = None
) -> nn.Parameter:
    """A ``(rows, columns)`` matrix, Glorot uniform; the fans default to its own sizes."""
    limit = math.sqrt(6 / ((fan_in or columns) + (fan_out or rows)))
    return nn.Parameter(torch.empty(rows, columns).uniform_(-limit, limit))


def truncated_normal(rows: int, columns: int, std: float = 0.1) -> nn.Parameter:
    """A ``(rows, columns)`` matrix, normal with deviation ``std`` cut at two deviations."""
    return nn.Parameter(
        nn.init.trunc_normal_(torch.empty(rows, columns), std=std, a=-2 * std, b=2 * std)
    )


def zeros(rows: int) -> nn.Parameter:
    """A bias column ``(rows, 1)``."""
    return nn.Parameter(torch.zeros(rows, 1))


class LSTM(nn.Module):
    """A long short-term memory cell, gates in the order input, forget, candidate, output; forget bias +1 in the cell."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.theta_x = glorot(4 * units, inputs, fan_in=inputs + units)
        self.theta_s = glorot(4 * units, units, fan_in=inputs + units)
        self.b = zeros(4 * units)

    def forward(self, x: Tensor, s: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """``x (..., inputs, p)``, ``s`` and ``c (..., units, p)`` to the new ``s`` and ``c``."""
        i, f, z, o = (self.theta_x @ x + self.theta_s @ s + self.b).chunk(4, dim=-2)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(z)
        return torch.sigmoid(o) * torch.tanh(c), c
