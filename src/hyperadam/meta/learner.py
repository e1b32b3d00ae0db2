"""A learner as meta-training sees it: one run of a task, with Random Scaling and Combination with a Convex function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hyperadam.data import draws
from hyperadam.tasks.base import Task

#: The convex function: its dimension, and where its terms are cut off.
CONVEX_SIZE, CONVEX_LIMIT = 20, 10.0


class Learner:
    """The optimizee ``L(c1 ⊙ w) + h(c2 ⊙ z)`` of one rollout, a function of the vector ``(w, z)`` of shape ``(1, p)``.

    ``c1 = exp(U(-3, 3))``, ``c2 = exp(U(-1, 1))`` and the bottom of ``h(z) = mean(min((z - η)², 10))`` are drawn from the seed.
    """

    def __init__(self, task: Task[Any], seed: int, scaling: bool = True, convex: bool = True) -> None:
        self.task, self.seeds = task, [seed]
        k = CONVEX_SIZE if convex else 0
        self.p = task.p + k
        spread = torch.cat([torch.full((task.p,), 3.0), torch.full((k,), 1.0)]) if scaling else torch.zeros(self.p)
        self.scale = torch.exp(spread * self._uniform("scale", self.p))
        self.bottom = self._uniform("bottom", k)

    def init(self) -> Tensor:
        """Where a rollout starts, ``(1, p)``: the task's start, and zeros for ``z``, both divided by the scale."""
        start = torch.zeros(1, self.p)
        start[:, : self.task.p] = self.task.init(self.seeds)
        return start / self.scale

    def loss(self, params: Tensor, step: int) -> Tensor:
        """The loss at ``params (1, p)`` on the batch of ``step``, a scalar, differentiable as often as asked."""
        scaled = params * self.scale
        w, z = scaled[:, : self.task.p], scaled[:, self.task.p :]
        loss = self.task.loss(w, self.task.batch(self.seeds, step)).sum()
        if self.bottom.numel():
            loss = loss + (z - self.bottom).square().clamp(max=CONVEX_LIMIT).mean()
        return loss

    def loss_and_grad(self, params: Tensor, step: int, graph: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, gradient ``(1, p)``, and the point they were taken at; with ``graph`` the gradient can be differentiated."""
        with torch.enable_grad():
            point = params.detach().requires_grad_()
            loss = self.loss(point, step)
            (grad,) = torch.autograd.grad(loss, point, create_graph=graph)
        return loss.detach(), grad, point

    def _uniform(self, purpose: str, count: int) -> Tensor:
        """Uniform in [-1, 1), ``(count,)``."""
        return (2 * draws.uniform(draws.keys(self.seeds, f"meta {purpose}"), count) - 1)[0].float()
