"""One small problem, and the plain loop that every library must repeat."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hyperadam import (
    DMOptimizer,
    HyperAdam,
    HyperAdam2,
    RNNprop,
    load_rule,
)


class Relative(HyperAdam):
    """With relative steps, told a horizon that no test here passes."""

    def __init__(self, params: Any, *args: Any, **options: Any) -> None:
        rule = load_rule("hyperadam", relative=True)
        super().__init__(params, *args, **{"weights": rule, "total_steps": 60, **options})


class Second(HyperAdam2):
    """HyperAdam2, told the same."""

    def __init__(self, params: Any, *args: Any, **options: Any) -> None:
        super().__init__(params, *args, **{"total_steps": 60, **options})


OPTIMIZERS = {
    "hyperadam": HyperAdam,
    "rnnprop": RNNprop,
    "dm": DMOptimizer,
    "relative": Relative,
    "hyperadam2": Second,
}

#: Rows of the problem, and of a batch of it.
ROWS, BATCH = 96, 16

Batch = tuple[Tensor, Tensor]


def make_model() -> nn.Sequential:
    """The same network at every call: six inputs, three classes, 165 parameters in four tensors."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def make_data(rows: int = ROWS) -> Batch:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(rows, 6, generator=generator)
    return x, (x[:, :3] * x[:, 3:]).argmax(1)


def make_batches(count: int) -> list[Batch]:
    """``count`` batches in the order of the data, which starts again when it ends."""
    x, y = make_data()
    batches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    return [batches[i % len(batches)] for i in range(count)]


def backward(model: nn.Module, batch: Batch) -> float:
    x, y = batch
    loss = cross_entropy(model(x), y)
    loss.backward()
    return loss.item()


def train(
    model: nn.Module,
    opt: Any,
    batches: Iterable[Batch],
    scheduler: Any = None,
    clip: float | None = None,
) -> list[float]:
    """The loop by hand, one step a batch. Returns the losses."""
    losses = []
    for batch in batches:
        opt.zero_grad()
        losses.append(backward(model, batch))
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        if scheduler is not None:
            scheduler.step()
    return losses


def flat(model: nn.Module) -> Tensor:
    """A copy of all parameters as one vector."""
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def assert_same_bits(model: nn.Module, expected: nn.Module) -> None:
    """Equal to the last bit, and both have moved: two runs that do nothing are equal, too."""
    a, b = flat(model), flat(expected)
    far = (a - b).abs().max().item()
    assert torch.equal(a, b), f"parameters differ by up to {far:.2e}"
    if a.shape == (start := flat(make_model())).shape:
        assert not torch.equal(a, start), "nothing was trained"


def assert_close(model: nn.Module, expected: nn.Module, atol: float = 1e-6) -> None:
    torch.testing.assert_close(flat(model), flat(expected), rtol=0, atol=atol)


def state_of(opt: Any) -> list[Tensor]:
    """All tensors of the state, in the order of the parameters and by name."""
    state = opt.state_dict()["state"]
    return [copy.deepcopy(state[key][name]) for key in sorted(state) for name in sorted(state[key])]


def assert_same_state(a: Any, b: Any) -> None:
    mine, theirs = state_of(a), state_of(b)
    assert mine, "an optimizer that has stepped has a state"
    assert len(mine) == len(theirs)
    for x, y in zip(mine, theirs, strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)
