"""Relative steps and a known horizon: against a twin in NumPy, to the bit where nothing should change, in checkpoints."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import hyperadam
from hyperadam import HyperAdam, HyperAdamRule, LearnedOptimizer
from tests.rules.numpy_twins import DMTwin, HyperAdamTwin, RNNpropTwin, pace_twin, scale_twin

from .cases import PLAIN, Case, Snapshot, flat, lively, run, set_grads, tensors

#: Wide and narrow matrices, a convolution, vectors, a scalar; and the sizes they start with.
SHAPES = [(5, 100), (7, 9), (65,), (3, 2, 3, 3), ()]
SIZES = [0.05, 0.4, 0.0, 1.0, 0.1]
TWINS = {"hyperadam": HyperAdamTwin, "rnnprop": RNNpropTwin, "dm": DMTwin}


@pytest.fixture(params=PLAIN)
def pair(request: pytest.FixtureRequest) -> tuple[Case, Case]:
    """The same rule without and with relative steps."""
    optimizer, rule, backend = PLAIN[request.param]
    torch.manual_seed(1)
    plain = lively(rule())
    relative = rule(relative=True)  # type: ignore[call-arg]
    relative.load_state_dict(plain.state_dict())
    return Case(optimizer, plain, backend), Case(optimizer, relative, backend)


def starts(dtype: torch.dtype = torch.float32, factor: float = 1.0) -> list[Tensor]:
    params = tensors(*SHAPES, dtype=dtype)
    with torch.no_grad():
        for p, size in zip(params, SIZES, strict=True):
            p *= factor * size
    return params


def through_file(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


# The numbers ----------------------------------------------------------------------------------------


def twin_steps(
    case: Case,
    start: list[Tensor],
    steps: int,
    lr: float,
    decay: float,
    totals: list[int | None],
) -> np.ndarray:
    """The same training in float64 on one flat vector."""
    p = sum(x.numel() for x in start)
    twin = TWINS[case.rule.kind](case.rule, p)
    parts = [x.detach().double().numpy().ravel() for x in start]
    scales = [
        scale_twin(np.sqrt(np.mean(x**2)), shape) for x, shape in zip(parts, SHAPES, strict=True)
    ]
    scale = np.concatenate([np.full(len(x), s) for x, s in zip(parts, scales, strict=True)])
    w, like = np.concatenate(parts), starts()
    for t in range(1, steps + 1):
        set_grads(like, t)
        d = twin.step(flat([x.grad for x in like if x.grad is not None]).double().numpy())
        paces = [pace_twin(t, total, 0) for total in totals]
        pace = np.concatenate([np.full(len(x), q) for x, q in zip(parts, paces, strict=True)])
        w = w - lr * pace * (scale * d + decay * w)
    return w


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.float64], ids=str)
def test_pace_and_scale_equal_the_twin(pair: tuple[Case, Case], state_dtype: torch.dtype) -> None:
    _, case = pair
    if state_dtype == torch.float64:
        case = case._replace(backend="torch")
    params = starts()
    first, rest = params[:2], params[2:]
    opt = case.make(
        [{"params": first}, {"params": rest, "total_steps": 30}],
        lr=0.02,
        weight_decay=0.3,
        total_steps=8,
        state_dtype=state_dtype,
    )
    run(opt, params, range(1, 9))
    expected = twin_steps(case, starts(), 8, 0.02, 0.3, [8, 8, 30, 30, 30])
    # what is kept of a tensor's size are the digits of a float32
    error = np.abs(flat(params).double().numpy() - expected).max() / np.abs(expected).max()
    assert error < (2e-5 if state_dtype == torch.float32 else 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_scale_of_one_changes_no_bit(
    pair: tuple[Case, Case], dtype: torch.dtype, state_dtype: torch.dtype
) -> None:
    """All tensors zero, and none wide: then they count for the floor, 0.1, and the scale is one."""
    ends = []
    for case in pair:
        if state_dtype == torch.float64:
            case = case._replace(backend="torch")
        params = [0 * p.detach() for p in tensors((7, 9), (), (65,), (3, 2, 5), dtype=dtype)]
        opt = case.make(
            [p.requires_grad_() for p in params], weight_decay=0.1, state_dtype=state_dtype
        )
        run(opt, params, range(6))
        ends.append([*params, *(opt.state[p][k] for p in params for k in case.rule.state_rows())])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_scales_do_matter(pair: tuple[Case, Case]) -> None:
    """The test above would mean little if no scale ever showed."""
    ends = []
    for case in pair:
        params = starts()
        run(case.make(params), params, range(3))
        ends.append(
            [p.detach() - start.detach() for p, start in zip(params, starts(), strict=True)]
        )
    for plain, relative, shape, start in zip(*ends, SHAPES, starts(), strict=True):
        scale = scale_twin(start.detach().double().square().mean().sqrt().item(), shape)
        torch.testing.assert_close(relative, scale * plain, rtol=2e-3, atol=1e-5)


def test_pace_is_a_learning_rate(pair: tuple[Case, Case]) -> None:
    """The horizon does what a scheduler with the same numbers does, and multiplies with it."""
    for case in pair:
        told, by_hand = starts(), starts()
        opt, other = case.make(told, total_steps=25), case.make(by_hand)
        scheduler = LambdaLR(opt, lambda t: 1 / (1 + t))
        for t in range(30):
            other.param_groups[0]["lr"] = 0.01 / (1 + t) * pace_twin(t + 1, 25, 0)
            for x, params in ((opt, told), (other, by_hand)):
                set_grads(params, t)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    x.step()
            scheduler.step()
        torch.testing.assert_close(flat(told), flat(by_hand), rtol=1e-5, atol=1e-7)


def test_a_horizon_takes_the_place_of_the_rules_warmup() -> None:
    rule, ends = HyperAdamRule(candidates=3, warmup=5), []
    for total in (None, 40):
        params = starts()
        opt = HyperAdam(params, weights=rule, total_steps=total)
        before = flat(params)
        run(opt, params, range(1))
        ends.append((flat(params) - before).abs().max().item())
    assert ends[1] / ends[0] == pytest.approx(0.5 / 0.2, rel=1e-3)


def test_the_count_is_each_parameters_own() -> None:
    """One that joins late warms up when it does."""
    params = tensors((1000,), (1000,))
    opt = HyperAdam(params, lr=1.0, weight_decay=0.001, total_steps=100)
    paces = []
    for t in range(4):
        before = [p.detach().clone() for p in params]
        # no gradient, no update of this rule: what is left is lr · pace · decay · p
        for p, joins in zip(params, (0, 2), strict=True):
            p.grad = torch.zeros(1000) if t >= joins else None
        opt.step()
        paces += [
            (1 - p.detach() / b).mean().item() / 0.001 for p, b in zip(params, before, strict=True)
        ]
    assert [int(opt.state[p]["step"]) for p in params] == [4, 2]
    assert paces == pytest.approx([0.2, 0, 0.4, 0, 0.6, 0.2, 0.8, 0.4], rel=1e-2)


# The memory -----------------------------------------------------------------------------------------


def test_memory_is_the_size_at_the_first_step(pair: tuple[Case, Case]) -> None:
    plain, relative = pair
    params = starts()
    opt = plain.make(params)
    run(opt, params, range(2))
    assert all("memory" not in opt.state[p] for p in params)

    params = starts(torch.bfloat16)
    sizes = [p.detach().double().square().mean().sqrt().float() for p in params]
    opt = relative.make(params, state_dtype=torch.bfloat16)
    for p in params[1:]:
        p.grad = torch.ones_like(p)
    opt.step()
    assert params[0] not in opt.state
    run(opt, params, range(2))
    for p, size in zip(params, sizes, strict=True):
        memory = opt.state[p]["memory"]
        assert memory.dtype == torch.float32  # whatever the state's
        assert memory.shape == (1,)
        torch.testing.assert_close(memory[0], size, rtol=1e-6, atol=0)
        assert memory.untyped_storage().nbytes() == 4  # a checkpoint brings no other's along


def test_a_parameter_without_a_size_is_refused(pair: tuple[Case, Case]) -> None:
    for value, shown in ((torch.nan, "nan"), (torch.inf, "inf"), (1e20, r"1.36083e\+19")):
        params = starts()
        with torch.no_grad():
            params[3].view(-1)[-1] = value
        opt = pair[1].make(params)
        before = flat(params)
        set_grads(params, 0)
        with pytest.raises(
            RuntimeError,
            match=rf"parameter 3 of group 0 of shape \(3, 2, 3, 3\) has the root mean square {shown}",
        ):
            opt.step()
        assert not opt.state
        torch.testing.assert_close(flat(params), before, rtol=0, atol=0, equal_nan=True)
        with torch.no_grad():
            params[3].view(-1)[-1] = 0.5
        opt.step()


def test_a_refused_first_step_leaves_no_memory(pair: tuple[Case, Case]) -> None:
    params = starts()
    opt = pair[1].make(params, nonfinite="skip")
    set_grads(params, 0)
    params[2].grad = torch.full_like(params[2], torch.nan)
    opt.step()
    assert not opt.state
    with torch.no_grad():
        params[1] *= 3  # somebody loads other weights
    run(opt, params, range(1))
    expected = 3 * starts()[1].detach().double().square().mean().sqrt()
    assert opt.state[params[1]]["memory"].item() == pytest.approx(expected.item(), rel=1e-6)


# Checkpoints ----------------------------------------------------------------------------------------


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


def refused(opt: LearnedOptimizer, state_dict: dict[str, Any], match: str) -> None:
    before, groups = Snapshot(opt), copy.deepcopy([{**g, "params": None} for g in opt.param_groups])
    with pytest.raises(ValueError, match=match):
        opt.load_state_dict(state_dict)
    before.assert_same()
    assert [{**g, "params": None} for g in opt.param_groups] == groups


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


# The option -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, -1, 10.0, True, "100", torch.tensor(10), 2**60, float("inf")])
def test_bad_horizons_are_refused(bad: Any) -> None:
    message = "total_steps must be None or a whole number of steps ≥ 1, got"
    with pytest.raises(ValueError, match=message):
        HyperAdam(tensors((3,)), total_steps=bad)
    opt = HyperAdam(tensors((3,)), total_steps=5)
    with pytest.raises(ValueError, match=message):
        opt.add_param_group({"params": tensors((2,)), "total_steps": bad})
    assert len(opt.param_groups) == 1
    damaged = opt.state_dict()
    damaged["param_groups"][0]["total_steps"] = bad
    refused(opt, damaged, f"group 0: {message}")


def test_numpys_whole_numbers_are_numbers() -> None:
    opt = HyperAdam(tensors((3,)), total_steps=np.int64(12))  # type: ignore[arg-type]
    assert type(through_file(opt.state_dict())["param_groups"][0]["total_steps"]) is int
    assert "total_steps: 12" in repr(opt)


def test_one_warning_beyond_the_horizon(case: Case) -> None:
    params = tensors((3,), (4,))
    opt = case.make(
        [{"params": params[:1]}, {"params": params[1:], "total_steps": 5}], total_steps=3
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(opt, params, range(3))
    with pytest.warns(UserWarning, match=r"step 4 of \w+ is beyond total_steps=3") as seen:
        run(opt, params, range(3, 9))
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(copy.deepcopy(opt), params, range(1))
        opt.load_state_dict(opt.state_dict())
        run(opt, params, range(9, 10))


def test_a_warning_that_is_an_error_changes_nothing(case: Case) -> None:
    params = tensors((3,))
    opt = case.make(params, total_steps=2)
    run(opt, params, range(2))
    before = Snapshot(opt)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_grads(params, 2)
        with pytest.raises(UserWarning, match="beyond total_steps=2"):
            opt.step()
    before.assert_same()


def test_beyond_the_horizon_the_last_length_stays() -> None:
    (p,) = tensors((1000,))
    opt = HyperAdam([p], lr=1.0, weight_decay=0.001, total_steps=4)
    # no gradient, no update of this rule: what is left is lr · pace · decay · p
    moves = []
    for _ in range(6):
        before, p.grad = p.detach().clone(), torch.zeros(1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opt.step()
        moves.append(((before - p.detach()) / before).mean().item() / 0.001)
    assert moves == pytest.approx([1, 3 / 4, 2 / 4, 1 / 4, 1 / 4, 1 / 4], rel=1e-3)


def test_shipped_weights_take_relative_steps_when_asked() -> None:
    rule = hyperadam.load_rule("hyperadam", relative=True)
    params = starts()
    opt = HyperAdam(params, weights=rule, total_steps=20)
    assert "relative=True" in repr(opt)
    assert "total_steps: 20" in repr(opt)
    run(opt, params, range(3))
    assert all("memory" in state for state in opt.state.values())
