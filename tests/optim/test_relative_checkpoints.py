"""Checkpoints of relative steps: the same bits for the rest of training, and no damaged size."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from .cases import Case, flat, refused, run, tensors, through_file
from .sizes import starts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_resumed_training_has_the_same_bits(
    pair: tuple[Case, Case], dtype: torch.dtype, state_dtype: torch.dtype
) -> None:
    case, params = pair[1], starts(dtype)
    groups = [{"params": params[:2], "total_steps": 9}, {"params": params[2:], "weight_decay": 0.1}]
    opt = case.make(groups, total_steps=30, state_dtype=state_dtype)
    run(opt, params, range(3))
    saved = through_file({"params": [p.detach() for p in params], "opt": opt.state_dict()})

    resumed = [p.requires_grad_() for p in saved["params"]]
    opt2 = case.make([{"params": resumed[:2]}, {"params": resumed[2:]}], state_dtype=state_dtype)
    opt2.load_state_dict(saved["opt"])
    assert [group["total_steps"] for group in opt2.param_groups] == [9, 30]
    # the size is that of the start, not of where training was resumed
    for p, q, start in zip(params, resumed, starts(dtype), strict=True):
        size = start.detach().double().square().mean().sqrt().item()
        assert torch.equal(opt.state[p]["memory"], opt2.state[q]["memory"])
        assert opt.state[p]["memory"].data_ptr() != opt2.state[q]["memory"].data_ptr()
        assert opt2.state[q]["memory"].item() == pytest.approx(size, rel=1e-6)
    run(opt, params, range(3, 8))
    run(opt2, resumed, range(3, 8))
    assert torch.equal(flat(params), flat(resumed))
    for p, q in zip(params, resumed, strict=True):
        assert all(torch.equal(x, opt2.state[q][k]) for k, x in opt.state[p].items())


@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_a_copied_optimizer_goes_on_alike(pair: tuple[Case, Case], copier: Any) -> None:
    params = starts()
    opt = pair[1].make(params, total_steps=6)
    run(opt, params, range(2))
    opt2 = copier(opt)
    twin = opt2.param_groups[0]["params"]
    run(opt, params, range(2, 4))
    run(opt2, twin, range(2, 4))
    assert torch.equal(flat(params), flat(twin))


def test_a_memory_that_tools_replaced_is_brought_into_line(pair: tuple[Case, Case]) -> None:
    params, twin = starts(), starts()
    opt, opt2 = pair[1].make(params), pair[1].make(twin)
    run(opt, params, range(2))
    run(opt2, twin, range(2))
    for p in twin:
        opt2.state[p]["memory"] = opt2.state[p]["memory"].double()
    run(opt, params, range(2, 4))
    run(opt2, twin, range(2, 4))
    assert torch.equal(flat(params), flat(twin))
    assert all(opt2.state[p]["memory"].dtype == torch.float32 for p in twin)


def test_a_damaged_memory_is_refused(pair: tuple[Case, Case]) -> None:
    params = starts()
    opt = pair[1].make(params)
    run(opt, params, range(2))
    wrong = {
        "'memory' of state 1 has an entry that is not finite": torch.tensor([torch.nan]),
        "'memory' of state 1 has an entry that is not finite in torch.float32": torch.tensor(
            [1e300], dtype=torch.float64
        ),
        "'memory' of state 1 has a negative entry": torch.tensor([-0.1]),
        r"'memory' of state 1 has a size above 1e\+12": torch.tensor([1e13]),
        r"'memory' of state 1 has shape \(2,\), expected \(1,\)": torch.ones(2),
        r"'memory' of state 1 has shape \(\), expected \(1,\)": torch.tensor(0.1),
        "'memory' of state 1 has dtype torch.int64": torch.ones(1).long(),
        "'memory' of state 1 has no data": torch.ones(1, device="meta"),
        "'memory' of state 1 is torch.sparse_coo": torch.ones(1).to_sparse(),
        "'memory' of state 1 must be a tensor, got 0.1": 0.1,
    }
    for match, value in wrong.items():
        damaged = copy.deepcopy(opt.state_dict())
        damaged["state"][1]["memory"] = value
        refused(opt, damaged, match)
    damaged = copy.deepcopy(opt.state_dict())
    del damaged["state"][1]["memory"]
    refused(opt, damaged, "state 1 has fields .*, expected .*'memory'")


def test_states_of_plain_and_relative_rules_do_not_mix(pair: tuple[Case, Case]) -> None:
    opts = []
    for case in pair:
        params = starts()
        opts.append(case.make(params))
        run(opts[-1], params, range(1))
    refused(opts[0], opts[1].state_dict(), "belongs to .*relative=True")
    refused(opts[1], opts[0].state_dict(), "expected .*relative=True")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize("flatten", [False, True])
def test_distributed_checkpoint_tools(
    pair: tuple[Case, Case], tmp_path: Any, flatten: bool
) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    tools = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    opt = pair[1].make(model.parameters(), total_steps=10)
    run(opt, list(model.parameters()), range(2))
    options = tools.StateDictOptions(flatten_optimizer_state_dict=flatten)
    opt.zero_grad()
    saved = {"opt": tools.get_optimizer_state_dict(model, opt, options=options)}
    dcp.save(saved, checkpoint_id=tmp_path, no_dist=True)
    model2 = copy.deepcopy(model)
    opt2 = pair[1].make(model2.parameters(), total_steps=5)
    target = {"opt": tools.get_optimizer_state_dict(model2, opt2, options=options)}
    dcp.load(target, checkpoint_id=tmp_path, no_dist=True)
    tools.set_optimizer_state_dict(model2, opt2, target["opt"], options=options)
    assert opt2.param_groups[0]["total_steps"] == 10
    run(opt, list(model.parameters()), range(2, 4))
    run(opt2, list(model2.parameters()), range(2, 4))
    assert torch.equal(flat(list(model.parameters())), flat(list(model2.parameters())))


def test_checkpoints_from_before_the_option_load(case: Case) -> None:
    params, twin = tensors((3, 4)), tensors((3, 4))
    opt, opt2 = case.make(params), case.make(twin, total_steps=7)
    run(opt, params, range(2))
    old = through_file(opt.state_dict())
    del old["param_groups"][0]["total_steps"]
    with torch.no_grad():
        twin[0].copy_(params[0])
    opt2.load_state_dict(old)
    assert opt2.param_groups[0]["total_steps"] is None
    run(opt, params, range(2, 4))
    run(opt2, twin, range(2, 4))
    assert torch.equal(flat(params), flat(twin))
    state = opt.__getstate__()
    state["param_groups"] = [
        {k: v for k, v in g.items() if k != "total_steps"} for g in state["param_groups"]
    ]
    del state["_warned"]
    older = object.__new__(type(opt))
    older.__setstate__(state)
    older.step()
