"""FSDP2: the numbers of one process, one all-reduce a round of norms, state split alike."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from hyperadam import LearnedOptimizer

from .models import OPTIMIZERS, TOLERANCE, Net, Row, alone, distance, make, params_of, train
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
            for name, count in rows.items():
                field = opt.state[p][name]
                assert isinstance(field, DTensor)
                assert tuple(field.shape) == (count, *p.shape)
                assert tuple(field.to_local().shape) == (count, *p.to_local().shape)
                assert list(p.placements) == [Shard(0)]
                assert list(field.placements) == [Shard(1)]


def train_sharded(rank: int) -> dict[str, float]:
    gaps = {}
    for kind in (Net, Row):
        for name, (make_optimizer, rounds) in OPTIMIZERS.items():
            model = sharded(kind)
            opt = make_optimizer(model.parameters())
            assert train(model, opt) == 5 * rounds
            check_state(opt)
            if kind is Row and rank:
                assert not any(p.to_local().numel() for p in model.parameters())
            gaps[f"{kind.__name__} {name}"] = distance(params_of(model), alone(kind, name))
    return gaps


@pytest.mark.parametrize("ranks", [2, 4])
def test_sharded_training_has_the_numbers_of_one_process(ranks: int) -> None:
    for gaps in run_ranks(ranks, train_sharded):
        assert max(gaps.values()) < TOLERANCE, gaps
