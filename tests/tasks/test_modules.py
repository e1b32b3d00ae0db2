"""A task from a module: its flat life and its real one are the same numbers, and what would make them differ is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from hyperadam import tasks
from hyperadam.data import draws
from hyperadam.tasks import ModuleTask, examples, registry, windows

X = draws.normal(draws.keys([1], "x"), 50, 3)[0].float()
Y = X.sin().sum(1, keepdim=True)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 1))


def error(module: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return mse_loss(module(batch[0]), batch[1])


def make(build=net, **options) -> ModuleTask:
    return ModuleTask(build, error, examples((X, Y), n=8), title="a curve", **options)


def flat(tensors) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def test_flat_and_real_agree() -> None:
    task, seeds = make(), [4, 0, 9]
    loss, grad = task.loss_and_grad(task.init(seeds), task.batch(seeds, 7))
    assert task.p == 3 * 5 + 5 + 5 + 5 + 5 + 1 == grad.shape[1]
    assert task.shapes == [(5, 3), (5,), (5,), (5,), (1, 5), (1,)]
    for run, seed in enumerate(seeds):
        module = task.module(seed)
        assert torch.equal(flat(module.parameters()), task.init([seed])[0])
        real = task.module_loss(module, seed, 7)
        real.backward()
        assert torch.equal(real.detach(), loss[run])
        assert torch.equal(flat(p.grad for p in module.parameters()), grad[run])


def test_training_is_the_same_in_both_lives() -> None:
    task = make()
    w, module = task.init([2, 3]), task.module(3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(5):
        w = w - 0.1 * task.loss_and_grad(w, task.batch([2, 3], step))[1]
        optimizer.zero_grad()
        task.module_loss(module, 3, step).backward()
        optimizer.step()
    torch.testing.assert_close(w[1], flat(module.parameters()))
    assert (w[1] - task.init([3])[0]).norm() > 0.01


def test_derivatives() -> None:
    task = make()
    w = task.init([1], torch.float64).requires_grad_()
    batch = task.batch([1], 0)
    assert task.loss(w, batch).dtype == torch.float64
    assert torch.autograd.gradcheck(lambda w: task.loss(w, batch), w)
    assert torch.autograd.gradgradcheck(lambda w: task.loss(w, batch), w)


def test_modules_are_named_by_their_seed_alone() -> None:
    task = make()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    a, b, other = task.module(1), task.module(1), task.module(2)
    assert torch.equal(torch.random.get_rng_state(), before), "the user's own draws go on as before"
    assert torch.equal(flat(a.parameters()), flat(b.parameters()))
    assert not torch.equal(flat(a.parameters()), flat(other.parameters()))
    with torch.no_grad():
        next(a.parameters()).zero_()
    assert next(b.parameters()).abs().sum() > 0, "they share nothing"


def test_a_loss_leaves_no_trace_in_buffers() -> None:
    task = make(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    w, batch = task.init([0]), task.batch([0], 0)
    first = task.loss(w, batch)
    assert torch.equal(task._template[1].running_mean, torch.zeros(4))
    assert torch.equal(task.loss(w, batch), first)
    module = task.module(0)
    assert torch.equal(task.module_loss(module, 0, 0), first[0])
    assert module[1].running_mean.abs().sum() > 0, "a real module keeps its own"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.ReLU(), "got one with none"),
        (lambda: nn.Linear(3, 1, dtype=torch.float64), r"in float32, got \['torch.float64'\]"),
        (
            lambda: nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.1)),
            r"whose 1 drops units out at random \(0.1\)",
        ),
        (lambda: nn.LSTM(3, 3, 2, dropout=0.2), r"whose root drops units out at random \(0.2\)"),
    ],
)
def test_what_cannot_be_a_task_is_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(build)


def test_dropout_of_nothing_is_fine() -> None:
    assert make(lambda: nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.0))).p == 4


def test_test_loss_weighs_examples_alike() -> None:
    task = make(test=lambda: [(X[:40], Y[:40]), (X[40:], Y[40:])])
    module = task.module(0)
    assert task.has_test
    assert task.test_loss(module) == pytest.approx(float(error(module, (X, Y)).detach()), rel=1e-5)
    assert not make().has_test
    assert math.isnan(make().test_loss(module))


def test_examples_belong_together() -> None:
    sample = examples((torch.arange(9), torch.arange(9) * 10), n=40)
    keys = draws.keys([0, 1], "batch", 3)
    first, second = sample(keys)
    assert first.shape == second.shape == (2, 40)
    assert torch.equal(second, first * 10)
    assert set(first.flatten().tolist()) == set(range(9))
    assert not torch.equal(first[0], first[1])
    with pytest.raises(ValueError, match=r"equally long, got lengths \[2, 3\]"):
        examples((torch.zeros(2), torch.zeros(3)), n=1)


def test_windows_foretell_what_follows() -> None:
    text = torch.arange(12)
    inputs, targets = windows(text, length=4, n=200)(draws.keys([0], "batch"))
    assert inputs.shape == targets.shape == (1, 200, 4)
    assert torch.equal(targets, inputs + 1)
    assert set(inputs[0, :, 0].tolist()) == set(range(8)), "every window that has a next number"
    with pytest.raises(ValueError, match="longer than a window of 12, got 12"):
        windows(text, length=12, n=1)


def test_it_has_a_name_like_any_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {})
    tasks.register("curve", make)
    assert tasks.get("curve").p == 36
    assert "a curve" in repr(tasks.get("curve"))
