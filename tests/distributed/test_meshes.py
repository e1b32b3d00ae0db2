"""Tensor parallelism, FSDP2 on top of it, and HSDP: the numbers of one process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from .models import OPTIMIZERS, Even, Net, alone, check_near, distance, make, params_of, train
from .ranks import run_ranks


def tensor_parallel(mesh: DeviceMesh) -> nn.Module:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return parallelize_module(make(Even), mesh, plan)


def shards(x: Tensor) -> list[tuple[int, int]]:
    """Which dimension of the mesh splits which of the tensor."""
    placements = x.placements if isinstance(x, DTensor) else ()
    return [(i, p.dim) for i, p in enumerate(placements) if not p.is_replicate()]


def compare(model: nn.Module, kind: type[nn.Module], name: str, meshes: int = 1) -> float:
    """How far training ends from that of one process; each round of norms is one all-reduce."""
    opt = OPTIMIZERS[name].make(model.parameters())
    assert train(model, opt) == OPTIMIZERS[name].on_shards(meshes=meshes)
    for p, state in opt.state.items():
        for field, count in opt.rule.state_rows().items():
            assert type(state[field]) is (DTensor if isinstance(p, DTensor) else torch.Tensor)
            assert tuple(state[field].shape) == (count, *p.shape)
            assert shards(state[field]) == [(i, dim + 1) for i, dim in shards(p)]
    return distance(params_of(model), alone(kind, name))


def on_two(rank: int) -> dict[str, float]:
    gaps = {}
    for name in OPTIMIZERS:
        model = tensor_parallel(init_device_mesh("cpu", (2,)))
        assert {isinstance(p, DTensor) for p in model.parameters()} == {True, False}
        gaps[f"TP {name}"] = compare(model, Even, name)

        model = fully_shard(make(Even), shard_placement_fn=lambda p: Shard(p.ndim - 1))
        gaps[f"FSDP2 by columns {name}"] = compare(model, Even, name)
    return gaps


def on_four(rank: int) -> dict[str, float]:
    gaps = {}
    for name in OPTIMIZERS:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
        model = make(Net)
        fully_shard(model.second, mesh=mesh)
        gaps[f"HSDP {name}"] = compare(fully_shard(model, mesh=mesh), Net, name)

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        model = fully_shard(tensor_parallel(mesh["tensor"]), mesh=mesh["data"])
        # what tensor parallelism leaves alone lies on a mesh of its own
        gaps[f"FSDP2 + TP {name}"] = compare(model, Even, name, meshes=2)

        # tensor parallel alone, in two copies that each train on their own
        model = tensor_parallel(mesh["tensor"])
        gaps[f"TP on half of the ranks {name}"] = compare(model, Even, name)

    halves = [mesh["data"], mesh["tensor"]]
    crossing = [distribute_tensor(torch.ones(4), half, [Shard(0)]) for half in halves]
    for name in ("hyperadam", "hyperadam2"):
        opt = OPTIMIZERS[name].make([p.requires_grad_() for p in crossing])
        with pytest.raises(RuntimeError, match=r"meshes of ranks .* none spans the rest"):
            opt.step()
    return gaps


def test_two_ranks() -> None:
    for gaps in run_ranks(2, on_two):
        check_near(gaps)


def test_four_ranks() -> None:
    for gaps in run_ranks(4, on_four):
        check_near(gaps)
