"""RNNprop (Lv, Jiang and Li, 2017): a two-layer LSTM on Adam's normalised moments, its output bounded by tanh."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import elu

from hyperadam.rules.base import Sums, UpdateRule
from hyperadam.rules.checks import check_number, check_whole
from hyperadam.rules.faults import Fault, correction_fault, lstm_fault, moment_fault
from hyperadam.rules.layers import LSTM, truncated_normal, zeros

FLOOR = 1e-30
#: Closer to 1, float32 has no bias correction to divide by.
LARGEST_BETA = 1 - 1e-6


class RNNpropState(NamedTuple):
    """Moments and their common bias correction ``(..., 1, p)``, then two LSTM layers ``(..., units, p)``."""

    m: Tensor
    v: Tensor
    beta_hat: Tensor
    s1: Tensor
    c1: Tensor
    s2: Tensor
    c2: Tensor


class RNNpropRule(UpdateRule[RNNpropState]):
    """``d = tanh(FC(LSTM(LSTM(ELU(FC(g/√v̂, m̂/√v̂))))))`` with β₁ = β₂ = 0.95."""

    kind = "rnnprop"
    step_size = 0.1
    State = RNNpropState

    def __init__(
        self,
        units: int = 20,
        beta: float = 0.95,
        epsilon: float = 1e-8,
        relative: bool = False,
    ) -> None:
        check_whole("units", units, 1)
        check_number("beta", beta, 0, LARGEST_BETA)
        check_number("epsilon", epsilon, 0, 1)
        super().__init__(units=units, beta=beta, epsilon=epsilon, relative=relative)
        self.units, self.beta, self.epsilon = units, beta, epsilon
        self.theta_p, self.b_p = truncated_normal(units, 2), zeros(units)
        self.lstm1, self.lstm2 = LSTM(units, units), LSTM(units, units)
        self.theta_q, self.b_q = truncated_normal(1, units), zeros(1)

    def state_rows(self) -> dict[str, int]:
        return {
            "m": 1,
            "v": 1,
            "beta_hat": 1,
            "s1": self.units,
            "c1": self.units,
            "s2": self.units,
            "c2": self.units,
        }

    def state_fault(self, state: RNNpropState, steps: int) -> Fault | None:
        m, v, hat, s1, c1, s2, c2 = state
        # both means have the same weights: the square of the first is at most the second
        return (
            lstm_fault(s1, c1, "1")
            or lstm_fault(s2, c2, "2")
            or correction_fault("beta_hat", hat, least=1 - self.beta)
            or moment_fault(m, v, hat, hat, bound=1.0, epsilon=FLOOR)
        )

    def forward(
        self, grad: Tensor, state: RNNpropState, sums: Sums | None = None
    ) -> tuple[Tensor, RNNpropState]:
        beta, g = self.beta, grad.unsqueeze(-2)
        m = beta * state.m + (1 - beta) * g
        v = beta * state.v + (1 - beta) * g**2
        beta_hat = beta * state.beta_hat + (1 - beta)
        # floored far below epsilon: a coordinate that never had a gradient would have a root of infinite slope
        scale = torch.sqrt((v / beta_hat).clamp(min=FLOOR)) + self.epsilon

        x = torch.cat([g / scale, m / beta_hat / scale], dim=-2)
        x = elu(self.theta_p @ x + self.b_p)
        s1, c1 = self.lstm1(x, state.s1, state.c1)
        s2, c2 = self.lstm2(s1, state.s2, state.c2)
        d = torch.tanh(self.theta_q @ s2 + self.b_q).squeeze(-2)
        return d, RNNpropState(m, v, beta_hat, s1, c1, s2, c2)
