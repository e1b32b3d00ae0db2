"""``torch.distributed.checkpoint``: saved on two ranks, loaded on one, two or four."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from .models import (
    OPTIMIZERS,
    Even,
    Net,
    alone,
    check_near,
    distance,
    make,
    params_of,
    train,
    zero_redundancy,
)
from .ranks import run_ranks

#: Written by all ranks together, each its own share.
SHARDED = {"plain": {}, "flat": {"flatten_optimizer_state_dict": True}}
#: Written by the first rank, which has been given all of it.
WHOLE = {
    "whole": {"full_state_dict": True},
    "offloaded": {"full_state_dict": True, "cpu_offload": True},
}
WRAPPERS = ("ddp", "fsdp2")
RULES = ("hyperadam", "hyperadam2", "dm")
FORMS = (*SHARDED, *WHOLE, "broadcast")


def start(wrapper: str, name: str, shift: float = 0.0) -> tuple[Any, Any]:
    model: Any = make(Net)
    with torch.no_grad():
        for p in model.parameters():
            p += shift
    if wrapper == "ddp":
        model = DistributedDataParallel(model)
    elif wrapper == "fsdp2":
        fully_shard(model.first)
        model = fully_shard(model)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "lr": 0.002}]
    return model, OPTIMIZERS[name].make(groups)


def states(model: nn.Module, opt: Any, options: dict[str, bool]) -> dict[str, Any]:
    given = StateDictOptions(**options)
    return {
        "model": get_model_state_dict(model, options=given),
        "opt": get_optimizer_state_dict(model, opt, options=given),
    }


def save(rank: int, folder: Path, name: str) -> dict[str, dict[str, Tensor]]:
    """Checkpoints in every form after three steps; the parameters after three more."""
    ends = {}
    for wrapper in WRAPPERS:
        model, opt = start(wrapper, name)
        train(model, opt, range(3))
        for form, options in SHARDED.items():
            dcp.save(states(model, opt, options), checkpoint_id=folder / wrapper / form)
        for form, options in WHOLE.items():
            whole = states(model, opt, options)
            if rank == 0:
                torch.save(whole, folder / wrapper / f"{form}.pt")
        train(model, opt, range(3, 6))
        ends[wrapper] = params_of(model)
    return ends


def resumed(rank: int, wrapper: str, name: str, folder: Path) -> Iterator[tuple[str, Any]]:
    """Models that have taken over a checkpoint of each form, and three more steps."""
    for form in FORMS:
        model, opt = start(wrapper, name, shift=0.1)
        if form in SHARDED:
            options = SHARDED[form]
            loaded = states(model, opt, options)
            dcp.load(loaded, checkpoint_id=folder / form)
        elif form in WHOLE:
            options = WHOLE[form]
            loaded = torch.load(folder / f"{form}.pt", weights_only=True)
        else:
            options = {"full_state_dict": True, "broadcast_from_rank0": True}
            path = folder / "offloaded.pt"
            loaded = torch.load(path, weights_only=True) if rank == 0 else {"model": {}, "opt": {}}
        given = StateDictOptions(**options)
        set_model_state_dict(model, loaded["model"], options=given)
        set_optimizer_state_dict(model, opt, loaded["opt"], options=given)
        assert {int(state["step"]) for state in opt.state.values()} == {3}
        assert [group["lr"] for group in opt.param_groups][1] == 0.002
        train(model, opt, range(3, 6))
        yield form, model


def load(
    rank: int,
    folder: Path,
    name: str,
    ends: dict[str, dict[str, Tensor]],
    pairs: list[tuple[str, str]],
) -> dict[str, float]:
    gaps = {}
    for saved, wrapper in pairs:
        for form, model in resumed(rank, wrapper, name, folder / saved):
            gap = distance(params_of(model), ends[saved])
            gaps[f"{name}: {saved} to {wrapper}, {form}"] = gap
    return gaps


class Saved(NamedTuple):
    name: str
    folder: Path
    ends: dict[str, dict[str, Tensor]]


@pytest.fixture(
    scope="module", params=["hyperadam", "hyperadam2", pytest.param("dm", marks=pytest.mark.slow)]
)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("checkpoints")
    first, second = run_ranks(2, save, folder, request.param)
    assert all(distance(first[wrapper], second[wrapper]) == 0 for wrapper in WRAPPERS)
    return Saved(request.param, folder, first)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_training_goes_on(saved: Saved, ranks: int) -> None:
    pairs = [(wrapper, wrapper if ranks > 1 else "none") for wrapper in WRAPPERS]
    for gaps in run_ranks(ranks, load, saved.folder, saved.name, saved.ends, pairs):
        assert len(gaps) == len(pairs) * len(FORMS)
        check_near(gaps)
        assert ranks != 2 or not any(gaps.values()), gaps


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_training_goes_on_with_another_wrapper(saved: Saved, ranks: int) -> None:
    pairs = [(one, other) for one in WRAPPERS for other in WRAPPERS if one != other or ranks == 1]
    for gaps in run_ranks(ranks, load, saved.folder, saved.name, saved.ends, pairs):
        check_near(gaps)


def test_state_dicts_fit_other_placements() -> None:
    for ranks in (2, 4):
        for gaps in run_ranks(ranks, whole_and_split):
            check_near(gaps)


def whole_and_split(rank: int) -> dict[str, float]:
    """The state of one process is taken over by shards, and theirs by one process."""
    gaps = {}
    kind = Net if dist.get_world_size() == 2 else Even
    for name in RULES:
        plain = make(kind)
        opt = OPTIMIZERS[name].make(plain.parameters())
        train(plain, opt, range(3))
        model = split(copy.deepcopy(plain))
        split_opt = OPTIMIZERS[name].make(model.parameters())
        split_opt.load_state_dict(opt.state_dict())
        train(model, split_opt, range(3, 5))
        gaps[f"{name}: whole to split"] = distance(params_of(model), alone(kind, name, range(5)))
        plain.load_state_dict(params_of(model))
        opt.load_state_dict(split_opt.state_dict())
        train(plain, opt, range(5, 6))
        gaps[f"{name}: split to whole"] = distance(params_of(plain), alone(kind, name, range(6)))
    return gaps


def split(model: nn.Module) -> nn.Module:
    if dist.get_world_size() == 2:
        return fully_shard(model)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(model, mesh["tensor"], plan)
    return fully_shard(model, mesh=mesh["data"])


def test_other_ways_to_go_on() -> None:
    for gaps in run_ranks(2, other_ways):
        check_near(gaps)


def other_ways(rank: int) -> dict[str, float]:
    gaps = {}
    for name in RULES:
        end = alone(Net, name, range(6))
        for wrapper in WRAPPERS:
            model, _ = start(wrapper, name)
            opt = OPTIMIZERS[name].make(model.parameters())
            get_optimizer_state_dict(model, opt)  # makes the state: it must not move it
            train(model, opt, range(6))
            gaps[f"{name}: asked at the start, {wrapper}"] = distance(params_of(model), end)

        (model, opt), (twin, twin_opt) = zero(name), zero(name)
        train(model, opt, range(3))
        opt.consolidate_state_dict(to=0)
        box = [opt.state_dict() if rank == 0 else None]
        dist.broadcast_object_list(box)
        twin.load_state_dict(model.state_dict())
        twin_opt.load_state_dict(copy.deepcopy(box[0]))
        train(twin, twin_opt, range(3, 6))
        gaps[f"{name}: ZeRO"] = distance(params_of(twin), end)

        if OPTIMIZERS[name].per_tensor:
            continue  # which refuses the shards of FSDP1
        (model, opt), (twin, twin_opt) = fsdp1(name), fsdp1(name)
        train(model, opt, range(3))
        twin.load_state_dict(model.state_dict())
        twin_opt.load_state_dict(opt.state_dict())  # each rank its own
        train(twin, twin_opt, range(3, 6))
        with FullyShardedDataParallel.summon_full_params(twin):
            gaps[f"{name}: FSDP1"] = distance(params_of(twin), end)
    return gaps


def zero(name: str) -> tuple[nn.Module, Any]:
    model = make(Net)
    return model, zero_redundancy(model.parameters(), OPTIMIZERS[name].make)


def fsdp1(name: str) -> tuple[nn.Module, Any]:
    model = FullyShardedDataParallel(make(Net), use_orig_params=True, device_id=torch.device("cpu"))
    return model, OPTIMIZERS[name].make(model.parameters(), process_group=dist.group.WORLD)
