"""A learner as meta-training sees it: one run of a task, with Random Scaling and Combination with a
Convex function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hyperadam.data import draws
from hyperadam.data.draws import Seeds
from hyperadam.tasks.base import Task

#: The convex function: its dimension, and where its terms are cut off.
CONVEX_SIZE, CONVEX_LIMIT = 20, 10.0
#: Random Scaling: the logarithms of the scales of ``w`` and of ``z`` are uniform up to these,
#: either way.
WEIGHT_SPREAD, CONVEX_SPREAD = 3.0, 1.0


class Learner:
    """The optimizee ``L(c1 ⊙ w) + h(c2 ⊙ z)`` of one rollout, a function of the vector ``(w, z)``
    of shape ``(1, p)``.

    ``c1 = exp(U(-3, 3))``, ``c2 = exp(U(-1, 1))`` and the bottom of
    ``h(z) = mean(min((z - η)², 10))`` are drawn from the seed."""

    def __init__(
        self, task: Task[Any], seed: int, scaling: bool = True, convex: bool = True
    ) -> None:
        self.task, self.seeds = task, [seed]
        k = CONVEX_SIZE if convex else 0
        self.p = task.p + k
        spread = torch.cat([torch.full((task.p,), WEIGHT_SPREAD), torch.full((k,), CONVEX_SPREAD)])
        self.scale = random_scale(self.seeds, spread if scaling else torch.zeros(self.p))[0]
        self.bottom = _uniform(self.seeds, "bottom", k)[0]
        #: Of the tensors in the vector, in their order; ``z`` is one more.
        self.shapes = [*task.shapes, *([(k,)] if k else [])]

    def init(self) -> Tensor:
        """Where a rollout starts, ``(1, p)``: :meth:`unscaled`, divided by the scale."""
        return self.unscaled() / self.scale

    def unscaled(self) -> Tensor:
        """The task's start, and zeros for ``z``, ``(1, p)``."""
        start = torch.zeros(1, self.p)
        start[:, : self.task.p] = self.task.init(self.seeds)
        return start

    def loss(self, params: Tensor, step: int) -> Tensor:
        """The loss at ``params (1, p)`` on the batch of ``step``, a scalar, differentiable as often
        as asked."""
        scaled = params * self.scale
        w, z = scaled[:, : self.task.p], scaled[:, self.task.p :]
        loss = self.task.loss(w, self.task.batch(self.seeds, step)).sum()
        if self.bottom.numel():
            loss = loss + (z - self.bottom).square().clamp(max=CONVEX_LIMIT).mean()
        return loss

    def loss_and_grad(
        self, params: Tensor, step: int, graph: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, gradient ``(1, p)``, and the point they were taken at; with ``graph`` the gradient
        can be differentiated."""
        with torch.enable_grad():
            point = params.detach().requires_grad_()
            loss = self.loss(point, step)
            (grad,) = torch.autograd.grad(loss, point, create_graph=graph)
        return loss.detach(), grad, point


def random_scale(seeds: Seeds, spread: Tensor) -> Tensor:
    """``exp(U(-spread, spread))`` for every run and coordinate, ``(runs, p)``."""
    return torch.exp(spread * _uniform(seeds, "scale", len(spread)))


def _uniform(seeds: Seeds, purpose: str, count: int) -> Tensor:
    """Uniform in [-1, 1), ``(runs, count)``."""
    return (2 * draws.uniform(draws.keys(seeds, f"meta {purpose}"), count) - 1).float()
