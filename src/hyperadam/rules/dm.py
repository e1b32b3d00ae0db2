"""DMoptimizer (Andrychowicz et al., 2016): a two-layer LSTM on the gradient's logarithm and sign."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hyperadam.rules.base import Sums, UpdateRule
from hyperadam.rules.checks import check_number, check_whole
from hyperadam.rules.faults import Fault, lstm_fault
from hyperadam.rules.layers import LSTM, truncated_normal, zeros

#: The range of ``k``: e^k is a finite number, and log|g|/k too.
SMALLEST_K, LARGEST_K = 1e-3, 80.0


class DMState(NamedTuple):
    """Two LSTM layers, each ``(..., units, p)``."""

    s1: Tensor
    c1: Tensor
    s2: Tensor
    c2: Tensor


class DMRule(UpdateRule[DMState]):
    """``d = -FC(LSTM(LSTM(x)))``.

    Its input ``x`` is ``(log|g|/k, sign g)`` where ``|g| ≥ e^-k``, and ``(-1, e^k g)`` below.
    """

    kind = "dm"
    step_size = 0.1
    State = DMState

    def __init__(self, units: int = 20, k: float = 10.0, relative: bool = False) -> None:
        check_whole("units", units, 1)
        check_number("k", k, SMALLEST_K, LARGEST_K)
        super().__init__(units=units, k=k, relative=relative)
        self.units, self.k = units, k
        self.lstm1, self.lstm2 = LSTM(2, units), LSTM(units, units)
        self.theta_q, self.b_q = truncated_normal(1, units), zeros(1)

    def state_rows(self) -> dict[str, int]:
        return dict.fromkeys(DMState._fields, self.units)

    def state_fault(self, state: DMState, steps: int) -> Fault | None:
        s1, c1, s2, c2 = state
        return lstm_fault(s1, c1, "1") or lstm_fault(s2, c2, "2")

    def forward(
        self, grad: Tensor, state: DMState, sums: Sums | None = None
    ) -> tuple[Tensor, DMState]:
        g = grad.unsqueeze(-2)
        # log |g| at its floor where it is not taken, so that its derivative there is zero and not infinite
        magnitude = g.abs().clamp(min=math.exp(-self.k))
        large = g.abs() >= math.exp(-self.k)
        x = torch.cat(
            [torch.log(magnitude) / self.k, torch.where(large, g.sign(), math.exp(self.k) * g)],
            dim=-2,
        )
        s1, c1 = self.lstm1(x, state.s1, state.c1)
        s2, c2 = self.lstm2(s1, state.s2, state.c2)
        return -(self.theta_q @ s2 + self.b_q).squeeze(-2), DMState(s1, c1, s2, c2)
