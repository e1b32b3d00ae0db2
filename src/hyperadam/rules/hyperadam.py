"""HyperAdam's rule: J Adams side by side, their decay rates and combination weights chosen by a small recurrent network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import elu

from hyperadam.rules.base import Sums, UpdateRule
from hyperadam.rules.checks import check_flag, check_number, check_whole
from hyperadam.rules.faults import Fault, correction_fault, lstm_fault, moment_fault
from hyperadam.rules.layers import LSTM, glorot, normalize, sum_of_squares, truncated_normal, zeros
from hyperadam.rules.pace import WARMUP_SHARE, depth_factor, horizon_factor, narrow_factor, pace

EPSILON = 1e-24
#: The largest second-moment decay rate under ``decay_bound``.
GAMMA_MAX = 0.9999
#: The range of ``decay_bound``: below, β² vanishes in float32, and at 1 nothing is bounded.
SMALLEST_BOUND, LARGEST_BOUND = 1e-3, 1 - 1e-6
#: The range of ``step_size``.
SMALLEST_STEP, LARGEST_STEP = 1e-6, 1.0
#: The largest decay rate without it: a sigmoid that rounds to 1 at the first step would leave 0/0 to correct the bias.
ALMOST_ONE = 1 - 2**-24
#: The largest ``|m̂|`` of a loaded state where the rule has no bound: the next updates are finite in
#: float32. Whether a training that went so far is of use is not for a checkpoint to say.
LARGEST_MOMENT = 1e31


class HyperAdamState(NamedTuple):
    """What HyperAdam remembers, each ``(..., J, p)``: C_t of the AdamCell, then state and cell of the StateCell."""

    m: Tensor
    v: Tensor
    beta_hat: Tensor
    gamma_hat: Tensor
    s: Tensor
    c: Tensor


class HyperAdamRule(UpdateRule[HyperAdamState]):
    """Algorithm 2 of the paper.

    Args:
        candidates: J, the number of Adams.
        lstm: keep the LSTM of the StateCell; without it the preprocessed gradient is the state.
        preprocess: keep the fully connected layer in front of it; without it the normalised gradient takes its place.
        normalize_state: normalise ``s_t`` over the whole vector before the decay-rate functions.
        decay_bound: q < 1 keeps ``γ ≥ β²/q`` (and ``γ ≤ 0.9999``), so that every candidate obeys
            ``|m̂| ≤ 1/√((1-q)(1-0.9999))`` whatever the gradients do. ``None`` is the paper's rule, which has no bound:
            where ``β² > γ`` and a gradient vanishes, ``m̂`` grows geometrically.
        warmup: steps over which the step size grows to its full length. 0 is the paper's rule, whose first steps are its
            largest: every ``m̂`` is ±1 then, all coordinates move at once, and ReLUs die of it. Rollouts of meta-training take
            full steps all the same. Where the number of steps is known, its twentieth part takes the place of this.
        warmup_share: where the number of steps is known, one in so many is warm-up.
        relative: steps in units of a tensor's size when its state was made.
        width: those steps are shorter for matrices with many inputs, for convolutions and for vectors.
        depth: those steps are shorter the more matrices move together.
        temper: steps are shorter in long trainings, and where nobody knows how long they are.
        step_size: the default ``lr`` of the optimizer; 0.005 is the paper's.
    """

    kind = "hyperadam"
    step_size = 0.005
    State = HyperAdamState

    def __init__(
        self,
        candidates: int = 20,
        lstm: bool = True,
        preprocess: bool = True,
        normalize_state: bool = False,
        decay_bound: float | None = None,
        warmup: int = 0,
        relative: bool = False,
        warmup_share: int = WARMUP_SHARE,
        width: bool = False,
        temper: bool = False,
        depth: bool = False,
        step_size: float = step_size,
    ) -> None:
        check_whole("candidates", candidates, 1)
        for name, value in (
            ("lstm", lstm),
            ("preprocess", preprocess),
            ("normalize_state", normalize_state),
            ("width", width),
            ("temper", temper),
            ("depth", depth),
        ):
            check_flag(name, value)
        if depth and not relative:
            raise ValueError(
                "depth=True needs relative=True: both look at the tensors of a network"
            )
        if decay_bound is not None:
            check_number("decay_bound, if not None,", decay_bound, SMALLEST_BOUND, LARGEST_BOUND)
        check_whole("warmup", warmup, 0, 2**31)
        check_whole("warmup_share", warmup_share, 1)
        check_number("step_size", step_size, SMALLEST_STEP, LARGEST_STEP)
        # left out at their defaults: rules from before them keep their configuration and hash
        usual = {
            "warmup_share": WARMUP_SHARE,
            "width": False,
            "temper": False,
            "depth": False,
            "step_size": type(self).step_size,
        }
        later = (warmup_share, width, temper, depth, step_size)
        super().__init__(
            candidates=candidates,
            lstm=lstm,
            preprocess=preprocess,
            normalize_state=normalize_state,
            decay_bound=decay_bound,
            warmup=warmup,
            relative=relative,
            **{
                name: value
                for (name, default), value in zip(usual.items(), later, strict=True)
                if value != default
            },
        )
        self.warmup_share, self.width, self.temper, self.depth, self.step_size = later
        J = self.candidates = candidates
        self.preprocess, self.normalize_state, self.decay_bound, self.warmup = (
            preprocess,
            normalize_state,
            decay_bound,
            warmup,
        )
        inputs = J if preprocess else 1
        self.state_size = S = J if lstm else inputs
        self.rounds = 2 if normalize_state else 1

        if preprocess:
            self.theta_p, self.b_p = truncated_normal(J, 1), zeros(J)
        self.lstm = LSTM(inputs, J) if lstm else None
        self.theta_u, self.b_u = glorot(J, J + S, fan_out=2 * J), zeros(J)
        self.theta_r, self.b_r = glorot(J, J + S, fan_out=2 * J), zeros(J)
        self.theta_q, self.b_q = truncated_normal(J, S), zeros(J)

    def state_rows(self) -> dict[str, int]:
        J = self.candidates
        return {
            "m": J,
            "v": J,
            "beta_hat": J,
            "gamma_hat": J,
            "s": self.state_size,
            "c": J if self.lstm else 0,
        }

    def pace(self, step: int, total: int | None = None, matrices: int = 1) -> float:
        share = pace(step, total, self.warmup, self.warmup_share)
        if self.temper:
            share *= horizon_factor(total or 0)
        return share * depth_factor(matrices) if self.depth else share

    def scale(self, rms: Tensor, shape: Sequence[int]) -> Tensor:
        scale = super().scale(rms, shape)
        return scale * narrow_factor(shape) if self.width else scale

    def forward(
        self, grad: Tensor, state: HyperAdamState, sums: Sums | None = None
    ) -> tuple[Tensor, HyperAdamState]:
        if sums is None:
            sums = self.total_sums(lambda earlier: self.column_sums(grad, state, earlier))
        g = grad.unsqueeze(-2)
        m, v, beta_hat, gamma_hat, s, c = state

        s, c = self.state_cell(g, s, c, sums)  # line 8
        beta, gamma = self.decay_rates(m, s, sums)  # lines 9-10
        m = beta * m + (1 - beta) * g  # line 11
        v = gamma * v + (1 - gamma) * g**2  # line 12
        beta_hat = beta * beta_hat + (1 - beta)  # line 13
        gamma_hat = gamma * gamma_hat + (1 - gamma)  # line 14
        m_tilde, v_tilde = m / beta_hat, v / gamma_hat  # line 15
        moment_field = m_tilde / torch.sqrt(v_tilde + EPSILON)  # line 16
        weight_field = elu(self.theta_q @ s + self.b_q)  # line 17
        d = (weight_field * moment_field).sum(-2)  # line 18
        return d, HyperAdamState(m, v, beta_hat, gamma_hat, s, c)

    def look(
        self, grad: Tensor, state: HyperAdamState, sums: Sums | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The update, and of each candidate β, γ, its place in the moment field, and its weight ρ."""
        if sums is None:
            sums = self.total_sums(lambda earlier: self.column_sums(grad, state, earlier))
        d, (m, v, beta_hat, gamma_hat, s, _) = self(grad, state, sums)
        beta, gamma = self.decay_rates(state.m, s, sums)
        moment = m / beta_hat / torch.sqrt(v / gamma_hat + EPSILON)
        rho = elu(self.theta_q @ s + self.b_q)
        return d, {"beta": beta, "gamma": gamma, "moment": moment, "rho": rho}

    def state_fault(self, state: HyperAdamState, steps: int) -> Fault | None:
        m, v, beta_hat, gamma_hat, s, c = state
        gamma_max = ALMOST_ONE if self.decay_bound is None else GAMMA_MAX
        bound = min(self.moment_bound, LARGEST_MOMENT)
        return (
            (lstm_fault(s, c) if self.lstm else None)
            or correction_fault("beta_hat", beta_hat, least=1 - min(self.beta_max, ALMOST_ONE))
            or correction_fault("gamma_hat", gamma_hat, least=1 - gamma_max)
            or moment_fault(m, v, beta_hat, gamma_hat, bound, EPSILON)
        )

    def state_cell(self, g: Tensor, s: Tensor, c: Tensor, sums: Sums) -> tuple[Tensor, Tensor]:
        """F_h, the state function: the gradient normalised, preprocessed and fed to the LSTM."""
        x = normalize(g, sums[0][..., :1])
        if self.preprocess:
            x = elu(self.theta_p @ x + self.b_p)
        return self.lstm(x, s, c) if self.lstm else (x, c)

    def decay_rates(self, m: Tensor, s: Tensor, sums: Sums) -> tuple[Tensor, Tensor]:
        """F_u and F_r, the decay-rate functions of the normalised moments and the state."""
        m = normalize(m, sums[0][..., 1:])
        if self.normalize_state:
            s = normalize(s, sums[1])
        ms = torch.cat([m, s], dim=-2)
        beta = torch.sigmoid(self.theta_u @ ms + self.b_u)
        gamma = torch.sigmoid(self.theta_r @ ms + self.b_r)
        if self.decay_bound is None:
            return beta.clamp(max=ALMOST_ONE), gamma.clamp(max=ALMOST_ONE)
        beta = self.beta_max * beta
        gamma_min = beta**2 / self.decay_bound
        return beta, gamma_min + (GAMMA_MAX - gamma_min) * gamma

    def column_sums(self, grad: Tensor, state: HyperAdamState, sums: Sums) -> Tensor:
        """First round ``(‖g‖², ‖m¹‖², …, ‖m^J‖²)``; second, if the state is normalised, ``‖s_t^j‖²``."""
        g = grad.unsqueeze(-2)
        if not sums:
            return torch.cat([sum_of_squares(g), sum_of_squares(state.m)], dim=-1)
        return sum_of_squares(self.state_cell(g, state.s, state.c, sums)[0])

    @property
    def beta_max(self) -> float:
        """The largest first-moment decay rate: with ``decay_bound`` q, the β whose β²/q is ``GAMMA_MAX``."""
        return 1.0 if self.decay_bound is None else math.sqrt(self.decay_bound * GAMMA_MAX)

    @property
    def moment_bound(self) -> float:
        """The bound on ``|m̂|`` for every gradient sequence; infinite for the paper's rule."""
        return (
            math.inf
            if self.decay_bound is None
            else 1 / math.sqrt((1 - self.decay_bound) * (1 - GAMMA_MAX))
        )

    @torch.no_grad()
    def start_near_adam(self, total_weight: float = 1.0, constant: bool = True) -> HyperAdamRule:
        """Make the rule behave like Adam: decay rates spread about (0.9, 0.999), equal weights summing to ``total_weight``.

        They are ``constant``, or else so on average alone: the matrices then keep their random start, and the LSTM is heard
        from the first meta-update on."""
        J = self.candidates
        pairs = [(b, r) for r in (0.999, 0.99, 0.98, 0.95, 0.9) for b in (0.9, 0.95, 0.8, 0.5)]
        if constant:
            for theta in (self.theta_u, self.theta_r, self.theta_q):
                theta.zero_()
        for j in range(J):
            beta, gamma = pairs[j % len(pairs)]
            gamma_min, gamma_max = 0.0, 1.0
            if self.decay_bound is not None:
                gamma_min, gamma_max = beta**2 / self.decay_bound, GAMMA_MAX
                gamma = max(gamma, gamma_min + 0.1 * (gamma_max - gamma_min))
            self.b_u[j] = torch.logit(torch.tensor(beta / self.beta_max, dtype=torch.float64))
            self.b_r[j] = torch.logit(
                torch.tensor((gamma - gamma_min) / (gamma_max - gamma_min), dtype=torch.float64)
            )
        self.b_q.fill_(total_weight / J)
        return self
