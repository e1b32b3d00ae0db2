"""A task of the family: many runs of one learner, all on the same batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, smooth_l1_loss

from hyperadam.data import draws
from hyperadam.tasks.base import Shape
from hyperadam.tasks.family.networks import Network
from hyperadam.tasks.family.sources import Batch, Source
from hyperadam.tasks.family.tensors import Slot, start

#: The number of the first batch that final losses are taken on, behind all that any episode trains
#: on; and how many there are.
LAST, LAST_BATCHES = 10**9, 16
#: From a learner's answers ``(runs, m, outputs)`` and the targets to losses ``(runs,)``.
Loss = Callable[[Tensor, Tensor], Tensor]


def _classes(out: Tensor, y: Tensor) -> Tensor:
    runs = len(out)
    losses = cross_entropy(out.flatten(0, 1), y.repeat(runs), reduction="none")
    return losses.view(runs, -1).mean(1)


def _squares(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).square().mean((1, 2))


def _robust(out: Tensor, y: Tensor) -> Tensor:
    return smooth_l1_loss(out, y.expand_as(out), reduction="none").mean((1, 2))


def _pixels(out: Tensor, y: Tensor) -> Tensor:
    return (torch.sigmoid(out) - y).square().mean((1, 2))


def _bernoulli(out: Tensor, y: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(out, y.expand_as(out), reduction="none").mean((1, 2))


LOSSES: dict[str, Loss] = {
    "classes": _classes,
    "squares": _squares,
    "robust": _robust,
    "pixels": _pixels,
    "bernoulli": _bernoulli,
}


class Problem(Protocol):
    """What a task does without its start and its scaling: tensors, and losses on shared batches."""

    def slots(self) -> list[Slot]:
        """The tensors of a learner."""

    def losses(self, weights: Sequence[Tensor], seed: int, step: int) -> Tensor:
        """The loss of each run, ``(runs,)``, on the batch of ``step``; differentiable."""

    def work(self) -> float:
        """What a forward pass over a batch costs a run, in operations of matrix products."""

    def calls(self) -> int:
        """How many torch functions a forward pass calls, about."""


class Learning:
    """A network that learns from a source."""

    def __init__(self, network: Network, source: Source, loss: str, size: int) -> None:
        self.network, self.source, self.loss, self.size = network, source, loss, size

    def __str__(self) -> str:
        return f"{self.network}, {self.loss}, batch {self.size}"

    def slots(self) -> list[Slot]:
        return self.network.slots()

    def batch(self, seed: int, step: int) -> Batch:
        """The batch that every run sees at ``step`` of the episode ``seed``."""
        return self.source.batch(seed, step, self.size)

    def losses(self, weights: Sequence[Tensor], seed: int, step: int) -> Tensor:
        x, y = self.batch(seed, step)
        dtype = weights[0].dtype
        x, y = (t.to(dtype) if t.is_floating_point() else t for t in (x, y))
        return LOSSES[self.loss](self.network(weights, x), y)

    def work(self) -> float:
        return self.network.work() * self.size

    def calls(self) -> int:
        return self.network.calls() + 12


class Quadratic:
    """A bowl ``½ (w − b)ᵀ H (w − b)`` with eigenvalues from 1 to 1/condition.

    With ``noise`` its bottom ``b`` moves at every step, so that the gradient is never exact.
    """

    def __init__(self, seed: int, shape: Shape, condition: float, noise: float) -> None:
        self.shape, self.noise, self.condition = shape, noise, condition
        size = math.prod(shape)
        key = draws.keys([seed], "family axes")
        axes, _ = torch.linalg.qr(draws.normal(key, size, size)[0])
        powers = torch.linspace(0, -0.5, size, dtype=torch.float64)
        self.root = (condition**powers).unsqueeze(1) * axes
        self.bottom = draws.normal(draws.keys([seed], "family bottom"), size)[0]

    def __str__(self) -> str:
        shape = "×".join(map(str, self.shape))
        return f"quadratic {shape}, condition {self.condition:.0f}, noise {self.noise:.2g}"

    def slots(self) -> list[Slot]:
        size = math.prod(self.shape)
        return [Slot(self.shape, "weight", size // self.shape[0], self.shape[0])]

    def losses(self, weights: Sequence[Tensor], seed: int, step: int) -> Tensor:
        w = weights[0].flatten(1)
        bottom = self.bottom
        if self.noise:
            moved = draws.normal(draws.keys([seed], "family batch", step), len(bottom))[0]
            bottom = bottom + self.noise * moved
        distance = (w - bottom.to(w.dtype)) @ self.root.to(w.dtype).T
        return 0.5 * distance.square().mean(1)

    def work(self) -> float:
        return 2.0 * math.prod(self.shape) ** 2

    def calls(self) -> int:
        return 8


class FamilyTask:
    """One task: a problem, how its learners start, and a random scaling of their coordinates.

    All runs of an episode start from the same tensors and see the same batches: what differs
    between them is the rule alone. With scaling a learner's weights are ``w = c · w̃``, and the
    rule sees ``w̃`` and its gradient.

    Args:
        kind: one of :data:`hyperadam.tasks.family.KINDS`.
        problem: the network with its data, or a quadratic.
        how: how the tensors start, one of :data:`hyperadam.tasks.family.tensors.STARTS`.
        factor: weights and biases start this much larger.
        scales: ``c`` for each tensor, broadcastable to its shape; ``None``: no scaling.
    """

    def __init__(
        self,
        kind: str,
        problem: Problem,
        how: str = "torch",
        factor: float = 1.0,
        scales: Sequence[Tensor] | None = None,
    ) -> None:
        self.kind, self.problem, self.how, self.factor = kind, problem, how, factor
        self.scales = scales
        self.slots = problem.slots()

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of a learner's tensors, without runs."""
        return [slot.shape for slot in self.slots]

    @property
    def p(self) -> int:
        """How many numbers a learner has."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def title(self) -> str:
        """The task in a line."""
        start = f"{self.how} start" + (f" × {self.factor:.2g}" if self.factor != 1 else "")
        return f"{self.problem}, {start}" + (", scaled" if self.scales else "")

    def init(self, seed: int) -> list[Tensor]:
        """Where every run of the episode ``seed`` starts: float32 tensors ``(*shape)``."""
        tensors = start(self.slots, self.how, seed, self.factor)
        if self.scales is None:
            return tensors
        return [w / c for w, c in zip(tensors, self.scales, strict=True)]

    def loss_and_grad(
        self, params: Sequence[Tensor], seed: int, step: int
    ) -> tuple[Tensor, list[Tensor]]:
        """Losses ``(runs,)`` and gradients ``(runs, *shape)`` on the batch of ``step``."""
        with torch.enable_grad():
            points = [w.requires_grad_() for w in self._points(params)]
            losses = self.problem.losses(points, seed, step)
            grads = list(torch.autograd.grad(losses.sum(), points))
        if self.scales is not None:
            grads = [g * c.to(g.dtype) for g, c in zip(grads, self.scales, strict=True)]
        # what comes out of a transposed product lies transposed in memory
        return losses.detach(), [g.contiguous() for g in grads]

    @torch.no_grad()
    def final_loss(self, params: Sequence[Tensor], seed: int) -> Tensor:
        """The mean loss ``(runs,)`` at the end of the episode ``seed``, on batches of its own."""
        points = self._points(params)
        losses = [self.problem.losses(points, seed, LAST + k) for k in range(LAST_BATCHES)]
        return torch.stack(losses).mean(0)

    def _points(self, params: Sequence[Tensor]) -> list[Tensor]:
        """The learners' own tensors, in front of the scaling."""
        points = [w.detach() for w in params]
        if self.scales is None:
            return points
        return [w * c.to(w.dtype) for w, c in zip(points, self.scales, strict=True)]

    def seconds(self, runs: int) -> float:
        """About how long a step's gradient takes for that many runs, on one thread of a usual machine."""
        per_call, per_flop, per_number = 1.5e-5, 2e-11, 1.5e-9
        size = runs * (3 * self.problem.work() * per_flop + self.p * per_number)
        return self.problem.calls() * per_call + size

    def __repr__(self) -> str:
        return f"<{self.kind}: {self.title}, p = {self.p:,}>"
