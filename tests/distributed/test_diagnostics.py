"""Numbers of whole tensors, whoever holds which of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from hyperadam import HyperAdam, HyperAdam2

from .models import OPTIMIZERS, Even, Net, Row, backward, batch, make, params_of, train
from .ranks import run_ranks
from .test_meshes import tensor_parallel


def sharded(kind: type[nn.Module]) -> nn.Module:
    return fully_shard(make(kind))


def told(model: nn.Module, name: str) -> list[Any]:
    """What is told before the first step and after some."""
    opt = OPTIMIZERS[name].make(model.named_parameters(), weight_decay=0.1)
    told = []
    for steps in (range(0), range(3)):
        train(model, opt, steps)
        backward(model, batch(3))
        told.append(opt.diagnostics(flat=True))
    return told


def tell_sharded(rank: int) -> dict[str, Any]:
    out = {}
    for kind in (Net, Row):
        for name in OPTIMIZERS:
            model = sharded(kind)
            here = told(model, name)
            out[f"{kind.__name__} {name}"] = here, told(make(kind), name)
    return out


def test_shards_tell_of_whole_tensors() -> None:
    first, second = run_ranks(2, tell_sharded)
    assert len(first) == 2 * len(OPTIMIZERS)
    for case, (here, alone) in first.items():
        assert second[case][0] == here, f"{case}: the same on every rank"
        for shards, whole in zip(here, alone, strict=True):
            assert shards == pytest.approx(whole, rel=1e-4, abs=1e-7), case


def tell_on_meshes(rank: int) -> dict[str, Any]:
    """Copies of shards, and shards in two directions; some tensors are whole on all ranks."""
    out = {}
    for name in ("hyperadam", "hyperadam2", "dm"):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        copies = fully_shard(make(Net), mesh=mesh)
        both = fully_shard(tensor_parallel(mesh["tensor"]), mesh=mesh["data"])
        alike = tensor_parallel(mesh["tensor"])
        for label, model, kind in (
            ("copies", copies, Net),
            ("both", both, Even),
            ("TP", alike, Even),
        ):
            out[f"{label} {name}"] = told(model, name), told(make(kind), name)
    return out


def test_meshes_tell_of_whole_tensors() -> None:
    for found in run_ranks(4, tell_on_meshes):
        for case, (here, alone) in found.items():
            for shards, whole in zip(here, alone, strict=True):
                assert shards == pytest.approx(whole, rel=1e-4, abs=1e-7), case


def look_and_train(rank: int) -> bool:
    """Whether training on shards has the same bits with looks in between."""
    ends = []
    for look in (False, True):
        model = sharded(Net)
        opt = HyperAdam2(model.parameters())
        for step in range(4):
            backward(model, batch(step))
            if look:
                opt.diagnostics()
            opt.step()
        ends.append(params_of(model))
    return all(torch.equal(x, ends[1][name]) for name, x in ends[0].items())


def test_looking_at_shards_changes_nothing() -> None:
    assert run_ranks(2, look_and_train) == [True, True]


def stages(rank: int) -> list[float]:
    """Each rank holds tensors of its own, norms run over both."""
    model = make(Net)
    backward(model, batch(0))
    params = list(model.parameters())
    mine = params[rank::2]
    split = HyperAdam(mine, process_group=dist.group.WORLD).diagnostics()
    whole = HyperAdam(params).diagnostics()
    places = [str(i) for i in range(len(params))][rank::2]
    pairs = zip(split.values(), (whole[i] for i in places), strict=True)
    return [abs(here["beta"][0] - there["beta"][0]) for here, there in pairs]


def test_pieces_of_a_pipeline_share_norms() -> None:
    assert max(max(gaps) for gaps in run_ranks(2, stages)) < 1e-6


def old_shards(rank: int) -> None:
    model = FullyShardedDataParallel(make(Net), use_orig_params=True, device_id=torch.device("cpu"))
    opt = HyperAdam(model.parameters(), process_group=dist.group.WORLD)
    backward(model, batch(0))
    with pytest.raises(RuntimeError, match=r"diagnostics: .*shards of FSDP1.*fully_shard"):
        opt.diagnostics()


def test_shards_of_fsdp1_are_refused() -> None:
    run_ranks(2, old_shards)
