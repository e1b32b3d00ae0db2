"""skorch: an optimizer given as a class, with its options as parameters of the net."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from .problem import (
    BATCH,
    assert_same_bits,
    assert_same_state,
    flat,
    make_batches,
    make_data,
    make_model,
    train,
)

skorch = pytest.importorskip("skorch")

Make = Callable[..., Any]


class Net(nn.Module):
    """The problem's network, at module level so that it can be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_model()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def classifier(make: Make, **options: Any) -> Any:
    settings = {
        "criterion": nn.CrossEntropyLoss,
        "optimizer": make,
        "lr": 0.005,
        "batch_size": BATCH,
        "max_epochs": 2,
        "train_split": None,
        "verbose": 0,
        "device": "cpu",
    }
    return skorch.NeuralNetClassifier(Net, **settings | options)


def numpy_data() -> tuple[Any, Any]:
    x, y = make_data()
    return x.numpy(), y.numpy()


def test_fit(make: Make) -> None:
    net = classifier(make, optimizer__weight_decay=0.1).fit(*numpy_data())
    twin = make_model()
    opt = make(twin.parameters(), lr=0.005, weight_decay=0.1)
    losses = train(twin, opt, make_batches(12))
    assert_same_bits(net.module_, twin)
    assert_same_state(net.optimizer_, opt)
    assert net.history[-1, "train_loss"] == pytest.approx(sum(losses[6:]) / 6, abs=1e-6)

    plain = classifier(make).fit(*numpy_data())
    assert not torch.equal(flat(plain.module_), flat(net.module_)), "weight decay arrived"


def test_a_known_number_of_steps(make: Make) -> None:
    net = classifier(make, optimizer__total_steps=12).fit(*numpy_data())
    twin = make_model()
    train(twin, make(twin.parameters(), lr=0.005, total_steps=12), make_batches(12))
    assert_same_bits(net.module_, twin)


def test_options_of_groups(make: Make) -> None:
    """skorch names groups by pattern: the last layer at a rate of its own."""
    net = classifier(make, optimizer__param_groups=[("layers.2.*", {"lr": 0.02})])
    net.fit(*numpy_data())
    twin = make_model()
    groups = [
        {"params": list(twin[2].parameters()), "lr": 0.02},
        {"params": list(twin[0].parameters())},
    ]
    train(twin, make(groups, lr=0.005), make_batches(12))
    assert_same_bits(net.module_, twin)


def test_a_scheduler(make: Make) -> None:
    from skorch.callbacks import LRScheduler

    policy = LRScheduler(
        torch.optim.lr_scheduler.OneCycleLR,
        max_lr=0.02,
        total_steps=13,
        step_every="batch",
    )
    net = classifier(make, callbacks=[policy]).fit(*numpy_data())
    twin = make_model()
    opt = make(twin.parameters(), lr=0.005)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.02, total_steps=13)
    train(twin, opt, make_batches(12), scheduler)
    assert_same_bits(net.module_, twin)


def test_a_pickled_net_goes_on_alike(make: Make) -> None:
    net = classifier(make).fit(*numpy_data())
    copied = pickle.loads(pickle.dumps(net))
    assert torch.equal(flat(copied.module_), flat(net.module_))
    assert_same_state(copied.optimizer_, net.optimizer_)
    for x in (net, copied):
        x.partial_fit(*numpy_data())
    twin = make_model()
    train(twin, make(twin.parameters(), lr=0.005), make_batches(24))
    assert_same_bits(copied.module_, net.module_)
    assert_same_bits(copied.module_, twin)


def test_saved_parameters_go_on_alike(make: Make, tmp_path: Path) -> None:
    net = classifier(make).fit(*numpy_data())
    files = {"f_params": tmp_path / "model.pt", "f_optimizer": tmp_path / "optimizer.pt"}
    net.save_params(**files)
    other = classifier(make).initialize()
    other.load_params(**files)
    for x in (net, other):
        x.partial_fit(*numpy_data())
    assert_same_bits(other.module_, net.module_)
    assert_same_state(other.optimizer_, net.optimizer_)


def test_a_clone_starts_anew(make: Make) -> None:
    """As in a grid search: scikit-learn clones the net with its options, not with its state."""
    base = pytest.importorskip("sklearn.base")
    net = classifier(make, optimizer__weight_decay=0.1).fit(*numpy_data())
    again = base.clone(net).set_params(lr=0.005).fit(*numpy_data())
    assert_same_bits(again.module_, net.module_)
