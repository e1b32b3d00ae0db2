"""Estimators of the meta-gradient over one period, by back-propagation. Evolution strategies are in
``evolution``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from hyperadam.data import draws
from hyperadam.kernels import Sample, SampledTape, Tape
from hyperadam.meta.learner import Learner
from hyperadam.rules.base import UpdateRule
from hyperadam.rules.pace import count_matrices, root_mean_square

#: Coordinates that the kernel computes at a time: a sample has a multiple of them.
BLOCK = 64
#: What an update is multiplied by at a step of the rollout, counted from 1: a number, or one for
#: each coordinate ``(1, p)``.
StepSize = Callable[[int], float | Tensor]


def step_size(
    rule: UpdateRule[Any], learner: Learner, total: int | None = None, shorter: float = 1.0
) -> StepSize:
    """``lr * pace * scale`` for a rollout of ``rule``, whose ``lr`` is so many times ``shorter``
    than where the rule is used. It knows that it takes ``total`` steps; or else all are as long,
    without the rule's warm-up, too. Scales are those of the tensors where the rollout starts,
    before Random Scaling: that changes the units of single coordinates, and the largest of them
    would decide a tensor's size."""
    lr, scale = rule.step_size / shorter, _scales(rule, learner) if rule.relative else None
    matrices = count_matrices(learner.shapes)

    def size(step: int) -> float | Tensor:
        length = lr if total is None else lr * rule.pace(step, total, matrices)
        return length if scale is None else length * scale

    return size


def _scales(rule: UpdateRule[Any], learner: Learner) -> Tensor:
    """The scale of every coordinate's tensor, ``(1, p)``."""
    start = learner.unscaled()
    parts = start.split([math.prod(shape) for shape in learner.shapes], dim=1)
    scales = [
        rule.scale(root_mean_square(part).double(), shape).expand_as(part)
        for part, shape in zip(parts, learner.shapes, strict=True)
    ]
    return torch.cat(scales, dim=1).to(start.dtype)


class Position(NamedTuple):
    """Where a rollout stands: parameters ``(1, p)``, the rule's state, steps taken, and loss and
    gradient there."""

    params: Tensor
    state: tuple[Tensor, ...]
    step: int
    loss: Tensor
    grad: Tensor


class Period(NamedTuple):
    """What a period gives: its losses ``(steps,)``, the gradients of the rule's parameters, and the
    new position."""

    losses: Tensor
    gradients: list[Tensor]
    end: Position


class Estimator(Protocol):
    """Advances a rollout by a period and says how the rule's parameters should change."""

    def __call__(
        self, tape: Tape, learner: Learner, start: Position, steps: int, size: StepSize
    ) -> Period: ...


class BPTT:
    """Truncated back-propagation through time.

    Args:
        exact: go through the learner's gradients too, by Hessian-vector products; else they are
            taken as given (the paper's).
        last: the meta-loss is the last loss of the period; else the mean of them.
        relative: weigh each loss by 1/loss, that is, take the mean logarithm: late periods, where
            losses are small, count.
        share: of the coordinates that the way back goes through, drawn anew for every period; below
            1 on a ``SampledTape``, and not if it is ``exact``: the way back through the learner
            needs all of them.
    """

    def __init__(
        self,
        exact: bool = False,
        last: bool = False,
        relative: bool = False,
        share: float = 1.0,
    ) -> None:
        self.exact, self.last, self.relative, self.share = exact, last, relative, share

    def __call__(
        self, tape: Tape, learner: Learner, start: Position, steps: int, size: StepSize
    ) -> Period:
        params, grad = start.params, start.grad
        self._start(tape, learner, start)
        losses: list[Tensor] = []
        visited: list[tuple[Tensor, Tensor]] = []  # the gradient at each new point, and the point
        for t in range(1, steps + 1):
            params = params - size(start.step + t) * tape.step(grad.detach())
            # the last gradient is read by the next period's rule: nothing of this one is behind it
            loss, grad, point = learner.loss_and_grad(
                params, start.step + t, graph=self.exact and t < steps
            )
            losses.append(loss)
            visited.append((grad, point))
        state = tape.copy_state()

        d_params, d_grad = torch.zeros_like(params), torch.zeros_like(params)
        for t in range(steps, 0, -1):
            grad_t, point = visited.pop()
            weight = float(t == steps) if self.last else 1 / steps
            d_params = (
                d_params + (weight / losses[t - 1] if self.relative else weight) * grad_t.detach()
            )
            if self.exact and t < steps:
                (through,) = torch.autograd.grad(grad_t, point, d_grad)
                d_params = d_params + through
            d_grad = tape.step_back(-size(start.step + t) * d_params)
        end = Position(params, state, start.step + steps, losses[-1], grad.detach())
        return Period(torch.stack(losses), tape.gradients(), end)

    def _start(self, tape: Tape, learner: Learner, start: Position) -> None:
        state = tape.rule.State(*start.state)
        if isinstance(tape, SampledTape):
            key = draws.keys(learner.seeds, "meta backward", start.step)
            tape.start(state, draw_sample(key, learner.p, self.share))
        else:
            tape.start(state)


def draw_sample(key: Tensor, p: int, share: float) -> Sample:
    """A share of ``p`` coordinates, without replacement, each as likely as any other; as many as
    fill the kernel's blocks."""
    count = min(p, BLOCK * math.ceil(share * p / BLOCK))
    numbers = draws.uniform(key, p).numpy()[0]
    seen = np.zeros(p, dtype=bool)
    seen[np.argpartition(numbers, count - 1)[:count]] = True
    return Sample(*(torch.from_numpy(np.flatnonzero(some)) for some in (seen, ~seen)))
