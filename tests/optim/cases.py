"""What the suite runs over: every optimizer on every backend that this machine has for it, and vectors to step."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import hyperadam
from hyperadam import (
    DMOptimizer,
    DMRule,
    HyperAdam,
    HyperAdam2,
    HyperAdam2Rule,
    HyperAdamRule,
    LearnedOptimizer,
    RNNprop,
    RNNpropRule,
    UpdateRule,
)

#: A vector cut in every awkward way: matrices, a scalar, one coordinate, sizes off the vector width.
SHAPES = [(7, 9), (), (1,), (65,), (3, 2, 5)]


def lively(rule: UpdateRule[Any], scale: float = 3.0) -> UpdateRule[Any]:
    """A rule whose weights are large enough for norms and states to matter."""
    with torch.no_grad():
        for weight in rule.parameters():
            weight.mul_(scale).add_(0.1 * torch.randn_like(weight))
    return rule.requires_grad_(False)


class Case(NamedTuple):
    """An optimizer class with a rule for it and a backend that runs it."""

    optimizer: type[LearnedOptimizer]
    rule: UpdateRule[Any]
    backend: str

    def make(self, params: Any, lr: float | Tensor = 0.01, **options: Any) -> LearnedOptimizer:
        return self.optimizer(
            params, lr, **{"weights": self.rule, "backend": self.backend} | options
        )


BACKENDS = hyperadam.kernels.available()
#: An optimizer's class, its rule's, and a backend.
Kind = tuple[type[LearnedOptimizer], Callable[..., UpdateRule[Any]], str]
#: Rules that keep nothing of a tensor as a whole, unless they are asked to take steps relative to its size.
PLAIN: dict[str, Kind] = {
    **{f"hyperadam-{backend}": (HyperAdam, HyperAdamRule, backend) for backend in BACKENDS},
    "rnnprop-torch": (RNNprop, RNNpropRule, "torch"),
    "dm-torch": (DMOptimizer, DMRule, "torch"),
}
#: For relative steps the fastest backend and the plainest will do.
KINDS: dict[str, Kind] = {
    **PLAIN,
    **{f"hyperadam2-{backend}": (HyperAdam2, HyperAdam2Rule, backend) for backend in BACKENDS},
    **{
        f"hyperadam-relative-{backend}": (HyperAdam, partial(HyperAdamRule, relative=True), backend)
        for backend in dict.fromkeys((BACKENDS[0], "torch"))
    },
    "rnnprop-relative-torch": (RNNprop, partial(RNNpropRule, relative=True), "torch"),
}


def tensors(
    *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[Tensor]:
    """Parameters of the given shapes, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def set_grads(params: list[Tensor], seed: int) -> None:
    """Gradients of very different sizes per tensor, the same for the same seed."""
    generator = torch.Generator().manual_seed(1000 + seed)
    for i, p in enumerate(params):
        p.grad = (torch.randn(p.shape, generator=generator) * 10.0 ** (i - 2)).to(p.dtype)


def run(opt: LearnedOptimizer, params: list[Tensor], steps: range) -> None:
    for t in steps:
        set_grads(params, t)
        opt.step()


def fields(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a state holds for each coordinate: all but the count of steps and the memory."""
    return {name: x for name, x in state.items() if name not in ("step", "memory")}


def flat(values: list[Tensor]) -> Tensor:
    return torch.cat([value.detach().reshape(-1) for value in values])


class Snapshot:
    """Bits of parameters and state, to show later that nothing has changed."""

    def __init__(self, opt: LearnedOptimizer) -> None:
        self.opt = opt
        self.params = [p.detach().clone() for group in opt.param_groups for p in group["params"]]
        self.state = {
            id(p): {k: v.clone() for k, v in fields.items()} for p, fields in opt.state.items()
        }

    def assert_same(self) -> None:
        params = [p for group in self.opt.param_groups for p in group["params"]]
        assert all(torch.equal(a, b) for a, b in zip(params, self.params, strict=True))
        assert {id(p) for p in self.opt.state} == set(self.state)
        for p, fields in self.opt.state.items():
            assert fields.keys() == self.state[id(p)].keys()
            assert all(torch.equal(fields[k], v) for k, v in self.state[id(p)].items())


def through_file(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def refused(opt: LearnedOptimizer, state_dict: dict[str, Any], match: str) -> None:
    before, groups = Snapshot(opt), copy.deepcopy([{**g, "params": None} for g in opt.param_groups])
    with pytest.raises(ValueError, match=match):
        opt.load_state_dict(state_dict)
    before.assert_same()
    assert [{**g, "params": None} for g in opt.param_groups] == groups
