"""HyperAdam2's rule: J Adams from five buffers, mixed per coordinate, steered per tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, product
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from hyperadam.rules.base import Sums, UpdateRule
from hyperadam.rules.checks import check_flag, check_whole, rates
from hyperadam.rules.faults import SLACK, Fault, extremes, largest_gradient
from hyperadam.rules.layers import glorot, zeros
from hyperadam.rules.orthogonal import is_matrix, orthogonal
from hyperadam.rules.pace import (
    USUAL_SIZE,
    counted_size,
    fan_in,
    horizon_factor,
    least_size,
    size_floor,
    width_factor,
)

EPSILON = 1e-24
#: The TensorCell's log step size lies within this of its base.
LARGEST_LOG_STEP = 2.5
#: (1+β)/(1-β) of Adam's β: the networks move its weight by as much as they say.
REFERENCE = (1 + 0.9) / (1 - 0.9)
#: By this share β² must lie below γ: closer, a candidate's bound is no number.
MARGIN = 1e-6
#: Features of the TensorCell other than the signal-to-noise ratio of each β.
OTHER_FEATURES = 11
#: How many of them tell of the tensor's shape and the time: they need no look at the tensor.
SHAPE_AND_TIME = 8
#: Which of those says that the tensor is a vector.
VECTOR = 1
#: No feature that is measured on gradients goes further.
LARGEST_FEATURE = 3.0


class HyperAdam2State(NamedTuple):
    """What HyperAdam2 remembers of a coordinate: the moments, ``(..., betas above 0, n)`` and
    ``(..., gammas, n)``."""

    m: Tensor
    v: Tensor


class Memory(NamedTuple):
    """What it remembers of a tensor, each ``(...)`` or ``(..., rows)``: the root mean square of the
    weights when the state was made, and the means over coordinates that the last step left."""

    start: Tensor
    w2: Tensor
    g2: Tensor
    m2: Tensor
    v: Tensor


class Stage(NamedTuple):
    """Where training stands for a tensor: the step, from 1, of a total (0: unknown), and the shape
    of the whole tensor."""

    step: int
    total: int
    shape: Sequence[int]


class Control(NamedTuple):
    """What the TensorCell says to all coordinates of a tensor: the step's size ``(...)``, the
    weights of the candidates ``(..., J)``, and the bias corrections ``(..., betas)``,
    ``(..., gammas)``."""

    size: Tensor
    rho: Tensor
    beta_hat: Tensor
    gamma_hat: Tensor


class HyperAdam2Rule(UpdateRule[HyperAdam2State]):
    """The paper's idea at a twentieth of its memory and time, for one tensor at a time.

    Every first moment over the root of every second moment is an Adam: the moment field. Their
    weights ρ, the weight field, come from a small network for each coordinate, and from the
    TensorCell, a small network for each tensor and step that also chooses how long the step is.
    Norms run over one tensor: how a model is cut into groups or ranks changes nothing.

    The meta-parameters may have leading dimensions, one set of weights for each run.

    Args:
        betas: first-moment decay rates, the fastest first. 0 is the gradient itself, without a
            buffer.
        gammas: second-moment decay rates, the fastest first. Every β² must lie below every γ:
            ``|m̂|`` is then bounded by :meth:`moment_bounds`, whatever the gradients do.
        hidden: units of the TensorCell.
        units: units of the weight field's network.
        orthogonal: make the direction of a matrix orthogonal, see :meth:`direction`.
    """

    kind = "hyperadam2"
    step_size = 0.01
    State = HyperAdam2State
    per_tensor = True
    largest: ClassVar[dict[str, float]] = {"log_step": 20.0}  # a step is its exponential

    def __init__(
        self,
        betas: Sequence[float] = (0.0, 0.5, 0.9, 0.98),
        gammas: Sequence[float] = (0.99, 0.999),
        hidden: int = 24,
        units: int = 8,
        orthogonal: bool = True,
    ) -> None:
        betas, gammas = rates("betas", betas), rates("gammas", gammas)
        if betas[-1] ** 2 > (1 - MARGIN) * gammas[0] or gammas[0] == 0:
            raise ValueError(
                f"every β² must lie below every γ, got β = {betas[-1]} and γ = {gammas[0]}: "
                "where a gradient vanishes, m̂ would grow without bound"
            )
        check_whole("hidden", hidden, 1)
        check_whole("units", units, 1)
        check_flag("orthogonal", orthogonal)
        super().__init__(
            betas=list(betas),
            gammas=list(gammas),
            hidden=hidden,
            units=units,
            orthogonal=orthogonal,
        )
        self.orthogonal = orthogonal
        self.betas, self.gammas = betas, gammas
        self.slow = tuple(beta for beta in betas if beta)
        self.memory = len(Memory._fields) - 2 + len(self.slow) + len(gammas)
        #: The candidates, each a pair of decay rates: γ outside, β inside.
        self.pairs = [(beta, gamma) for gamma, beta in product(gammas, betas)]
        #: How far the networks move each ρ, in units in which all candidates count alike where the
        #: gradient is noise: there the size of m̂ is √((1-β)/(1+β)).
        self.reach = [math.sqrt((1 + beta) / (1 - beta) / REFERENCE) for beta, _ in self.pairs]
        J, features = len(self.pairs), OTHER_FEATURES + len(betas)
        self.theta_1, self.b_1 = glorot(hidden, features), zeros(hidden)
        with torch.no_grad():  # the first units hand on a feature each
            self.theta_1[:features] = torch.eye(features)[:hidden]
        self.theta_a = nn.Parameter(torch.zeros(1, hidden))
        self.theta_rho = nn.Parameter(torch.zeros(J, hidden))
        #: The log step size and the weights ρ that the TensorCell starts from.
        self.log_step, self.rho = zeros(1), nn.Parameter(torch.full((J, 1), 1 / J))
        self.theta_3, self.b_3 = glorot(units, len(betas) + 1), zeros(units)
        self.theta_4 = nn.Parameter(torch.zeros(J, units))

    def state_rows(self) -> dict[str, int]:
        return {"m": len(self.slow), "v": len(self.gammas)}

    def forward(
        self, grad: Tensor, state: HyperAdam2State, sums: Sums | None = None
    ) -> tuple[Tensor, HyperAdam2State]:
        """One step for some coordinates of a tensor; ``sums`` is the tensor's :class:`Control`. What
        comes out is a mixture of Adams; :meth:`direction` makes an update of it."""
        weight_field, moment_field, new = self.fields(grad, state, sums)
        return (weight_field * moment_field).sum(-2), new

    def turns(self, shape: Sequence[int]) -> bool:
        """Whether the mixture of a tensor of this shape is made orthogonal."""
        return self.orthogonal and is_matrix(shape)

    def direction(self, mixture: Tensor, shape: Sequence[int]) -> Tensor:
        """The update from the mixture ``(runs, n)`` of whole tensors: a vector's is the mixture
        itself, a matrix's is turned, so that all its singular values are about the same."""
        return orthogonal(mixture, shape) if self.turns(shape) else mixture

    def look(
        self, grad: Tensor, state: HyperAdam2State, sums: Sums | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The update, and of each candidate its place in the moment field and its weight ρ."""
        rho, moment, _ = self.fields(grad, state, sums)
        return (rho * moment).sum(-2), {"moment": moment, "rho": rho}

    def fields(
        self, grad: Tensor, state: HyperAdam2State, sums: Sums | None
    ) -> tuple[Tensor, Tensor, HyperAdam2State]:
        """The weight field and the moment field, each ``(..., J, n)``, and the new state."""
        if not isinstance(sums, Control):
            raise TypeError(f"sums must be the tensor's Control, got {type(sums).__name__}")
        m, v = self.moments(grad, state)
        m_tilde = (torch.cat([grad.unsqueeze(-2), m], -2) if self.fastest_is_gradient else m) / (
            sums.beta_hat.unsqueeze(-1)
        )
        v_tilde = v / sums.gamma_hat.unsqueeze(-1)
        r = torch.rsqrt(v_tilde + EPSILON)
        moment_field = (m_tilde.unsqueeze(-3) * r.unsqueeze(-2)).flatten(-3, -2)
        weight_field = sums.rho.unsqueeze(-1) + self.coordinate_weights(
            m_tilde * r[..., -1:, :], v_tilde
        )
        return weight_field, moment_field, HyperAdam2State(m, v)

    @property
    def fastest_is_gradient(self) -> bool:
        """Whether the first β is 0: it needs no buffer."""
        return self.betas[0] == 0

    def moments(self, grad: Tensor, state: HyperAdam2State) -> tuple[Tensor, Tensor]:
        """The new first and second moments."""
        g = grad.unsqueeze(-2)

        def average(old: Tensor, new: Tensor, decays: Sequence[float]) -> Tensor:
            # 1 - γ in the numbers of Python: in float32 few digits are left of it
            keep, take = (
                _numbers(x, grad).unsqueeze(-1) for x in (decays, [1 - d for d in decays])
            )
            return keep * old + take * new

        return average(state.m, g, self.slow), average(state.v, g**2, self.gammas)

    def coordinate_weights(self, u: Tensor, v_tilde: Tensor) -> Tensor:
        """What each coordinate adds to ρ, ``(..., J, n)``, from its Adams ``u (..., betas, n)`` over
        the slowest γ: how far they agree with their sum, and how the second moments compare. A
        gradient of the other sign gives the same weights."""
        agreement = u * u.sum(-2, keepdim=True) / (1 + u.square().sum(-2, keepdim=True))
        first, last = v_tilde[..., :1, :], v_tilde[..., -1:, :]
        x = torch.cat([agreement, first / (first + last + EPSILON) - 0.5], dim=-2)
        return self._reach(x) * (self.theta_4 @ relu(self.theta_3 @ x + self.b_3))

    def _reach(self, like: Tensor) -> Tensor:
        """:attr:`reach` as a column ``(J, 1)``."""
        return _numbers(self.reach, like).unsqueeze(-1)

    # The TensorCell -----------------------------------------------------------------------------

    def control(self, memory: Tensor, stage: Stage) -> Control:
        """The TensorCell: ``memory (..., K)`` and the time to what all coordinates share."""
        return self.steer(memory, _numbers(self.facts(stage), memory))

    def steer(self, memory: Tensor, facts: Tensor) -> Control:
        """The TensorCell of many tensors at once: ``memory (..., K)`` and the :meth:`facts` of each,
        ``(..., facts)``, to what all coordinates of a tensor share."""
        known, floor, factor, _, _, beta_hat, gamma_hat = self._unpack_facts(facts)
        log_step, rho = self.tensor_cell(self.features(memory, facts))
        counted = counted_size(memory[..., :1], floor, known[..., VECTOR : VECTOR + 1] > 0)
        scale = (counted / USUAL_SIZE * factor).squeeze(-1)
        size = torch.exp(log_step) * scale.to(rho.dtype)
        return Control(size, rho, beta_hat.to(rho.dtype), gamma_hat.to(rho.dtype))

    def tensor_cell(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The log step size ``(...)`` and the weights ρ ``(..., J)`` of tensors with these features."""
        log_step, rho = self.answers(features.unsqueeze(-1))
        return log_step.squeeze(-1), rho.squeeze(-1)

    def answers(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """The same for many tensors side by side, ``(..., features, n)``: log step sizes
        ``(..., n)`` and weights ``(..., J, n)``."""
        h = torch.tanh(self.theta_1 @ columns + self.b_1)
        log_step = self.log_step + LARGEST_LOG_STEP * torch.tanh(self.theta_a @ h)
        rho = self.rho + self._reach(h) * torch.tanh(self.theta_rho @ h)
        return log_step.squeeze(-2), rho

    def look_at_tensor(self, memory: Tensor, stage: Stage) -> dict[str, Tensor]:
        """What people may want to see of the TensorCell, for ``memory (..., K)``: the log step size
        ``(...)``, its weights ρ ``(..., J)``, and the signal-to-noise ratio of each β, the mean of m̂²
        over that of v̂, as the last step left it: ``(..., betas)``, all 1 before the first."""
        features = self.features(memory, _numbers(self.facts(stage), memory))
        log_step, rho = self.tensor_cell(features)
        measured = features[..., -len(self.betas) - 1 : -1]
        return {"log_step": log_step, "tensor_rho": rho, "signal_to_noise": torch.exp(3 * measured)}

    def features(self, memory: Tensor, facts: Tensor) -> Tensor:
        """What the TensorCell sees, ``(..., features)``: the tensor's size and growth, its shape and
        the time, the signal-to-noise ratio of each β, and the trend of the squared gradient."""
        x = self.unpack(memory)
        known, floor, _, beta_hat, gamma_hat, _, _ = self._unpack_facts(facts)
        squares = torch.cat([x.g2.unsqueeze(-1), x.m2], -1) if self.fastest_is_gradient else x.m2
        squares = squares / beta_hat.square()
        v = x.v / gamma_hat
        first, last = v[..., :1] + EPSILON, v[..., -1:] + EPSILON
        measured = torch.cat(
            [torch.log((squares + EPSILON) / last) / 3, torch.log(first / last)], dim=-1
        ).clamp(-LARGEST_FEATURE, LARGEST_FEATURE)
        least = least_size(x.start, floor.squeeze(-1))
        growth = torch.maximum(x.w2.sqrt(), least) / torch.maximum(x.start, least)
        own = torch.stack([torch.log(x.start.clamp(min=0.01)) / 3, torch.log(growth) / 2], -1)
        known = known.expand(*memory.shape[:-1], SHAPE_AND_TIME)
        return torch.cat([own, known, measured], -1).to(self.theta_1.dtype)

    def facts(self, stage: Stage) -> list[float]:
        """What the TensorCell knows of a tensor without a look at it: features of its shape and the
        time, the least size it counts for, the factor of its width and the horizon, and the bias
        corrections of the step before, which the memory is of, and of this one."""
        step, total, shape = stage
        known = float(total > 0)
        return [
            math.log(max(math.prod(shape), 1)) / 5 - 1,
            float(len(shape) <= 1),
            float(len(shape) > 2),
            math.log(fan_in(shape)) / 4 - 1,
            known * (2 * min(step / max(total, 1), 1.0) - 1),
            math.log(step) / 4 - 1,
            known * (math.log(max(total, 1)) / 4 - 1),
            known,
            size_floor(shape),
            width_factor(shape) * horizon_factor(total),
            *chain(*self._corrections(max(step - 1, 1))),
            *chain(*self._corrections(step)),
        ]

    def _unpack_facts(self, facts: Tensor) -> tuple[Tensor, ...]:
        """The parts of ``facts (..., facts)``, in the order of :meth:`facts`."""
        rates = [len(self.betas), len(self.gammas)]
        return facts.split([SHAPE_AND_TIME, 1, 1, *rates, *rates], -1)

    def unpack(self, memory: Tensor) -> Memory:
        """The parts of ``memory (..., K)``."""
        start, w2, g2 = memory[..., :3].unbind(-1)
        return Memory(start, w2, g2, *memory[..., 3:].split([len(self.slow), len(self.gammas)], -1))

    def init_memory(self, rms: Tensor) -> Tensor:
        memory = super().init_memory(rms)
        memory[..., 1] = rms.square()
        return memory

    def column_sums(self, grad: Tensor, state: HyperAdam2State, sums: Sums) -> Tensor:
        """Over coordinates and after the step: sums of g², of each m², of each v, in float64."""
        g2 = grad.double().square().sum(-1, keepdim=True)
        return torch.cat([g2, state.m.double().square().sum(-1), state.v.double().sum(-1)], -1)

    def _corrections(self, step: int) -> tuple[list[float], list[float]]:
        """The bias corrections at a step, ``1 - β^t`` and ``1 - γ^t``."""
        return [1 - x**step for x in self.betas], [1 - x**step for x in self.gammas]

    # Bounds -------------------------------------------------------------------------------------

    def moment_bounds(self) -> list[float]:
        """The largest ``|m̂|`` of each candidate, whatever the gradients, after any number of steps.

        With the bias corrected the bound grows from 1 at the first step towards this one.
        """
        return [moment_bound(beta, gamma) for beta, gamma in self.pairs]

    def update_bound(self) -> float:
        """The largest entry of a mixture, whatever the gradients: every ρ is bounded, since the
        weight field's inputs are, by √betas and by ½. A direction that is made orthogonal has a
        fixed root mean square."""
        largest = torch.full_like(self.theta_3[..., :1, :], math.sqrt(len(self.betas)))
        largest[..., -1] = 0.5
        hidden = relu((self.theta_3.abs() * largest).sum(-1, keepdim=True) + self.b_3)
        rho = self.rho.abs() + self._reach(hidden) * (1 + self.theta_4.abs() @ hidden)
        return float((rho.squeeze(-1) @ _numbers(self.moment_bounds(), rho)).max())

    def state_fault(self, state: HyperAdam2State, steps: int) -> Fault | None:
        """Second moments are means of squares, of which ``steps`` bring a known share. The first
        are at most their bound times the root of each second: with the bias uncorrected, too."""
        m, v = state
        if extremes(v)[0] < 0:
            return "v", "has a negative entry"
        largest = SLACK * largest_gradient(v.dtype) ** 2
        shares = self._corrections(steps)[1]
        for second, share in zip(v.unbind(-2), shares, strict=True):
            if extremes(second)[1] > share * largest:
                return "v", f"has an entry too large for its 'step', {steps}"
        for second, gamma in zip(v.unbind(-2), self.gammas, strict=True):
            root = (second + EPSILON).sqrt()
            for first, beta in zip(m.unbind(-2), self.slow, strict=True):
                if (first.abs() > SLACK * moment_bound(beta, gamma) * root).any():
                    return "m", "has an entry too large for its 'v'"
        return None

    @torch.no_grad()
    def start_from(
        self, weights: dict[tuple[float, float], float], log_step: float = 0.0
    ) -> HyperAdam2Rule:
        """Make the rule a fixed mixture: the weight ρ of some pairs (β, γ), zero for the others."""
        if unknown := weights.keys() - set(self.pairs):
            raise ValueError(f"no candidate has the decay rates {sorted(unknown)}")
        self.rho.copy_(torch.tensor([[weights.get(pair, 0.0)] for pair in self.pairs]))
        self.log_step.fill_(log_step)
        for theta in (self.theta_a, self.theta_rho, self.theta_4):
            theta.zero_()
        return self


def moment_bound(beta: float, gamma: float) -> float:
    """The largest ``|m| / √v``, by Cauchy and Schwarz: ``m² ≤ v (1-β)² / ((1-γ) (1 - β²/γ))``."""
    return (1 - beta) / math.sqrt((1 - gamma) * (1 - beta**2 / gamma))


def _numbers(values: Sequence[float], like: Tensor) -> Tensor:
    """``values (n,)`` on the device and in the dtype of another tensor; nobody waits for them."""
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)
