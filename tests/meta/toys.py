"""A task small enough to meta-train on in a test."""

from __future__ import annotations

import torch
from torch import Tensor

from hyperadam import tasks
from hyperadam.data import draws
from hyperadam.data.draws import Seeds, Steps
from hyperadam.tasks.base import Task


class Bowl(Task[tuple[Tensor]]):
    """A quartic bowl with a bottom that moves: its Hessian depends on where one stands."""

    title = "a bowl whose bottom moves"

    def __init__(self, p: int = 7) -> None:
        super().__init__(p)

    def batch(self, seeds: Seeds, step: Steps) -> tuple[Tensor]:
        return (draws.normal(draws.keys(seeds, "bottom", step), self.p),)

    def losses(self, params: Tensor, batch: tuple[Tensor]) -> Tensor:
        distance = params - 0.1 * batch[0].to(params.dtype) - 1
        return (distance.square() + 0.3 * distance**4).mean(-1)


def register() -> str:
    if "toy-bowl" not in tasks.names():
        tasks.register("toy-bowl", Bowl)
        tasks.register("toy-wide-bowl", lambda: Bowl(300))
    return "toy-bowl"


def noisy(rule: torch.nn.Module, scale: float = 0.3) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    for value in rule.parameters():
        value.data += scale * torch.randn(value.shape, generator=generator)
    return rule
