"""Estimators of the meta-gradient over one period. Evolution strategies could join them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from hyperadam.kernels import Tape
from hyperadam.meta.learner import Learner


class Position(NamedTuple):
    """Where a rollout stands: parameters ``(1, p)``, the rule's state, steps taken, and loss and gradient there."""

    params: Tensor
    state: tuple[Tensor, ...]
    step: int
    loss: Tensor
    grad: Tensor


class Period(NamedTuple):
    """What a period gives: its losses ``(steps,)``, the gradients of the rule's parameters, and the new position."""

    losses: Tensor
    gradients: list[Tensor]
    end: Position


class Estimator(Protocol):
    """Advances a rollout by a period and says how the rule's parameters should change."""

    def __call__(
        self, tape: Tape, learner: Learner, start: Position, steps: int, lr: float
    ) -> Period: ...


class BPTT:
    """Truncated back-propagation through time.

    Args:
        exact: go through the learner's gradients too, by Hessian-vector products; else they are taken as given (the paper's).
        last: the meta-loss is the last loss of the period; else the mean of them.
        relative: weigh each loss by 1/loss, that is, take the mean logarithm: late periods, where losses are small, count.
    """

    def __init__(self, exact: bool = False, last: bool = False, relative: bool = False) -> None:
        self.exact, self.last, self.relative = exact, last, relative

    def __call__(
        self, tape: Tape, learner: Learner, start: Position, steps: int, lr: float
    ) -> Period:
        params, grad = start.params, start.grad
        tape.start(tape.rule.State(*start.state))
        losses: list[Tensor] = []
        visited: list[tuple[Tensor, Tensor]] = []  # the gradient at each new point, and the point
        for t in range(1, steps + 1):
            params = params - lr * tape.step(grad.detach())
            # the last gradient is read by the next period's rule: nothing of this one comes after it
            loss, grad, point = learner.loss_and_grad(
                params, start.step + t, graph=self.exact and t < steps
            )
            losses.append(loss)
            visited.append((grad, point))
        state = tuple(x.clone() for x in tape.state)

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
            d_grad = tape.step_back(-lr * d_params)
        end = Position(params, state, start.step + steps, losses[-1], grad.detach())
        return Period(torch.stack(losses), tape.gradients(), end)
