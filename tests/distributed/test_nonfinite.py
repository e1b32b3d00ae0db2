"""A gradient that is not finite on one rank: all ranks refuse the step, and nothing has changed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from .models import OPTIMIZERS, Even, Net, Row, backward, batch, make, train, zero_redundancy
from .ranks import run_ranks

#: Those that ask other ranks.
NORMED = [name for name, kind in OPTIMIZERS.items() if kind.rounds or kind.per_tensor]


def local(x: Any) -> Tensor:
    return x._local_tensor if hasattr(x, "_local_tensor") else x


def bits(opt: Any) -> list[Tensor]:
    """All that a step could change on this rank."""
    opt = getattr(opt, "optim", opt)
    params = [p for group in opt.param_groups for p in group["params"]]
    state = [x for p in params for x in opt.state[p].values()]
    return [local(x).detach().clone() for x in [*params, *state]]


def wrapped(kind: str, name: str, **options: Any) -> tuple[Any, Any]:
    make_optimizer = OPTIMIZERS[name].make
    if kind == "zero":
        model = make(Net)
        return model, zero_redundancy(model.parameters(), make_optimizer, **options)
    if kind == "tp":
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        model = parallelize_module(make(Even), init_device_mesh("cpu", (2,)), plan)
    else:
        model = fully_shard(make(Row if kind == "row" else Net))
    return model, make_optimizer(model.parameters(), **options)


def refuse(rank: int) -> None:
    for kind in ("fsdp2", "row", "tp", "zero"):
        for name in NORMED:
            for value in (math.nan, math.inf, 1e30):
                check_raises(*wrapped(kind, name), value, bad_rank=0, rank=rank)
            check_skips(*wrapped(kind, name, nonfinite="skip"), bad_rank=0, rank=rank)
        if kind != "row":  # there the second rank has no gradient to spoil
            for name in ("hyperadam", "hyperadam2"):
                check_raises(*wrapped(kind, name), math.nan, bad_rank=1, rank=rank)


def spoil(model: Any, opt: Any, value: float, bad: bool) -> None:
    backward(model, batch(2))
    if bad:
        grads = [local(p.grad) for p in getattr(opt, "optim", opt).param_groups[0]["params"]]
        next(grad for grad in grads if grad.numel()).view(-1)[-1] = value


def check_raises(model: Any, opt: Any, value: float, bad_rank: int, rank: int) -> None:
    spoil(model, opt, value, rank == bad_rank)
    with pytest.raises(RuntimeError, match="parameters and state are unchanged"):
        opt.step()
    assert not getattr(opt, "optim", opt).state
    train(model, opt, range(2))
    before = bits(opt)
    spoil(model, opt, value, rank == bad_rank)
    with pytest.raises(RuntimeError, match="parameters and state are unchanged") as error:
        opt.step()
    assert ("on another rank" in str(error.value)) == (rank != bad_rank)
    assert all(torch.equal(a, b) for a, b in zip(bits(opt), before, strict=True))
    train(model, opt, range(2, 3))  # and training can go on


def check_skips(model: Any, opt: Any, bad_rank: int, rank: int) -> None:
    train(model, opt, range(2))
    before = bits(opt)
    spoil(model, opt, math.nan, rank == bad_rank)
    opt.step()
    assert all(torch.equal(a, b) for a, b in zip(bits(opt), before, strict=True))
    assert getattr(opt, "optim", opt).skipped_steps == 1
    train(model, opt, range(2, 3))
    assert getattr(opt, "optim", opt).skipped_steps == 1


def test_all_ranks_refuse_together() -> None:
    run_ranks(2, refuse)
