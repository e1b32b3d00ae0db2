"""Stand-ins for the datasets, so that tasks are tested without a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hyperadam import data, tasks
from hyperadam.data import catalog


def noise_images(name: str, root: str | Path | None = None) -> data.Dataset:
    generator = torch.Generator().manual_seed(0)
    image = catalog.find(name).image

    def part(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randint(256, (n, *image), generator=generator, dtype=torch.uint8)
        return images, torch.randint(10, (n,), generator=generator)

    return data.Dataset(*part(300), *part(1200))


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise in place of MNIST and CIFAR-10."""
    monkeypatch.setattr(data, "load", noise_images)


@pytest.fixture
def make(noise: None) -> Callable[..., tasks.Task]:
    """A task by name on noise, with batches of ``n`` if given."""

    def build(name: str, n: int | None = None) -> tasks.Task:
        task = tasks.get(name)
        if n:
            task.batch_size = n
        return task

    return build
