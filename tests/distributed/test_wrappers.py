"""DDP, FSDP1, ZeRO, steps in the backward pass, pipelines: one process's numbers, or a refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import hyperadam

from .models import (
    OPTIMIZERS,
    Even,
    Net,
    Row,
    alone,
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

STEPS = range(5)


def test_data_parallel() -> None:
    assert_close(run_ranks(2, data_parallel))


def data_parallel(rank: int) -> dict[str, float]:
    gaps = {}
    for name, (make_optimizer, *_) in OPTIMIZERS.items():
        # in float64: two halves of a batch are rounded otherwise than all of it
        wrapped, plain = DistributedDataParallel(make(Net).double()), make(Net).double()
        theirs = make_optimizer(wrapped.parameters(), state_dtype=torch.float64)
        ours = make_optimizer(plain.parameters(), state_dtype=torch.float64)
        for step in STEPS:
            halves = [batch(step, 0).double(), batch(step, 1).double()]
            backward(wrapped, halves[rank])
            backward(plain, torch.cat(halves))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(dist, "all_reduce", None)  # each rank has the whole gradient
                theirs.step()
            ours.step()
        gaps[name] = distance(params_of(wrapped), params_of(plain))
    return gaps


def test_fsdp1() -> None:
    assert_close(run_ranks(2, fsdp1))


def fsdp1(rank: int) -> dict[str, float]:
    gaps = {}
    for name, (make_optimizer, rounds, per_tensor) in OPTIMIZERS.items():
        for kind in (Net, Row):
            model = wrap(kind)
            before = gathered(model)
            if per_tensor:
                refuses_fsdp1(model, make_optimizer)
                assert distance(gathered(model), before) == 0
                continue
            if rounds:
                opt = make_optimizer(model.parameters())
                backward(model, batch(0))
                with pytest.raises(RuntimeError, match="process_group="):
                    opt.step()
                assert not opt.state
                assert distance(gathered(model), before) == 0
            options = {"process_group": dist.group.WORLD} if rounds else {}
            assert train(model, make_optimizer(model.parameters(), **options)) == 5 * rounds
            gaps[f"{name} {kind.__name__}"] = distance(gathered(model), alone(kind, name))
    return gaps


def refuses_fsdp1(model: nn.Module, make_optimizer: Any) -> None:
    """Nobody can know what tensor a shard of it is of: every rank says so, one without a piece, too."""
    with pytest.raises(ValueError, match=r"process_group must be None.* fully_shard \(FSDP2\)"):
        make_optimizer(model.parameters(), process_group=dist.group.WORLD)
    with pytest.raises(ValueError, match="process_group must be None"):
        hyperadam.LearnedOptimizer(
            model.parameters(), weights=hyperadam.HyperAdam2Rule(), process_group=dist.group.WORLD
        )
    opt = make_optimizer(model.parameters())
    backward(model, batch(0))
    with pytest.raises(RuntimeError, match=r"shards of FSDP1.*hyperadam2\(.*fully_shard"):
        opt.step()
    assert not opt.state


def wrap(kind: type[nn.Module]) -> nn.Module:
    return FullyShardedDataParallel(make(kind), use_orig_params=True, device_id=torch.device("cpu"))


def gathered(model: Any) -> dict[str, Tensor]:
    with FullyShardedDataParallel.summon_full_params(model):
        return params_of(model)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_zero(ranks: int) -> None:
    assert_close(run_ranks(ranks, zero))


class OneTensor(nn.Module):
    """With one tensor for all ranks, most get none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def zero(rank: int) -> dict[str, float]:
    gaps = {}
    for name, optimizer in OPTIMIZERS.items():
        for kind in (Net, OneTensor):
            model = make(kind)
            opt = zero_redundancy(model.parameters(), optimizer.make)
            if kind is OneTensor and rank:
                assert not opt.optim.param_groups[0]["params"]
            assert train(model, opt) == optimizer.on_whole_tensors()
            gaps[f"{name} {kind.__name__}"] = distance(params_of(model), alone(kind, name))
    # its own group, and a state that some rank's kernel would not take from another
    opt = zero_redundancy(
        (model := make(OneTensor)).parameters(),
        hyperadam.HyperAdam,
        process_group=dist.new_group(),
        state_dtype=torch.bfloat16,
    )
    train(model, opt)
    end = alone(OneTensor, "hyperadam", state_dtype=torch.bfloat16)
    gaps["bfloat16"] = distance(params_of(model), end)
    with pytest.raises(ValueError, match=r"functional optimizer equivalent for .*HyperAdam"):
        zero_redundancy(model.parameters(), hyperadam.HyperAdam, overlap_with_ddp=True)
    return gaps


def test_steps_in_the_backward_pass() -> None:
    run_ranks(1, steps_in_the_backward_pass)


def steps_in_the_backward_pass(rank: int) -> None:
    from torch.distributed.optim import _apply_optimizer_in_backward

    for name, (make_optimizer, rounds, _) in OPTIMIZERS.items():
        model = make(Net)
        before = params_of(model)
        _apply_optimizer_in_backward(make_optimizer, model.parameters(), {})
        if rounds:
            with pytest.raises(RuntimeError, match=r"call step\(\) after it"):
                backward(model, batch(0))
            assert distance(params_of(model), before) == 0
            assert not any(p._in_backward_optimizers[0].state for p in model.parameters())
        else:
            for step in STEPS:
                backward(model, batch(step))
            assert distance(params_of(model), alone(Net, name)) == 0
            assert distance(one_by_one(make_optimizer), alone(Net, name)) == 0


def one_by_one(make_optimizer: Any) -> dict[str, Tensor]:
    """An optimizer for each parameter, which steps as soon as its gradient is there."""
    model = make(Net)
    optimizers = {p: make_optimizer([p]) for p in model.parameters()}

    def step(p: Tensor) -> None:
        optimizers[p].step()
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for t in STEPS:
        backward(model, batch(t))
        assert all(p.grad is None for p in model.parameters())
    return params_of(model)


def test_steps_in_the_backward_pass_of_shards() -> None:
    """Tensor parallel: the ranks meet in the backward pass, in the same order."""
    assert_close(run_ranks(2, steps_of_shards))


def steps_of_shards(rank: int) -> dict[str, float]:
    from torch.distributed.optim import _apply_optimizer_in_backward

    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(make(Even), init_device_mesh("cpu", (2,)), plan)
    _apply_optimizer_in_backward(OPTIMIZERS["hyperadam2"].make, model.parameters(), {})
    for step in STEPS:
        backward(model, batch(step))
    return {"hyperadam2": distance(params_of(model), alone(Even, "hyperadam2"))}


def test_pipeline() -> None:
    assert_close(run_ranks(2, pipeline))
    assert_close(run_ranks(4, split_pipeline))


def pipeline(rank: int) -> dict[str, float]:
    """Each rank holds some layers; gradients are taken from all of them, for want of a pipeline."""
    gaps = {}
    for name, (make_optimizer, _, per_tensor) in OPTIMIZERS.items():
        model = make(Net)
        params = list(model.parameters())
        mine = params[:3] if rank == 0 else params[3:]
        options = {} if per_tensor else {"process_group": dist.group.WORLD}
        opt = make_optimizer(mine, **options)
        for step in STEPS:
            backward(model, batch(step))
            opt.step()
            for i, p in enumerate(params):
                dist.broadcast(p.data, src=int(i >= 3))
        gaps[name] = distance(params_of(model), alone(Net, name))
    return gaps


def split_pipeline(rank: int) -> dict[str, float]:
    """Two stages, each over two ranks: here both stages train the same, which doubles every sum."""
    gaps = {}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stages", "within"))["within"]
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for name in ("hyperadam", "normalizing"):
        for model in (
            fully_shard(make(Net), mesh=mesh),
            parallelize_module(make(Even), mesh, plan),
        ):
            kind = Net if hasattr(model, "first") else Even
            opt = OPTIMIZERS[name].make(model.parameters(), process_group=dist.group.WORLD)
            assert train(model, opt) == 5 * OPTIMIZERS[name].rounds

            twins = nn.ModuleList([make(kind), make(kind)])
            opt = OPTIMIZERS[name].make(twins.parameters())
            for step in STEPS:
                for twin in twins:
                    backward(twin, batch(step))
                opt.step()
            gaps[f"{name} {kind.__name__}"] = distance(params_of(model), params_of(twins[0]))
    return gaps


def test_what_is_no_group_is_refused() -> None:
    with pytest.raises(TypeError, match=r"process_group must be .* got 'all'"):
        hyperadam.HyperAdam(make(Net).parameters(), process_group="all")


def assert_close(results: list[dict[str, float]]) -> None:
    for gaps in results:
        check_near(gaps)
