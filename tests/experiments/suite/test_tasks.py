"""The suite's tasks are what they say: sizes, starts, pixels, text; on noise, so that no data is needed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from hyperadam import data
from hyperadam.experiments.suite import networks, tasks
from hyperadam.experiments.suite.scores import envelopes
from hyperadam.experiments.suite.tasks import TASKS
from hyperadam.tasks import ModuleTask
from tests.tasks.conftest import noise_images

#: Parameters, counted by hand from the layers.
SIZES = {
    "fashion8-mlp": 64 * 32 + 32 + 330,
    "cifar8-mlp": 192 * 32 + 32 + 330,
    "tabular": 10 * 32 + 32 + 33,
    "cifar-ae": 3072 * 32 + 32 + 2 * (32 * 32 + 32) + 32 * 3072 + 3072,
    "fashion-mlp": 784 * 128 + 128 + 128 * 128 + 128 + 1290,
    "mnist-mlp3": 784 * 128 + 128 + 2 * (128 * 128 + 128) + 1290,
    "mnist-ae": 784 * 128 + 128 + 128 * 32 + 32 + 32 * 128 + 128 + 128 * 784 + 784,
    "fashion-ae": 784 * 128 + 128 + 128 * 32 + 32 + 32 * 128 + 128 + 128 * 784 + 784,
    "cifar-mlp-norm": 3072 * 128 + 128 + 2 * (128 * 128 + 128) + 3 * 256 + 1290,
    "finetune": 160 + 16 * 32 * 9 + 32 + 1568 * 64 + 64 + 650,
    "text-lstm": 98 * 64 + 4 * (64 * 128 + 128 * 128 + 256) + 128 * 98 + 98,
    "fashion-mlp-1m": 784 * 768 + 768 + 768 * 512 + 512 + 5130,
    "cifar-cnn2": 448 + 2320 + 4640 + 9248 + 2048 * 64 + 64 + 650,
    "cifar16-conv": 896 + 18496 + 36928 + 650,
    "cifar-conv": 896 + 18496 + 36928 + 650,
}


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Noise in place of the datasets, and a short first training where one comes before."""
    monkeypatch.setattr(data, "load", noise_images)
    monkeypatch.setattr(tasks, "PRETRAINING", 3)
    caches = (tasks.images, tasks._digits)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_there_are_seventeen() -> None:
    assert len(TASKS) == 17
    assert {task.envelope for task in TASKS.values() if task.envelope} == set(envelopes())
    assert all({100, 1_000} <= set(task.steps) for task in TASKS.values())
    assert sum(10_000 in task.steps for task in TASKS.values()) == 4


@pytest.mark.parametrize("name", TASKS)
def test_a_task_learns(noise: None, name: str) -> None:
    if name == "tabular":
        pytest.importorskip("sklearn")
    task = TASKS[name].build()
    if name in SIZES:
        assert task.p == SIZES[name]
    module = task.module(0)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    first = task.module_loss(module, 0, 0)
    first.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    assert any(p.grad.abs().sum() > 0 for p in module.parameters())
    optimizer.step()
    assert task.module_loss(module, 0, 0) < first
    assert math.isfinite(task.test_loss(module))


@pytest.mark.parametrize("name", ["fashion8-mlp", "text-lstm", "text-transformer", "cifar-vit"])
def test_the_flat_life_is_the_same(noise: None, name: str) -> None:
    task = TASKS[name].build()
    loss, grad = task.loss_and_grad(task.init([0]), task.batch([0], 2))
    module = task.module(0)
    real = task.module_loss(module, 0, 2)
    real.backward()
    torch.testing.assert_close(loss[0], real.detach())
    joined = torch.cat([p.grad.flatten() for p in module.parameters()])
    torch.testing.assert_close(grad[0], joined)


def test_velodromes_start() -> None:
    torch.manual_seed(0)
    module = networks.truncated(networks.mlp((3072, 128, 10)))
    weight, bias = module[1].weight * math.sqrt(3072), module[1].bias
    assert weight.abs().max() <= 2
    assert weight.std().item() == pytest.approx(0.8796, abs=0.005)  # of a normal cut at ±2
    assert torch.equal(bias, torch.zeros(128))
    conv = networks.truncated(networks.conv((3, 32, 64)))
    assert conv[2].weight.std().item() * math.sqrt(9 * 32) == pytest.approx(0.8796, abs=0.02)


def test_velodromes_images(noise: None) -> None:
    raw = noise_images("cifar10").train_images
    small = tasks.Images("cifar10", 8, 0.8)
    assert len(small.train[0]) == len(small.train[1]) == int(0.8 * len(raw)), "the first 80 %"
    # without antialiasing, a fourth of the size takes the mean of the two pixels in the middle, either way
    middle = (raw.double() / 255).unfold(2, 4, 4).unfold(3, 4, 4)[..., 1:3, 1:3].mean((-2, -1))
    torch.testing.assert_close(small.train[0].double(), middle[: len(small.train[0])])
    same = tasks.Images("cifar10", 32)
    assert same.train[0].dtype == torch.uint8
    pixels, labels = same.batches(5)(torch.tensor([1, 2]))
    assert pixels.shape == (2, 5, 3, 32, 32)
    assert pixels.min() >= 0
    assert 0.9 < pixels.max() <= 1
    shifted, _ = same.batches(5, offset=0.5)(torch.tensor([1, 2]))
    torch.testing.assert_close(shifted, pixels - 0.5)
    assert labels.shape == (2, 5)


def test_an_autoencoders_loss() -> None:
    batch = (torch.rand(4, 1, 2, 2), torch.zeros(4))
    out = torch.randn(4, 4)
    expected = (batch[0].view(4, 4) - 1 / (1 + (-out).exp())).square().mean()
    torch.testing.assert_close(tasks.reconstruct(lambda x: out, batch), expected)


def test_a_language_model_does_not_see_what_comes() -> None:
    torch.manual_seed(0)
    module = networks.gpt(kinds=11, length=6)
    text = torch.randint(11, (2, 6))
    later = text.clone()
    later[:, 4] = (later[:, 4] + 1) % 11
    a, b = module(text), module(later)
    torch.testing.assert_close(a[:, :4], b[:, :4])
    assert (a[:, 4:] - b[:, 4:]).abs().max() > 1e-6
    assert module.head.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_patches_are_squares() -> None:
    images = torch.arange(2 * 3 * 16 * 16).view(2, 3, 16, 16).float()
    tokens = networks.Patches(8)(images)
    assert tokens.shape == (2, 4, 192)
    assert torch.equal(tokens[1, 1].view(3, 8, 8), images[1, :, :8, 8:])


def test_fine_tuning_starts_from_what_was_learned(noise: None) -> None:
    task: ModuleTask = TASKS["finetune"].build()
    a, b, other = task.module(0), task.module(0), task.module(1)
    torch.manual_seed(int(torch.randint(10, ())))  # what else is drawn changes nothing
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)
    seeds = (0, 1)
    for seed, module in zip(seeds, (a, other), strict=True):
        learned = tasks._digits(_seed_of(task, seed))
        assert torch.equal(module[0].weight, learned["0.weight"])
        assert torch.equal(module[5].weight, learned["5.weight"])
        assert not torch.equal(module[7].weight, learned["7.weight"]), "the last layer is new"
    assert not torch.equal(a[0].weight, other[0].weight)


def _seed_of(task: ModuleTask, seed: int) -> int:
    seen: list[int] = []
    make = task._make
    task._make = lambda: (seen.append(torch.initial_seed()), nn.Identity())[1]
    task.module(seed)
    task._make = make
    return seen[0]


def test_text_is_split() -> None:
    numbers, sha256 = data.text.library_text()
    task = TASKS["text-lstm"].build()
    blocks = list(task._test())
    rest = torch.cat([inputs.flatten() for inputs, _ in blocks])
    cut = len(numbers) * 9 // 10
    assert torch.equal(rest, numbers[cut : cut + len(rest)])
    assert len(numbers) - cut - len(rest) <= 33
    for inputs, targets in blocks:
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert sha256[:16] in TASKS["text-lstm"].data()


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="no task nonsense; there are fashion8-mlp"):
        tasks.find(["nonsense"])
    assert [task.name for task in tasks.find(["tabular", "fashion8-mlp"])] == [
        "fashion8-mlp",
        "tabular",
    ]
