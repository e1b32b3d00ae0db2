"""Bad input gets a clear error, and nothing has changed when it comes."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hyperadam import (
    DMOptimizer,
    DMRule,
    HyperAdam,
    HyperAdam2,
    HyperAdam2Rule,
    HyperAdamRule,
    LearnedOptimizer,
    RNNprop,
    RNNpropRule,
    WeightsError,
)
from hyperadam.rules.faults import largest_gradient

from .cases import SHAPES, Case, Snapshot, fields, flat, run, set_grads, tensors


@pytest.fixture(params=["fresh", "stepped"])
def opt(request: pytest.FixtureRequest, case: Case) -> LearnedOptimizer:
    params = tensors(*SHAPES)
    opt = case.make(params, weight_decay=0.1)
    if request.param == "stepped":
        run(opt, params, range(2))
    return opt


def spoil(opt: LearnedOptimizer, grad: Any) -> None:
    """Good gradients for all but the last parameter, so that a step that validates as it goes would have moved some."""
    params = opt.param_groups[0]["params"]
    set_grads(params, 7)
    params[-1].grad = grad(params[-1])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_gradient_raises(opt: LearnedOptimizer, value: float) -> None:
    def grad(p: torch.Tensor) -> torch.Tensor:
        g = torch.ones_like(p)
        g.view(-1)[-1] = value
        return g

    spoil(opt, grad)
    before = Snapshot(opt)
    with pytest.raises(
        RuntimeError,
        match=r"parameter 4 of group 0 of shape \(3, 2, 5\) has a gradient that is not finite",
    ):
        opt.step()
    before.assert_same()
    assert opt.skipped_steps == 0
    set_grads(opt.param_groups[0]["params"], 7)
    opt.step()  # the same optimizer goes on


def test_a_gradient_too_large_to_square_raises(opt: LearnedOptimizer) -> None:
    spoil(opt, lambda p: torch.full_like(p, 1e20))
    before = Snapshot(opt)
    with pytest.raises(RuntimeError, match=r"too large to square in torch.float32"):
        opt.step()
    before.assert_same()


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_largest_gradients_that_are_taken_leave_finite_numbers(
    case: Case, state_dtype: torch.dtype
) -> None:
    limit = largest_gradient(torch.float32)
    (p,) = tensors((300,))
    opt = case.make([p], state_dtype=state_dtype)
    for t in range(40):
        p.grad = torch.full((300,), 0.999 * limit) * (-1) ** (t // 9)
        opt.step()
        assert p.isfinite().all()
        assert all(x.isfinite().all() for x in fields(opt.state[p]).values())
    p.grad[-1] = 1.001 * limit
    with pytest.raises(RuntimeError, match=r"not finite, or above 1.15e\+18"):
        opt.step()


def test_float64_gradient_beyond_float32_raises(case: Case) -> None:
    params = tensors((3,), dtype=torch.float64)
    params[0].grad = torch.full((3,), 1e200, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="not finite"):
        case.make(params).step()


def test_sparse_gradient_raises(opt: LearnedOptimizer) -> None:
    spoil(opt, lambda p: torch.ones_like(p).to_sparse())
    before = Snapshot(opt)
    with pytest.raises(
        RuntimeError, match=r"parameter 4 of group 0 .* layout torch.sparse_coo, expected a dense"
    ):
        opt.step()
    before.assert_same()


def test_sparse_embedding(case: Case) -> None:
    model = nn.Embedding(5, 3, sparse=True)
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="parameter 'weight' of shape"):
        case.make(model.named_parameters()).step()


def test_complex_gradient_raises(case: Case) -> None:
    good, bad = tensors((4,))[0], torch.ones(3, dtype=torch.complex64, requires_grad=True)
    opt = case.make([{"params": [good]}, {"params": [bad]}])
    good.grad, bad.grad = torch.ones(4), torch.ones(3, dtype=torch.complex64)
    before = Snapshot(opt)
    with pytest.raises(
        RuntimeError, match=r"parameter 0 of group 1 .* type torch.complex64, expected a real"
    ):
        opt.step()
    before.assert_same()


def test_named_parameters_are_named(case: Case) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    opt = case.make(model.named_parameters())
    for p in model.parameters():
        p.grad = torch.full_like(p, math.nan)
    with pytest.raises(
        RuntimeError, match=r"parameter '0.weight' of shape \(3, 2\) \(and 3 more\)"
    ):
        opt.step()


def test_skipped_steps_are_counted_and_change_nothing(case: Case) -> None:
    params, twin = tensors(*SHAPES), tensors(*SHAPES)
    opt, opt_twin = case.make(params, nonfinite="skip"), case.make(twin)
    spoil(opt, lambda p: torch.full_like(p, math.nan))
    before = Snapshot(opt)
    assert opt.step(lambda: 1.25) == 1.25
    before.assert_same()
    assert opt.skipped_steps == 1
    assert not opt.state

    run(opt, params, range(2))
    run(opt_twin, twin, range(2))
    opt.add_param_group({"params": tensors((2,))})
    spoil(opt, lambda p: torch.full_like(p, math.inf))
    before = Snapshot(opt)
    opt.step()
    before.assert_same()
    assert opt.skipped_steps == 2
    run(opt, params, range(2, 4))
    run(opt_twin, twin, range(2, 4))
    assert torch.equal(flat(params), flat(twin)), "a skipped step must leave no trace"

    other = case.make([{"params": tensors(*SHAPES)}, {"params": tensors((2,))}])
    other.load_state_dict(opt.state_dict())
    assert other.skipped_steps == 2


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"lr": -0.1}, "lr must be a finite number ≥ 0, got -0.1"),
    ({"lr": math.nan}, "lr must be"),
    ({"lr": math.inf}, "lr must be"),
    ({"lr": "0.1"}, "lr must be .* got '0.1'"),
    ({"lr": torch.tensor([0.1, 0.2])}, "lr must be"),
    ({"lr": torch.tensor(-1.0)}, "lr must be"),
    ({"lr": 1e300}, "lr must be at most 10000, got 1e\\+300"),
    ({"lr": 10**400}, "lr must be a finite number ≥ 0, got 1000"),
    ({"lr": torch.tensor(0.1, device="meta")}, "lr must be .* got a Tensor"),
    ({"weight_decay": 1e30}, "weight_decay must be at most 10000"),
    ({"maximize": 1}, "maximize must be True or False, got 1"),
    ({"weight_decay": -1}, "weight_decay must be a finite number ≥ 0, got -1"),
    ({"weight_decay": math.nan}, "weight_decay must be"),
    ({"nonfinite": "ignore"}, "nonfinite must be 'raise' or 'skip', got 'ignore'"),
    ({"state_dtype": torch.int32}, "state_dtype must be one of .* got torch.int32"),
    ({"state_dtype": torch.float16}, "state_dtype .* too small for squared gradients"),
    ({"weights": "no-such-name"}, "no shipped weights named 'no-such-name'"),
]


@pytest.mark.parametrize(("options", "match"), BAD_OPTIONS, ids=str)
def test_bad_options(case: Case, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        case.make(tensors((3,)), **options)


@pytest.mark.parametrize("options", [{"lr": -1.0}, {"weight_decay": math.inf}], ids=str)
def test_bad_options_of_a_group(case: Case, options: dict[str, Any]) -> None:
    params = tensors((3,), (4,))
    with pytest.raises(ValueError, match="must be a finite number"):
        case.make([{"params": params[:1]}, {"params": params[1:], **options}])
    opt = case.make(params[:1])
    with pytest.raises(ValueError, match="must be a finite number"):
        opt.add_param_group({"params": params[1:], **options})
    assert len(opt.param_groups) == 1


def test_no_parameters(case: Case) -> None:
    with pytest.raises(ValueError, match="empty parameter list"):
        case.make([])
    with pytest.raises(TypeError):
        case.make(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (RNNprop, HyperAdamRule),
        (HyperAdam, DMRule),
        (HyperAdam, HyperAdam2Rule),
        (HyperAdam2, HyperAdamRule),
        (DMOptimizer, RNNpropRule),
    ],
    ids=lambda x: x.__name__,
)
def test_rules_of_another_kind(optimizer: Any, rule: Any, tmp_path: Path) -> None:
    with pytest.raises(
        WeightsError, match=rf"got a {rule.__name__}, expected a {optimizer.rule_class.__name__}"
    ):
        optimizer(tensors((3,)), weights=rule())
    rule().save(tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=rf"w.safetensors.* got a {rule.__name__}, expected"):
        optimizer(tensors((3,)), weights=tmp_path / "w.safetensors")
    assert LearnedOptimizer(tensors((3,)), weights=rule()).defaults["lr"] == rule.step_size
    generic = LearnedOptimizer(tensors((3,)), weights=rule())
    run(generic, generic.param_groups[0]["params"], range(2))


def test_weights_of_no_sensible_type(case: Case) -> None:
    with pytest.raises(TypeError, match=r"weights must be .* got int"):
        case.make(tensors((3,)), weights=3)
    with torch.no_grad():
        next(iter(case.rule.parameters())).fill_(math.nan)
    with pytest.raises(WeightsError, match="not finite"):
        case.make(tensors((3,)))


def test_default_weights() -> None:
    assert HyperAdam(tensors((3,))).rule.provenance["updates"] > 0
    assert HyperAdam(tensors((3,)), weights="adam-init").rule.provenance["meta_steps"] == 0
    for optimizer in (RNNprop, DMOptimizer, HyperAdam2):
        assert optimizer(tensors((3,))).rule.provenance["updates"] > 0
    assert HyperAdam2(tensors((3,))).rule.provenance["preset"] == "hyperadam2"
    assert HyperAdam(tensors((3,))).defaults["lr"] == 0.005
    assert HyperAdam2(tensors((3,)), weights=HyperAdam2Rule()).defaults["lr"] == 0.01
    assert RNNprop(tensors((3,)), weights=RNNpropRule()).defaults["lr"] == 0.1
    assert DMOptimizer(tensors((3,)), weights=DMRule()).defaults["lr"] == 0.1


def test_a_copy_without_its_process_group_does_not_step_alone() -> None:
    """Its norms would silently be those of one rank."""
    params = tensors(*SHAPES)
    opt = HyperAdam(params)
    opt._process_group = object()
    twin = copy.deepcopy(opt)
    twin_params = twin.param_groups[0]["params"]
    set_grads(twin_params, 0)
    before = Snapshot(twin)
    for again in (twin, copy.deepcopy(twin)):
        with pytest.raises(
            RuntimeError, match="copies do not keep: make a new one with process_group="
        ):
            again.step()
    before.assert_same()
