"""``torch.distributed.checkpoint``: saved on two ranks, loaded on one, two or four, training goes on as if never stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from .models import OPTIMIZERS, TOLERANCE, Net, distance, make, params_of, train
from .ranks import run_ranks

#: Written by all ranks together, each its own share.
SHARDED = {"plain": {}, "flat": {"flatten_optimizer_state_dict": True}}
#: Written by the first rank, which has been given all of it.
WHOLE = {"whole": {"full_state_dict": True}, "offloaded": {"full_state_dict": True, "cpu_offload": True}}
WRAPPERS = ("ddp", "fsdp2")
RULES = ("hyperadam", "dm")


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
    return model, OPTIMIZERS[name][0](groups)


def states(model: nn.Module, opt: Any, options: dict[str, bool]) -> dict[str, Any]:
    model_options = {key: value for key, value in options.items() if key != "flatten_optimizer_state_dict"}
    return {
        "model": get_model_state_dict(model, options=StateDictOptions(**model_options)),
        "opt": get_optimizer_state_dict(model, opt, options=StateDictOptions(**options)),
    }


def save(rank: int, folder: Path) -> dict[str, dict[str, Tensor]]:
    """Checkpoints in every form after three steps; the parameters after three more."""
    ends = {}
    for wrapper in WRAPPERS:
        for name in RULES:
            model, opt = start(wrapper, name)
            train(model, opt, range(3))
            for form, options in SHARDED.items():
                dcp.save(states(model, opt, options), checkpoint_id=folder / wrapper / name / form)
            for form, options in WHOLE.items():
                whole = states(model, opt, options)
                if rank == 0:
                    torch.save(whole, folder / wrapper / name / f"{form}.pt")
            train(model, opt, range(3, 6))
            ends[f"{wrapper} {name}"] = params_of(model)
    return ends


def resumed(rank: int, wrapper: str, name: str, folder: Path) -> Iterator[tuple[str, Any]]:
    """Models that have taken over a checkpoint, and taken three more steps, by the form of the checkpoint."""
    for form in (*SHARDED, *WHOLE, "broadcast"):
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
        model_options = {key: value for key, value in options.items() if key != "flatten_optimizer_state_dict"}
        set_model_state_dict(model, loaded["model"], options=StateDictOptions(**model_options))
        set_optimizer_state_dict(model, opt, loaded["opt"], options=StateDictOptions(**options))
        assert {int(state["step"]) for state in opt.state.values()} == {3}
        assert [group["lr"] for group in opt.param_groups][1] == 0.002
        train(model, opt, range(3, 6))
        yield form, model


def load(rank: int, folder: Path, ends: dict[str, dict[str, Tensor]], wrappers: tuple[str, ...]) -> dict[str, float]:
    gaps = {}
    for name in RULES:
        for saved in WRAPPERS:
            for wrapper in wrappers:
                for form, model in resumed(rank, wrapper, name, folder / saved / name):
                    gap = distance(params_of(model), ends[f"{saved} {name}"])
                    gaps[f"{name}: {saved} to {wrapper}, {form}"] = gap
    return gaps


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Tensor]]]:
    folder = tmp_path_factory.mktemp("checkpoints")
    first, second = run_ranks(2, save, folder)
    for key in first:
        assert distance(first[key], second[key]) == 0
    return folder, first


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_training_goes_on(saved: Any, ranks: int) -> None:
    folder, ends = saved
    wrappers = ("none", *WRAPPERS) if ranks == 1 else WRAPPERS
    for gaps in run_ranks(ranks, load, folder, ends, wrappers):
        print(gaps)
        assert max(gaps.values()) < TOLERANCE, gaps
        for name in RULES:
            for wrapper in WRAPPERS if ranks == 2 else ():
                for form in (*SHARDED, *WHOLE, "broadcast"):
                    assert gaps[f"{name}: {wrapper} to {wrapper}, {form}"] == 0
