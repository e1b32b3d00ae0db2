"""Relative steps on shards: the size of the whole tensor, from one all-reduce, the same on all ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import hyperadam
from hyperadam import HyperAdam, LearnedOptimizer, RNNprop

from .models import (
    Even,
    Net,
    Row,
    backward,
    batch,
    check_near,
    distance,
    make,
    params_of,
    train,
    zero_redundancy,
)
from .ranks import run_ranks

#: All-reduces that a step of each takes; one more makes the state.
KINDS: dict[str, tuple[type[LearnedOptimizer], int]] = {
    "hyperadam": (HyperAdam, 1),
    "rnnprop": (RNNprop, 0),
}


def optimizer(params: Any, name: str, **options: Any) -> Any:
    rule = hyperadam.load_rule(name, relative=True)
    rule.depth = name == "hyperadam"  # ranks must count matrices together, too
    return KINDS[name][0](params, weights=rule, total_steps=8, **options)


def alone(kind: Any, name: str, steps: range = range(5)) -> tuple[dict[str, Tensor], list[float]]:
    """Parameters after training on one process, and the sizes that its tensors began with."""
    model = make(kind)
    sizes = [p.detach().double().square().mean().sqrt().item() for p in model.parameters()]
    train(model, optimizer(model.parameters(), name), steps)
    return params_of(model), sizes


def check(model: nn.Module, kind: Any, name: str, meshes: int) -> float:
    """How far training ends from that of one process; memory is whole on every rank."""
    opt = optimizer(model.parameters(), name)
    assert train(model, opt) == 5 * KINDS[name][1] + meshes
    end, sizes = alone(kind, name)
    for p, size in zip(model.parameters(), sizes, strict=True):
        memory = opt.state[p]["memory"]
        assert type(memory) is Tensor
        assert memory.is_cpu
        assert memory.shape == (1,)
        assert memory.item() == pytest.approx(size, rel=1e-6)
        copies = [torch.empty(1) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, memory)
        assert all(torch.equal(copy, memory) for copy in copies)
    assert len(set(sizes)) > 1
    return distance(params_of(model), end)


def tensor_parallel(mesh: Any) -> nn.Module:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return parallelize_module(make(Even), mesh, plan)


def on_any(rank: int) -> dict[str, float]:
    gaps = {}
    for name in KINDS:
        for kind in (Net, Row):
            model = make(kind)
            if kind is Net:
                fully_shard(model.first)
            gaps[f"FSDP2 {kind.__name__} {name}"] = check(fully_shard(model), kind, name, 1)
    return gaps


def on_two(rank: int) -> dict[str, float]:
    gaps = on_any(rank)
    for name in KINDS:
        model = tensor_parallel(init_device_mesh("cpu", (2,)))
        gaps[f"TP {name}"] = check(model, Even, name, 1)
        model = fully_shard(make(Even), shard_placement_fn=lambda p: Shard(p.ndim - 1))
        gaps[f"FSDP2 by columns {name}"] = check(model, Even, name, 1)

        model = make(Net)
        opt = zero_redundancy(model.parameters(), lambda params, n=name: optimizer(params, n))
        train(model, opt)
        gaps[f"ZeRO {name}"] = distance(params_of(model), alone(Net, name)[0])
    return gaps


def on_four(rank: int) -> dict[str, float]:
    gaps = {}
    for name in KINDS:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
        gaps[f"HSDP {name}"] = check(fully_shard(make(Net), mesh=mesh), Net, name, 1)
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        model = fully_shard(tensor_parallel(mesh["tensor"]), mesh=mesh["data"])
        # what tensor parallelism leaves alone lies on a mesh of its own
        gaps[f"FSDP2 + TP {name}"] = check(model, Even, name, 2)
    return gaps


@pytest.mark.parametrize(("ranks", "work"), [(2, on_two), (3, on_any), (4, on_four)])
def test_the_numbers_of_one_process(ranks: int, work: Any) -> None:
    for gaps in run_ranks(ranks, work):
        check_near(gaps)


# Checkpoints ----------------------------------------------------------------------------------------

FORMS = {
    "sharded": {},
    "flat": {"flatten_optimizer_state_dict": True},
    "whole": {"full_state_dict": True, "cpu_offload": True},
    "broadcast": {"full_state_dict": True, "broadcast_from_rank0": True},
}


def checkpoints(rank: int, folder: Path) -> dict[str, float]:
    gaps = {}
    for name in KINDS:
        end, _ = alone(Net, name, range(6))
        for form, options in FORMS.items():
            model = fully_shard(make(Net))
            opt = optimizer(model.parameters(), name)
            train(model, opt, range(3))
            twin = fully_shard(make(Net))
            with torch.no_grad():
                for p in twin.parameters():
                    p += 0.1  # of another size, if anybody looked
            twin_opt = optimizer(twin.parameters(), name)
            take_over(rank, folder / name / form, options, (model, opt), (twin, twin_opt))
            for p, q in zip(model.parameters(), twin.parameters(), strict=True):
                assert torch.equal(opt.state[p]["memory"], twin_opt.state[q]["memory"])
                assert type(twin_opt.state[q]["memory"]) is Tensor
            assert twin_opt.param_groups[0]["total_steps"] == 8
            train(twin, twin_opt, range(3, 6))
            gaps[f"{name} {form}"] = distance(params_of(twin), end)
        gaps[f"{name} to one process"] = gather(name, end)
    return gaps


def take_over(rank: int, folder: Path, options: Any, old: Any, new: Any) -> None:
    """Give the state of one model and optimizer to another pair, in one of the tools' forms."""
    given = StateDictOptions(**options)
    saving = StateDictOptions(**{k: v for k, v in options.items() if k != "broadcast_from_rank0"})
    saved = {
        "model": get_model_state_dict(old[0], options=saving),
        "opt": get_optimizer_state_dict(*old, options=saving),
    }
    if not options.get("full_state_dict"):
        dcp.save(saved, checkpoint_id=folder)
        saved = {
            "model": get_model_state_dict(new[0], options=given),
            "opt": get_optimizer_state_dict(*new, options=given),
        }
        dcp.load(saved, checkpoint_id=folder)
    elif options.get("broadcast_from_rank0"):
        saved = saved if rank == 0 else {"model": {}, "opt": {}}
    else:
        box = [saved]
        dist.broadcast_object_list(box)  # what the first rank would have put into a file
        saved = box[0]
    set_model_state_dict(new[0], saved["model"], options=given)
    set_optimizer_state_dict(*new, saved["opt"], options=given)


def gather(name: str, end: dict[str, Tensor]) -> float:
    """The state of shards goes on in one process."""
    model = fully_shard(make(Net))
    opt = optimizer(model.parameters(), name)
    train(model, opt, range(3))
    plain = make(Net)
    plain.load_state_dict(params_of(model))
    plain_opt = optimizer(plain.parameters(), name)
    plain_opt.load_state_dict(opt.state_dict())
    train(plain, plain_opt, range(3, 6))
    return distance(params_of(plain), end)


def test_checkpoints(tmp_path: Path) -> None:
    for gaps in run_ranks(2, checkpoints, tmp_path):
        assert len(gaps) == len(KINDS) * (len(FORMS) + 1)
        check_near(gaps)


# What goes wrong ------------------------------------------------------------------------------------


def bad_gradients(rank: int) -> None:
    """A rank whose first gradient is bad must not leave the others waiting for a size."""
    for name in KINDS:
        model = fully_shard(make(Net))
        opt = optimizer(model.parameters(), name, nonfinite="skip")
        backward(model, batch(0))
        if rank == 0:
            next(model.parameters()).grad.to_local().view(-1)[0] = math.nan
        opt.step()
        # with norms all ranks skip, and take sizes again; without them each goes its own way
        assert opt.skipped_steps == (1 if rank == 0 or name == "hyperadam" else 0)
        first = next(model.parameters())
        if name == "hyperadam":
            assert not opt.state
        else:
            assert opt.state[first]["step"] == 1 - opt.skipped_steps
        train(model, opt, range(1, 4))
        assert opt.state[first]["step"] == 4 - opt.skipped_steps


def bad_sizes(rank: int) -> None:
    """All ranks refuse a tensor that is not finite on one of them, and nothing is made."""
    model = fully_shard(make(Net))
    with torch.no_grad():
        if rank == 1:
            model.first.weight.to_local().view(-1)[0] = math.nan
    opt = optimizer(model.parameters(), "rnnprop")
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.raises(RuntimeError, match=r"of shape \(9, 6\) has the root mean square nan"):
        opt.step()
    assert not opt.state


def fsdp1(rank: int) -> None:
    for name in KINDS:
        for original in (True, False):
            model = FullyShardedDataParallel(
                make(Net), use_orig_params=original, device_id=torch.device("cpu")
            )
            opt = optimizer(model.parameters(), name, process_group=dist.group.WORLD)
            backward(model, batch(0))
            with pytest.raises(RuntimeError, match=r"shards of FSDP1.*relative=True.*fully_shard"):
                opt.step()
            assert not opt.state


@pytest.mark.parametrize("work", [bad_gradients, bad_sizes, fsdp1])
def test_what_goes_wrong(work: Any) -> None:
    run_ranks(2, work)
