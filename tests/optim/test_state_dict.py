"""Checkpoints: the same bits for the rest of training, in the state's own dtype, and only of the same rule."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hyperadam import HyperAdam, HyperAdamRule, LearnedOptimizer, RNNprop, RNNpropRule

from .cases import SHAPES, Case, Snapshot, fields, flat, lively, refused, run, tensors, through_file

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def assert_same_state(a: LearnedOptimizer, b: LearnedOptimizer) -> None:
    for (p, x), (q, y) in zip(a.state.items(), b.state.items(), strict=True):
        assert p.shape == q.shape
        assert x.keys() == y.keys()
        for k in x:
            assert x[k].dtype == y[k].dtype
            assert torch.equal(x[k], y[k])


@pytest.mark.parametrize("param_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("state_dtype", DTYPES)
def test_resumed_training_has_the_same_bits(
    case: Case, param_dtype: torch.dtype, state_dtype: torch.dtype
) -> None:
    if state_dtype == torch.float64:
        case = case._replace(backend="torch")
    params = tensors(*SHAPES, dtype=param_dtype)
    groups = [{"params": params[:2], "lr": 0.02}, {"params": params[2:], "weight_decay": 0.1}]
    opt = case.make(groups, state_dtype=state_dtype)
    run(opt, params, range(3))
    saved = through_file({"params": [p.detach() for p in params], "opt": opt.state_dict()})

    resumed = [p.requires_grad_() for p in saved["params"]]
    opt2 = case.make([{"params": resumed[:2]}, {"params": resumed[2:]}], state_dtype=state_dtype)
    opt2.load_state_dict(saved["opt"])
    assert {x.dtype for s in opt2.state.values() for x in fields(s).values()} == {state_dtype}
    assert_same_state(opt, opt2)
    run(opt, params, range(3, 7))
    run(opt2, resumed, range(3, 7))
    assert torch.equal(flat(params), flat(resumed))
    assert_same_state(opt, opt2)
    assert opt2.param_groups[0]["lr"] == 0.02
    assert opt2.param_groups[1]["weight_decay"] == 0.1


def test_state_is_seen_with_the_parameters_shape(case: Case) -> None:
    params = tensors(*SHAPES)
    opt = case.make(params)
    run(opt, params, range(2))
    for p in params:
        state = opt.state[p]
        assert {k: tuple(x.shape) for k, x in fields(state).items()} == {
            k: (rows, *p.shape) for k, rows in case.rule.state_rows().items()
        }
        assert ("memory" in state) == bool(case.rule.memory)
        if case.rule.memory:
            assert tuple(state["memory"].shape) == (case.rule.memory,)
            assert state["memory"].dtype == torch.float32
        assert all(v.is_contiguous() and v.storage_offset() == 0 for v in state.values())
        assert len({v.untyped_storage().data_ptr() for v in state.values()}) == len(state)
        assert state["step"] == 2
        assert state["step"].dtype == torch.int64  # float32 would stop at 2**24


def test_a_state_in_any_layout_loads(case: Case) -> None:
    params, twin = tensors(*SHAPES), tensors(*SHAPES)
    opt, opt2 = case.make(params), case.make(twin)
    run(opt, params, range(2))
    run(opt2, twin, range(2))
    foreign = opt.state_dict()
    foreign = {
        "param_groups": foreign["param_groups"],
        "state": {
            i: {k: v.mT.contiguous().mT if v.dim() > 1 else v for k, v in s.items()}
            for i, s in foreign["state"].items()
        },
    }
    opt2.load_state_dict(foreign)
    assert all(v.is_contiguous() for p in twin for v in opt2.state[p].values())
    run(opt, params, range(2, 4))
    run(opt2, twin, range(2, 4))
    assert torch.equal(flat(params), flat(twin))


def test_a_state_that_tools_replaced_is_brought_into_line_in_the_step(case: Case) -> None:
    params, twin = tensors(*SHAPES), tensors(*SHAPES)
    opt, opt2 = case.make(params), case.make(twin)
    run(opt, params, range(2))
    run(opt2, twin, range(2))
    for state in opt2.state.values():
        for k, v in state.items():
            state[k] = v.double().mT.contiguous().mT if v.dim() > 1 else v.clone()
    run(opt, params, range(2, 4))
    run(opt2, twin, range(2, 4))
    assert torch.equal(flat(params), flat(twin))
    assert all(
        x.is_contiguous() and x.dtype == torch.float32
        for p in twin
        for x in fields(opt2.state[p]).values()
    )


def test_loading_copies(case: Case) -> None:
    params, twin = tensors(*SHAPES), tensors(*SHAPES)
    opt, opt2 = case.make(params), case.make(twin)
    run(opt, params, range(2))
    opt2.load_state_dict(opt.state_dict())
    before = Snapshot(opt)
    run(opt2, twin, range(2, 4))
    before.assert_same()


@pytest.mark.parametrize("saved_dtype", DTYPES)
def test_the_state_takes_the_dtype_of_the_loading_optimizer(
    case: Case, saved_dtype: torch.dtype
) -> None:
    params = tensors(*SHAPES, dtype=torch.bfloat16)
    opt = case.make(params, state_dtype=saved_dtype, backend="torch")
    run(opt, params, range(2))
    opt2 = case.make(tensors(*SHAPES, dtype=torch.bfloat16))
    opt2.load_state_dict(opt.state_dict())
    for x, y in zip(opt.state.values(), opt2.state.values(), strict=True):
        assert all(
            y[k].dtype == torch.float32 and torch.equal(x[k].float(), y[k])
            for k in x
            if k != "step"
        )
        assert x["step"] == y["step"] == 2


def test_parameters_without_state(case: Case) -> None:
    params = tensors((3,), (4,))
    opt = case.make(params)
    params[1].grad = torch.ones(4)
    opt.step()
    twin = tensors((3,), (4,))
    opt2 = case.make(twin)
    opt2.load_state_dict(through_file(opt.state_dict()))
    assert list(opt2.state) == [twin[1]]
    opt2.load_state_dict(case.make(tensors((3,), (4,))).state_dict())
    assert not opt2.state


def test_load_hooks_run_around_the_state(case: Case) -> None:
    params, twin = tensors((3,)), tensors((3,))
    opt, opt2 = case.make(params), case.make(twin)
    run(opt, params, range(1))
    seen: list[str] = []

    def scaled(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        assert state_dict["state"][0]["step"] == 1
        seen.append("pre")
        (group,) = state_dict["param_groups"]
        return state_dict | {"param_groups": [group | {"lr": 0.5}]}

    opt2.register_load_state_dict_pre_hook(scaled)
    opt2.register_load_state_dict_post_hook(lambda o: seen.append(f"post {len(o.state[twin[0]])}"))
    for _ in range(2):
        opt2.load_state_dict(opt.state_dict())
    count = 1 + len(case.rule.state_rows()) + bool(case.rule.memory)
    assert seen == ["pre", f"post {count}"] * 2
    assert opt2.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_a_copied_optimizer_goes_on_alike(case: Case, copier: Any) -> None:
    params = tensors(*SHAPES)
    opt = case.make(params, state_dtype=torch.bfloat16, nonfinite="skip")
    run(opt, params, range(2))
    opt2 = copier(opt)
    twin = opt2.param_groups[0]["params"]
    run(opt, params, range(2, 4))
    run(opt2, twin, range(2, 4))
    assert torch.equal(flat(params), flat(twin))
    assert repr(opt) == repr(opt2)
    assert twin[0] is not params[0]
    assert opt2.nonfinite == "skip"
    assert_same_state(opt, opt2)


def stepped(rule: Any, kind: Any = HyperAdam, shapes: Any = SHAPES) -> LearnedOptimizer:
    params = tensors(*shapes)
    opt: LearnedOptimizer = kind(params, weights=rule, backend="torch")
    run(opt, params, range(1))
    return opt


def test_state_of_another_rule_is_refused() -> None:
    opt = stepped(HyperAdamRule())
    refused(
        opt,
        stepped(RNNpropRule(), RNNprop).state_dict(),
        r"belongs to rnnprop\(.*expected hyperadam\(candidates=20",
    )
    refused(
        opt,
        stepped(HyperAdamRule(candidates=4)).state_dict(),
        r"belongs to hyperadam\(candidates=4",
    )
    refused(opt, stepped(HyperAdamRule(decay_bound=0.9)).state_dict(), "decay_bound=0.9")
    adam = torch.optim.Adam(tensors(*SHAPES))
    refused(opt, adam.state_dict(), "not of a learned optimizer")


def test_state_that_does_not_fit_is_refused(case: Case) -> None:
    opt = stepped(case.rule, case.optimizer)
    refused(opt, stepped(case.rule, case.optimizer, SHAPES[:2]).state_dict(), "parameter group")
    refused(
        opt,
        stepped(case.rule, case.optimizer, [(9, 7), *SHAPES[1:]]).state_dict(),
        r"has shape \(\d+, 9, 7\), expected \(\d+, 7, 9",
    )
    broken = opt.state_dict()
    broken["state"] = {**broken["state"], 1: {"step": torch.tensor(1.0)}}
    refused(opt, broken, r"state 1 has fields \['step'\]")


def test_other_weights_of_the_same_rule_are_welcome() -> None:
    opt = stepped(lively(HyperAdamRule()))
    saved = stepped(lively(HyperAdamRule())).state_dict()
    opt.load_state_dict(saved)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_distributed_checkpoint_tools(case: Case, tmp_path: Path) -> None:
    """They flatten the dict, make the state by a step on zero gradients, and load into it in place."""
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    tools = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    if not torch.distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).bfloat16()
    opt = case.make(model.parameters())
    run(opt, list(model.parameters()), range(2))
    options = tools.StateDictOptions(flatten_optimizer_state_dict=True)
    opt.zero_grad()
    saved = {"opt": tools.get_optimizer_state_dict(model, opt, options=options)}
    dcp.save(saved, checkpoint_id=tmp_path, no_dist=True)

    model2 = copy.deepcopy(model)
    opt2 = case.make(model2.parameters())
    target = {"opt": tools.get_optimizer_state_dict(model2, opt2, options=options)}
    dcp.load(target, checkpoint_id=tmp_path, no_dist=True)
    tools.set_optimizer_state_dict(model2, opt2, target["opt"], options=options)
    assert_same_state(opt, opt2)
    run(opt, list(model.parameters()), range(2, 4))
    run(opt2, list(model2.parameters()), range(2, 4))
    assert torch.equal(flat(list(model.parameters())), flat(list(model2.parameters())))


@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)], ids=["float", "tensor"])
def test_the_dict_of_a_fresh_optimizer_survives_a_file(case: Case, lr: Any) -> None:
    saved = through_file(case.make(tensors(*SHAPES), lr=lr).state_dict())
    assert saved["state"] == {}
    assert saved["param_groups"][0]["lr"] == lr
    opt = case.make(tensors(*SHAPES), lr=0.5)
    opt.load_state_dict(saved)
    assert opt.param_groups[0]["lr"] == lr
