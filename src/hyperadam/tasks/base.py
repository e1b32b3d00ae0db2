"""The contract of a task: a learner, its loss and its data, advanced for many runs as one computation."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from hyperadam.data import draws
from hyperadam.data.draws import Seeds, Steps

Shape = tuple[int, ...]
BatchT = TypeVar("BatchT", bound=tuple[Tensor, ...])

#: Every parameter of every learner starts from N(0, 0.1²), biases too.
INITIAL_STD = 0.1


class Metrics(NamedTuple):
    """How learners do on a test set, each ``(runs,)``: mean loss, and the shares of examples whose class is the most likely
    one, or among the two most likely."""

    loss: Tensor
    top1: Tensor
    top2: Tensor


class Task(ABC, Generic[BatchT]):
    """A learner with ``p`` parameters in one flat vector, and the batches it is trained on.

    A run is named by its seed. Its initial parameters and its batches depend on the seed and the step alone, never on a
    generator's past: a run is the same alone or among a hundred others, and a stopped one resumes anywhere. The first
    dimension of every tensor is the run. A task of one's own is a subclass with a ``batch`` and ``losses``::

        from torch import Tensor

        from hyperadam import tasks
        from hyperadam.data import draws
        from hyperadam.data.draws import Seeds, Steps
        from hyperadam.tasks import Task

        class NoisyBowl(Task[tuple[Tensor]]):
            title = "a bowl whose bottom moves"

            def __init__(self) -> None:
                super().__init__(p=10)

            def batch(self, seeds: Seeds, step: Steps) -> tuple[Tensor]:
                return (draws.normal(draws.keys(seeds, "bottom", step), 10),)

            def losses(self, params: Tensor, batch: tuple[Tensor]) -> Tensor:
                (bottom,) = batch
                return (params - bottom.to(params.dtype)).square().mean(-1)

        tasks.register("noisy-bowl", NoisyBowl)

    ``shapes`` are those of the tensors that the vector is made of, in their order: optimizers that look at tensors as a whole
    see these. Unless they are given, it is one tensor.
    """

    #: What the task is, in a line.
    title: str = ""
    #: How many runs go through the learner together: enough to spread Python's cost, few enough to stay in the caches.
    runs_at_once: int = 16

    def __init__(self, p: int, shapes: Sequence[Shape] | None = None) -> None:
        if p < 1:
            raise ValueError(f"p must be at least 1, got {p}")
        self.p = p
        self.shapes: list[Shape] = [(p,)] if shapes is None else list(shapes)
        entries = sum(math.prod(shape) for shape in self.shapes)
        if entries != p:
            raise ValueError(f"shapes have {entries} entries, expected p = {p}")

    @abstractmethod
    def batch(self, seeds: Seeds, step: Steps) -> BatchT:
        """The batches of the runs ``seeds`` at ``step`` (one number, or one per run): tensors ``(runs, ...)``."""

    @abstractmethod
    def losses(self, params: Tensor, batch: BatchT) -> Tensor:
        """The loss of each run, ``(runs, p) -> (runs,)``, differentiable as often as asked, in the dtype of ``params``."""

    def init(self, seeds: Seeds, dtype: torch.dtype = torch.float32) -> Tensor:
        """Initial parameters, ``(runs, p)``."""
        return (INITIAL_STD * draws.normal(draws.keys(seeds, "init"), self.p)).to(dtype)

    def loss(self, params: Tensor, batch: BatchT) -> Tensor:
        """The loss of each run on its batch, ``(runs, p) -> (runs,)``, differentiable."""
        return torch.cat(
            [self.losses(params[runs], _part(batch, runs)) for runs in self._chunks(params)]
        )

    def loss_and_grad(self, params: Tensor, batch: BatchT) -> tuple[Tensor, Tensor]:
        """The loss ``(runs,)`` and its gradient ``(runs, p)``, both detached."""
        loss, grad = params.new_empty(len(params)), torch.empty_like(params, requires_grad=False)
        for runs in self._chunks(params):
            with torch.enable_grad():
                w = params[runs].detach().requires_grad_()
                losses = self.losses(w, _part(batch, runs))
                (grad[runs],) = torch.autograd.grad(losses.sum(), w)
            loss[runs] = losses.detach()
        return loss, grad

    @torch.no_grad()
    def final_loss(self, params: Tensor, seeds: Seeds, steps: int) -> Tensor:
        """The mean loss of ``params`` over the very batches of steps ``0 … steps-1``, ``(runs,)``."""
        total = torch.zeros(len(params), dtype=torch.float64)
        for step in range(steps):
            total += self.loss(params, self.batch(seeds, step))
        return (total / steps).to(params.dtype)

    def _chunks(self, params: Tensor) -> Iterator[slice]:
        if params.dim() != 2 or params.shape[1] != self.p:
            raise ValueError(f"params must be (runs, {self.p}), got {tuple(params.shape)}")
        return (slice(k, k + self.runs_at_once) for k in range(0, len(params), self.runs_at_once))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.title}, p = {self.p:,}>"


def _part(batch: BatchT, runs: slice) -> BatchT:
    parts = [tensor[runs] for tensor in batch]
    # a NamedTuple takes its fields one by one, a tuple all at once
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
