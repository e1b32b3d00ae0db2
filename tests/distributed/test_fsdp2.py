"""FSDP2: the numbers of one process, one all-reduce a round of norms, state split alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from hyperadam import LearnedOptimizer

from .models import OPTIMIZERS, Net, Row, alone, check_near, distance, full, make, params_of, train
from .ranks import run_ranks


def sharded(kind: type[nn.Module], **options: Any) -> nn.Module:
    model = make(kind)
    for layer in model.children():
        if kind is Net:
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def check_state(opt: LearnedOptimizer) -> None:
    rows = opt.rule.state_rows()
    for group in opt.param_groups:
        for p in group["params"]:
            assert opt.state[p]["step"] == 5
            check_memory(opt, p)
            for name, count in rows.items():
                field = opt.state[p][name]
                assert isinstance(field, DTensor)
                assert tuple(field.shape) == (count, *p.shape)
                assert tuple(field.to_local().shape) == (count, *p.to_local().shape)
                assert list(p.placements) == [Shard(0)]
                assert list(field.placements) == [Shard(1)]


def check_memory(opt: LearnedOptimizer, p: Any) -> None:
    """What is kept of a tensor is of the whole of it, and the same on every rank."""
    if not opt.rule.memory:
        return
    memory = opt.state[p]["memory"]
    assert type(memory) is torch.Tensor
    assert memory.is_cpu
    copies = [torch.empty_like(memory) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, memory)
    assert all(torch.equal(copy, memory) for copy in copies)
    mean = full(p).double().square().mean()
    assert memory[1].item() == pytest.approx(mean.item(), rel=1e-5)
    moments = full(opt.state[p]["m"]).double().square().flatten(1).mean(1)
    torch.testing.assert_close(memory[3:6].double(), moments, rtol=1e-5, atol=0)


def train_sharded(rank: int) -> dict[str, float]:
    gaps = {}
    for kind in (Net, Row):
        for name, optimizer in OPTIMIZERS.items():
            model = sharded(kind)
            opt = optimizer.make(model.parameters())
            assert train(model, opt) == optimizer.on_shards()
            check_state(opt)
            if kind is Row and rank:
                assert not any(p.to_local().numel() for p in model.parameters())
            gaps[f"{kind.__name__} {name}"] = distance(params_of(model), alone(kind, name))
    return gaps


@pytest.mark.parametrize("ranks", [2, 4])
def test_sharded_training_has_the_numbers_of_one_process(ranks: int) -> None:
    for gaps in run_ranks(ranks, train_sharded):
        check_near(gaps)


def step_unevenly(rank: int) -> str:
    """A matrix has a gradient on the first rank alone: nobody waits, and nothing is changed."""
    model = sharded(Net)
    opt = OPTIMIZERS["hyperadam2"].make(model.parameters())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    opt.step()
    if rank:
        model.first.weight.grad = None
    before = [p.to_local().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="has a gradient on some ranks and none on others"):
        opt.step()
    after = [p.to_local() for p in model.parameters()]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert all(opt.state[p]["step"] == 1 for p in model.parameters())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    opt.step()
    return "stepped"


def test_a_gradient_on_some_ranks_alone_is_refused_by_all() -> None:
    assert run_ranks(2, step_unevenly) == ["stepped"] * 2
