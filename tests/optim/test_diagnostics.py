"""What an optimizer tells of its next step: true numbers, and looking changes nothing."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from hyperadam import HyperAdam, HyperAdam2, HyperAdam2Rule, HyperAdamRule
from hyperadam.rules.hyperadam2 import Stage
from hyperadam.rules.pace import width_factor
from tests.rules.numpy_twins import scale_twin

from .cases import SHAPES, Case, Snapshot, lively, run, set_grads, tensors

#: What every optimizer tells of a tensor.
COMMON = {
    "size",
    "step",
    "lr",
    "pace",
    "gradient_norm",
    "weight_rms",
    "update_rms",
    "effective_step",
    "direction_rms",
}
#: What else, by the name of the rule.
OWN = {
    "hyperadam": {"beta", "beta_spread", "gamma", "gamma_spread", "rho", "rho_spread"},
    "hyperadam2": {"beta", "gamma", "rho", "rho_spread"},
    "rnnprop": set(),
    "dm": set(),
}


def rms(x: Tensor) -> float:
    return x.detach().double().square().mean().sqrt().item()


def moved(params: list[Tensor], before: list[Tensor]) -> list[float]:
    return [rms(p.detach().double() - old.double()) for p, old in zip(params, before, strict=True)]


@pytest.mark.parametrize("steps", [0, 3])
def test_looking_changes_nothing(case: Case, steps: int) -> None:
    params, twins = tensors(*SHAPES), tensors(*SHAPES)
    opt, twin = case.make(params, weight_decay=0.1), case.make(twins, weight_decay=0.1)
    run(opt, params, range(steps))
    run(twin, twins, range(steps))
    set_grads(params, steps)
    set_grads(twins, steps)
    seen, chance, plan = Snapshot(opt), torch.get_rng_state(), opt._plan
    groups = copy.deepcopy(
        [{k: v for k, v in g.items() if k != "params"} for g in opt.param_groups]
    )
    grads = [p.grad.clone() for p in params if p.grad is not None]

    first = opt.diagnostics()
    assert opt.diagnostics() == first

    seen.assert_same()
    assert torch.equal(torch.get_rng_state(), chance)
    assert opt._plan is plan
    assert groups == [{k: v for k, v in g.items() if k != "params"} for g in opt.param_groups]
    assert all(torch.equal(p.grad, g) for p, g in zip(params, grads, strict=True))
    opt.step()
    twin.step()
    for t in range(steps + 1, steps + 4):
        run(opt, params, range(t, t + 1))
        opt.diagnostics()
        run(twin, twins, range(t, t + 1))
    assert all(torch.equal(p, q) for p, q in zip(params, twins, strict=True))
    for p, q in zip(params, twins, strict=True):
        assert all(torch.equal(x, twin.state[q][name]) for name, x in opt.state[p].items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [0, 4])
def test_it_tells_how_far_the_step_will_go(case: Case, steps: int, dtype: torch.dtype) -> None:
    if dtype == torch.float64 and case.backend != "torch":
        pytest.skip("kernels in C++ compute in float32")
    params = tensors(*SHAPES, dtype=dtype)
    options = {"weight_decay": 0.3, "total_steps": 40, "state_dtype": dtype}
    opt = case.make([{"params": params[:2]}, {"params": params[2:], "lr": 0.02}], **options)
    run(opt, params, range(steps))
    set_grads(params, steps)
    told = opt.diagnostics()
    before = [p.detach().clone() for p in params]
    opt.step()
    assert list(told) == ["0", "1", "2", "3", "4"]
    pace = opt.rule.pace(steps + 1, 40)
    close = {"rel": 1e-4 if dtype == torch.float32 else 1e-9}
    for i, (p, old, far) in enumerate(zip(params, before, moved(params, before), strict=True)):
        numbers = told[str(i)]
        # a float32 weight is itself rounded when it moves
        rounding = torch.finfo(dtype).eps * old.abs().max().item()
        assert numbers["update_rms"] == pytest.approx(far, abs=rounding, **close)
        assert numbers["weight_rms"] == pytest.approx(rms(old))
        assert numbers["size"] == p.numel()
        ratio = numbers["update_rms"] / numbers["weight_rms"]
        assert numbers["effective_step"] == pytest.approx(ratio)
        assert p.grad is not None
        assert numbers["gradient_norm"] == pytest.approx(p.grad.double().norm().item())
        assert (numbers["step"], numbers["pace"]) == (steps + 1, pace)
        assert numbers["lr"] == (0.01 if i < 2 else 0.02)


def test_every_rule_tells_what_it_has(case: Case) -> None:
    params = tensors(*SHAPES)
    opt = case.make(params)
    run(opt, params, range(2))
    expected = COMMON | OWN[opt.rule.kind]
    if opt.rule.kind != "dm":
        expected |= {"moment_rms"}
    if opt.rule.kind == "hyperadam2":
        expected |= {"log_step", "tensor_rho", "signal_to_noise"}
    for numbers in opt.diagnostics().values():
        assert set(numbers) == expected
        for value in numbers.values():
            values = value if isinstance(value, list) else [value]
            assert all(type(x) is float and math.isfinite(x) for x in values)


def test_hyperadam_tells_its_fields() -> None:
    """β, γ and ρ of each candidate, against the rule on the whole vector."""
    rule = lively(HyperAdamRule(candidates=3, normalize_state=True))
    params = tensors((6, 4), (5,))
    opt = HyperAdam(params, weights=rule)
    run(opt, params, range(3))
    set_grads(params, 3)
    told = opt.diagnostics()
    state = rule.State(
        *(
            torch.cat([opt.state[p][name].flatten(1) for p in params], 1)
            for name in rule.State._fields
        )
    )
    grad = torch.cat([p.grad.flatten() for p in params if p.grad is not None])
    _, look = rule.look(grad, state)
    for name, here in (("0", slice(0, 24)), ("1", slice(24, 29))):
        for field in ("beta", "gamma", "rho"):
            x = look[field][:, here].double()
            assert told[name][field] == pytest.approx(x.mean(1).tolist(), rel=1e-5)
            spread = x.std(1, correction=0).tolist()
            assert told[name][f"{field}_spread"] == pytest.approx(spread, rel=1e-3, abs=1e-7)
        sizes = look["moment"][:, here].double().square().mean(1).sqrt().tolist()
        assert told[name]["moment_rms"] == pytest.approx(sizes, rel=1e-5)


def test_hyperadam2_tells_its_tensor_cell() -> None:
    rule = lively(HyperAdam2Rule(), 1.0)
    params = tensors((6, 4), (5,))
    opt = HyperAdam2(params, weights=rule, total_steps=30)
    set_grads(params, 0)
    start = opt.diagnostics()
    assert start["0"]["signal_to_noise"] == [1.0] * 4, "nothing has been seen yet"
    run(opt, params, range(4))
    grads = [p.grad for p in params]
    told = opt.diagnostics()
    for i, p in enumerate(params):
        memory, numbers = opt.state[p]["memory"], told[str(i)]
        control = rule.control(memory, Stage(5, 30, tuple(p.shape)))
        assert numbers["tensor_rho"] == pytest.approx(control.rho.tolist(), rel=1e-5)
        far = 0.01 * numbers["pace"] * float(control.size) * numbers["direction_rms"]
        assert numbers["update_rms"] == pytest.approx(far, rel=1e-4)
        start = scale_twin(memory[0].item(), p.shape) * width_factor(p.shape) * (100 / 30) ** 0.3
        assert math.exp(numbers["log_step"]) * start == pytest.approx(float(control.size), rel=1e-5)
        # the share of the signal in each moment, from the state itself
        m, v = opt.state[p]["m"].flatten(1), opt.state[p]["v"].flatten(1)
        last = v[-1].mean() / (1 - 0.999**4)
        hats = [1 - beta**4 for beta in rule.slow]
        squares = [x.square().mean() / hat**2 for x, hat in zip(m, hats, strict=True)]
        expected = [float(x / last) for x in (grads[i].square().mean(), *squares)]
        assert numbers["signal_to_noise"] == pytest.approx(expected, rel=1e-4)
        assert list(zip(numbers["beta"], numbers["gamma"], strict=True)) == rule.pairs


def test_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    opt = HyperAdam2(model.named_parameters())
    model(torch.ones(4, 3)).sum().backward()
    model[1].bias.grad = None
    assert list(opt.diagnostics()) == ["0.weight", "0.bias", "1.weight"]
    twice = [{"params": [("w", model[0].weight)]}, {"params": [("w", model[1].weight)]}]
    assert list(HyperAdam2(twice).diagnostics()) == ["w (0)", "w (1)"]


def test_flat() -> None:
    params = tensors((4, 3))
    opt = HyperAdam2(params)
    set_grads(params, 0)
    nested, flat = opt.diagnostics(), opt.diagnostics(flat=True)
    assert flat["0/effective_step"] == nested["0"]["effective_step"]
    assert flat["0/rho/7"] == nested["0"]["rho"][7]
    assert all(type(x) is float for x in flat.values())
    size = sum(len(x) if isinstance(x, list) else 1 for x in nested["0"].values())
    assert len(flat) == size


def test_no_gradient_is_an_error(case: Case) -> None:
    opt = case.make(tensors((2, 2)))
    with pytest.raises(RuntimeError, match=r"no parameter has a gradient; call it after backward"):
        opt.diagnostics()
    assert not opt.state


def test_zeros_and_empty_tensors() -> None:
    zeros, empty = torch.zeros(4, requires_grad=True), torch.zeros(0, requires_grad=True)
    opt = HyperAdam([zeros, empty])
    zeros.grad, empty.grad = torch.ones(4), torch.zeros(0)
    told = opt.diagnostics()
    assert list(told) == ["0"], "a tensor of no numbers has none to tell"
    assert told["0"]["effective_step"] == math.inf
    zeros.grad = torch.zeros(4)
    assert opt.diagnostics()["0"]["effective_step"] == 0.0


def test_maximize_turns_the_gradient() -> None:
    up, down = tensors((5, 5)), tensors((5, 5))
    opts = [HyperAdam(up, maximize=True, weight_decay=0.5), HyperAdam(down, weight_decay=0.5)]
    set_grads(up, 0)
    set_grads(down, 0)
    before = up[0].detach().clone()
    told = [opt.diagnostics()["0"]["update_rms"] for opt in opts]
    assert told[0] != pytest.approx(told[1], rel=1e-3)
    opts[0].step()
    assert told[0] == pytest.approx(rms(up[0].detach() - before), rel=1e-4)


def test_autocast_does_not_reach_it() -> None:
    params = tensors((8, 8))
    opt = HyperAdam(params)
    set_grads(params, 0)
    plain = opt.diagnostics()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert opt.diagnostics() == plain


def test_dtypes_that_a_kernel_does_not_read() -> None:
    params: list[Any] = tensors((6, 6), dtype=torch.bfloat16)
    params += tensors((3, 5))
    opt = HyperAdam2(params, state_dtype=torch.bfloat16)
    for t in range(3):
        set_grads(params, t)
        told = opt.diagnostics()
        before = [p.detach().clone() for p in params]
        opt.step()
    far = moved(params, before)[1]
    assert told["1"]["update_rms"] == pytest.approx(far, rel=1e-3)


@pytest.mark.parametrize("parts", [{"lstm": False}, {"lstm": False, "preprocess": False}])
def test_rules_without_some_of_their_parts(parts: dict[str, bool]) -> None:
    params = tensors((6, 4), ())
    opt = HyperAdam(params, weights=lively(HyperAdamRule(candidates=3, **parts)))
    run(opt, params, range(2))
    set_grads(params, 2)
    told = opt.diagnostics()
    before = [p.detach().clone() for p in params]
    opt.step()
    assert told["0"]["update_rms"] == pytest.approx(moved(params, before)[0], rel=1e-4)


@pytest.mark.parametrize("kind", [HyperAdam, HyperAdam2])
def test_a_gradient_that_is_not_finite_is_told_as_such(kind: type[Any]) -> None:
    params = tensors((6, 4))
    opt = kind(params)
    set_grads(params, 0)
    assert params[0].grad is not None
    params[0].grad[0, 0] = torch.nan
    told = opt.diagnostics()["0"]
    assert all(math.isnan(told[key]) for key in ("gradient_norm", "update_rms", "effective_step"))
    assert all(map(math.isnan, told["moment_rms"]))
    if kind is HyperAdam:
        assert all(map(math.isnan, told["rho_spread"]))
    assert not opt.state
