"""Names: the paper's tasks, others of their kind, one's own, and near misses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hyperadam import tasks
from hyperadam.data import draws
from hyperadam.data.draws import Seeds, Steps
from hyperadam.tasks import Task, registry

PARAMETERS = {
    "mnist-mlp": 784 * 20 + 20 + 20 * 10 + 10,
    "mnist-mlp-1x20": 15_910,
    "mnist-mlp-tanh": 15_910,
    "mnist-mlp-9x20": 15_910 + 8 * (20 * 20 + 20),
    "mnist-mlp-2x50-elu": 784 * 50 + 50 + 50 * 50 + 50 + 50 * 10 + 10,
    "mnist14-mlp": 196 * 20 + 20 + 210,
    "cifar10-mlp": 3072 * 20 + 20 + 210,
    "mnist-cnn1": (9 + 1) * 16 + (16 * 9 + 1) * 16 + 14 * 14 * 16 * 10 + 10,
    "mnist-cnn1-bn": 33_850,
    "mnist-cnn2": 160 + 2320 + (16 * 9 + 1) * 32 + (32 * 9 + 1) * 32 + (7 * 7 * 32 + 1) * 64 + 650,
    "cifar10-cnn1-dropout": (27 + 1) * 16 + 2320 + 16 * 16 * 16 * 10 + 10,
    "cifar10-cnn2": 448 + 2320 + 4640 + 9248 + (8 * 8 * 32 + 1) * 64 + 650,
    "mnist14-cnn1": 160 + 2320 + 7 * 7 * 16 * 10 + 10,
    "sine-lstm": 80 + 20 * 80 + 80 + 21,
    "sine-lstm-small-noise": 1_781,
    "sine-lstm-2": 1_781 + 20 * 80 + 20 * 80 + 80,
}


@pytest.mark.parametrize(("name", "p"), PARAMETERS.items())
def test_parameter_counts(name: str, p: int) -> None:
    assert tasks.get(name).p == p


def test_every_name_of_the_paper_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {})  # what other tests have registered
    names = tasks.names()
    assert len(names) == len(set(names))
    assert {f"mnist-mlp-{depth}x20" for depth in range(2, 11)} <= set(names)
    assert {"mnist-mlp", "mnist-mlp-relu", "mnist-mlp-elu", "mnist-mlp-tanh"} <= set(names)
    assert {
        f"{d}-cnn{k}{e}"
        for d in ("mnist", "cifar10")
        for k in (1, 2)
        for e in ("", "-bn", "-dropout")
    } <= set(names)
    assert {"sine-lstm", "sine-lstm-small-noise", "sine-lstm-2"} <= set(names)
    for name in names:  # without touching any data
        task = tasks.get(name)
        assert task.title
        assert f"{task.p:,}" in repr(task)


def test_names_say_what_is_built() -> None:
    deep = tasks.get("mnist-mlp-3x50-relu")
    assert deep.learner.sizes == (784, 50, 50, 50, 10)
    assert deep.learner.activation == "relu"
    assert tasks.get("mnist-mlp").learner.activation == "sigmoid"
    assert tasks.get("cifar10-cnn1-bn").learner.batch_norm
    assert not tasks.get("cifar10-cnn1-bn").learner.dropout
    assert tasks.get("cifar10-cnn2-dropout").learner.dropout
    assert not tasks.get("cifar10-cnn2-dropout").learner.batch_norm
    assert tasks.get("sine-lstm").noise == 0.1
    assert tasks.get("sine-lstm-small-noise").noise == 0.01
    assert tasks.get("sine-lstm-2").learner.layers == 2


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("mnist-mpl", "mnist-mlp"),
        ("cifar-cnn1", "cifar10-cnn1"),
        ("mnist-mlp-gelu", "mnist-mlp-elu"),
        ("mnist-mlp-0x20", "mnist-mlp-10x20"),
    ],
)
def test_unknown_names_list_the_near_ones(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=rf"no task is called '{name}'; did you mean .*\b{near}\b"):
        tasks.get(name)


def test_strange_names_list_all() -> None:
    with pytest.raises(ValueError, match=r"there are mnist-mlp, .*sine-lstm-2"):
        tasks.get("zzz")


class NoisyBowl(Task[tuple[Tensor]]):
    title = "a bowl whose bottom moves"

    def __init__(self) -> None:
        super().__init__(p=10)

    def batch(self, seeds: Seeds, step: Steps) -> tuple[Tensor]:
        return (draws.normal(draws.keys(seeds, "bottom", step), 10),)

    def losses(self, params: Tensor, batch: tuple[Tensor]) -> Tensor:
        (bottom,) = batch
        return (params - bottom.to(params.dtype)).square().mean(-1)


@pytest.fixture
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_REGISTERED", {})
    return


def test_a_task_of_ones_own(fresh_registry: None) -> None:
    tasks.register("noisy-bowl", NoisyBowl)
    assert "noisy-bowl" in tasks.names()
    task, seeds = tasks.get("noisy-bowl"), range(40)
    w = start = task.init(seeds) + 5
    for step in range(100):
        _, grad = task.loss_and_grad(w, task.batch(seeds, step))
        torch.testing.assert_close(grad, 2 * (w - task.batch(seeds, step)[0].float()) / 10)
        w = w - 0.5 * grad
    assert (task.final_loss(w, seeds, 100) < 1.5).all()
    assert (task.final_loss(start, seeds, 100) > 20).all()
    torch.testing.assert_close(
        task.loss_and_grad(w[7:8], task.batch([7], 99))[0], task.loss(w, task.batch(seeds, 99))[7:8]
    )


def test_names_are_given_once(fresh_registry: None) -> None:
    tasks.register("noisy-bowl", NoisyBowl)
    for taken in ("noisy-bowl", "mnist-mlp", "mnist-mlp-2x77"):
        with pytest.raises(ValueError, match="already called"):
            tasks.register(taken, NoisyBowl)
    with pytest.raises(ValueError, match="p must be at least 1, got 0"):
        Task.__init__(NoisyBowl(), p=0)
