"""The step: the whole vector at once, however it is cut into tensors, groups, dtypes and chunks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import hyperadam
from hyperadam import HyperAdam, HyperAdamRule, UpdateRule

from .cases import SHAPES, Case, flat, lively, run, set_grads, tensors

CONFIGS = [
    {"normalize_state": True},
    {"lstm": False},
    {"preprocess": False},
    {"candidates": 3, "decay_bound": 0.97},
]


def reference(
    rule: UpdateRule[Any], w: Tensor, grads: list[Tensor], lr: float = 0.01
) -> tuple[Tensor, Any]:
    """The rule on one flat vector."""
    state = rule.init_state(w)
    for grad in grads:
        update, state = rule(grad, state)
        w = w - lr * update
    return w, state


def gradients(params: list[Tensor], steps: range) -> list[Tensor]:
    out = []
    for t in steps:
        set_grads(params, t)
        out.append(flat([p.grad for p in params if p.grad is not None]))
    return out


def check_against_rule(case: Case, rule: UpdateRule[Any], **options: Any) -> None:
    params = tensors(*SHAPES)
    expected, state = reference(rule, flat(params), gradients(params, range(5)))
    opt = case.make([{"params": params[:2]}, {"params": params[2:]}], weights=rule, **options)
    run(opt, params, range(5))
    torch.testing.assert_close(flat(params), expected, rtol=1e-5, atol=1e-5)
    for name, value in state._asdict().items():
        ours = torch.cat(
            [opt.state[p][name].reshape(value.shape[0], p.numel()) for p in params], dim=1
        )
        torch.testing.assert_close(
            ours, value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_tensors_and_groups_are_one_vector(case: Case) -> None:
    check_against_rule(case, case.rule)


@pytest.mark.parametrize("backend", hyperadam.kernels.available())
@pytest.mark.parametrize(
    "config",
    [
        {"normalize_state": True},
        {"lstm": False},
        {"preprocess": False},
        {"candidates": 3, "decay_bound": 0.97},
    ],
    ids=str,
)
def test_every_option_of_the_rule(backend: str, config: dict[str, Any]) -> None:
    rule = lively(HyperAdamRule(**config))
    check_against_rule(Case(HyperAdam, rule, backend), rule)


def test_one_flat_tensor_gives_the_same(case: Case) -> None:
    params, whole = tensors(*SHAPES), [flat(tensors(*SHAPES)).requires_grad_()]
    opt, opt_whole = case.make(params), case.make(whole)
    for t in range(5):
        set_grads(params, t)
        whole[0].grad = flat([p.grad for p in params])
        opt.step()
        opt_whole.step()
    torch.testing.assert_close(flat(params), whole[0].detach(), rtol=1e-5, atol=1e-5)


def test_norms_do_span_tensors(case: Case) -> None:
    """The tests above would mean little if each tensor alone gave the same numbers."""
    if not case.rule.rounds:
        pytest.skip("this rule couples no coordinates")
    together, alone = tensors(*SHAPES), tensors(*SHAPES)
    run(case.make(together), together, range(5))
    opts = [case.make([p]) for p in alone]
    for t in range(5):
        set_grads(alone, t)
        for opt in opts:
            opt.step()
    assert (flat(together) - flat(alone)).abs().max() > 1e-3


def test_lr_and_maximize_per_group(case: Case) -> None:
    a, b, c = tensors((20,), (20,), (20,))
    with torch.no_grad():
        b.copy_(a)
        c.copy_(a)
    before = a.detach().clone()
    opt = case.make(
        [{"params": [a]}, {"params": [b], "lr": 0.03}, {"params": [c], "maximize": True}]
    )
    a.grad = torch.randn(20)
    b.grad, c.grad = a.grad.clone(), -a.grad
    opt.step()
    torch.testing.assert_close(b - before, 3 * (a - before), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(c, a, rtol=0, atol=0)
    assert not torch.equal(a, before)


def test_weight_decay_is_decoupled(case: Case) -> None:
    plain, decayed = tensors(*SHAPES), tensors(*SHAPES)
    before = flat(plain)
    run(case.make(plain), plain, range(1))
    opt = case.make(
        [{"params": decayed[:3], "weight_decay": 0.1}, {"params": decayed[3:]}], weight_decay=0.5
    )
    run(opt, decayed, range(1))
    first = sum(p.numel() for p in decayed[:3])
    decay = torch.cat([torch.full((first,), 0.1), torch.full((len(before) - first,), 0.5)])
    torch.testing.assert_close(
        flat(decayed), flat(plain) - 0.01 * decay * before, rtol=1e-6, atol=1e-6
    )


def test_weight_decay_without_learning_rate_changes_nothing(case: Case) -> None:
    params = tensors(*SHAPES)
    before = flat(params)
    run(case.make(params, lr=0.0, weight_decay=0.1), params, range(2))
    assert torch.equal(flat(params), before)


def test_closure(case: Case) -> None:
    (p,) = tensors((5,))
    calls = []

    def closure() -> Tensor:
        assert torch.is_grad_enabled()
        opt.zero_grad()
        loss = p.square().sum()
        loss.backward()
        calls.append(loss)
        return loss

    opt = case.make([p])
    before = p.detach().clone()
    assert opt.step(closure) is calls[0]
    assert len(calls) == 1
    assert not torch.equal(p, before)
    assert opt.step() is None


def test_a_parameter_without_gradient_takes_no_part(case: Case) -> None:
    params, rest = tensors(*SHAPES), tensors(*SHAPES)
    opt, opt_rest = case.make(params), case.make(rest[:3])
    run(opt, params, range(2))
    opt_rest.load_state_dict(_without(opt.state_dict(), 3))
    with torch.no_grad():
        for p, q in zip(rest, params, strict=True):
            p.copy_(q)
    idle = [p.detach().clone() for p in params[3:]]
    idle_state = copy.deepcopy([opt.state[p] for p in params[3:]])

    for t in range(2, 4):
        set_grads(params, t)
        set_grads(rest, t)
        for p in params[3:]:
            p.grad = None
        opt.step()
        opt_rest.step()
    assert torch.equal(flat(params[:3]), flat(rest[:3]))
    assert all(torch.equal(p, q) for p, q in zip(params[3:], idle, strict=True))
    for p, old in zip(params[3:], idle_state, strict=True):
        assert all(torch.equal(opt.state[p][k], v) for k, v in old.items())


def _without(state_dict: dict[str, Any], keep: int) -> dict[str, Any]:
    (group,) = state_dict["param_groups"]
    state = {k: v for k, v in state_dict["state"].items() if k < keep}
    return {"state": state, "param_groups": [group | {"params": group["params"][:keep]}]}


def test_frozen_parameters_and_no_gradients_at_all(case: Case) -> None:
    frozen, p = tensors((4,), (3,))
    frozen.requires_grad_(False)
    opt = case.make([frozen, p])
    before = flat([frozen, p])
    opt.step()
    assert torch.equal(flat([frozen, p]), before)
    assert not opt.state
    p.grad = torch.ones(3)
    opt.step()
    assert torch.equal(frozen, before[:4])
    assert not torch.equal(p, before[4:])
    assert list(opt.state) == [p]


def test_empty_parameters(case: Case) -> None:
    params, twin = tensors((0,), (5,), (3, 0)), tensors((5,))
    with torch.no_grad():
        twin[0].copy_(params[1])
    opt, opt_twin = case.make(params), case.make(twin)
    for p in params:
        p.grad = torch.ones_like(p)
    twin[0].grad = torch.ones(5)
    opt.step()
    opt_twin.step()
    assert torch.equal(params[1], twin[0])
    opt.load_state_dict(opt.state_dict())
    only = tensors((0,))
    only[0].grad = torch.ones(0)
    case.make(only).step()


def test_zero_gradients_stay_finite(case: Case) -> None:
    params = tensors(*SHAPES)
    opt = case.make(params)
    for p in params:
        p.grad = torch.zeros_like(p)
    for _ in range(3):
        opt.step()
    run(opt, params, range(1))
    opt.zero_grad(set_to_none=False)
    opt.step()
    assert flat(params).isfinite().all()


def test_late_group_joins_the_vector(case: Case) -> None:
    params = tensors(*SHAPES)
    opt = case.make(params[:3])
    w, state = reference(case.rule, flat(params[:3]), gradients(params[:3], range(2)))
    run(opt, params[:3], range(2))

    opt.add_param_group({"params": params[3:], "lr": 0.02})
    fresh = case.rule.init_state(flat(params[3:]))
    state = type(state)(*(torch.cat([old, new], -1) for old, new in zip(state, fresh, strict=True)))
    w, lr = (
        torch.cat([w, flat(params[3:])]),
        torch.cat([torch.full((len(w),), 0.01), torch.full((fresh[0].shape[-1],), 0.02)]),
    )
    for grad in gradients(params, range(2, 4)):
        update, state = case.rule(grad, state)
        w = w - lr * update
    run(opt, params, range(2, 4))
    torch.testing.assert_close(flat(params), w, rtol=1e-5, atol=1e-5)


def test_several_dtypes_are_one_vector(case: Case) -> None:
    dtypes = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
    params = [
        p.detach().to(d).requires_grad_()
        for p, d in zip(tensors((30,), (4, 5), (17,), (9,)), dtypes, strict=True)
    ]
    start = torch.cat([p.detach().float().reshape(-1) for p in params])
    grads = []
    for t in range(4):
        set_grads(params, t)
        grads.append(torch.cat([p.grad.float().reshape(-1) for p in params if p.grad is not None]))
    expected, _ = reference(case.rule, start, grads)
    opt = case.make(params)
    run(opt, params, range(4))
    assert [p.dtype for p in params] == dtypes
    assert {v.dtype for fields in opt.state.values() for k, v in fields.items() if k != "step"} == {
        torch.float32
    }
    for p, w in zip(params, expected.split([30, 20, 17, 9]), strict=True):
        # four roundings of numbers up to about three
        tolerance = 1e-5 + 4 * 2 * torch.finfo(p.dtype).eps
        torch.testing.assert_close(p.detach().float().reshape(-1), w, rtol=0, atol=tolerance)


def test_float64_state_computes_in_float64(case: Case) -> None:
    params = tensors(*SHAPES, dtype=torch.float64)
    rule = copy.deepcopy(case.rule).double()
    expected, _ = reference(rule, flat(params), gradients(params, range(5)))
    opt = case.make(params, state_dtype=torch.float64, backend="torch")
    run(opt, params, range(5))
    torch.testing.assert_close(flat(params), expected, rtol=1e-12, atol=1e-12)
    assert {v.dtype for k, v in opt.state[params[0]].items() if k != "step"} == {torch.float64}


@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (2, 7)])
def test_other_memory_formats(case: Case, shape: tuple[int, ...]) -> None:
    (plain,) = tensors(shape)
    other = plain.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    assert not other.is_contiguous()
    opt, opt_other = case.make([plain]), case.make([other])
    for t in range(3):
        set_grads([plain], t)
        assert plain.grad is not None
        other.grad = plain.grad.transpose(0, 1).contiguous().transpose(0, 1)
        opt.step()
        opt_other.step()
    assert torch.equal(plain, other)
    assert not other.is_contiguous()


def test_expanded_gradient(case: Case) -> None:
    a, b = tensors((6, 4)), tensors((6, 4))
    a[0].grad, b[0].grad = torch.tensor(2.0).expand(6, 4), torch.full((6, 4), 2.0)
    case.make(a).step()
    case.make(b).step()
    assert torch.equal(a[0], b[0])


def test_gradients_are_left_alone(case: Case) -> None:
    params = tensors(*SHAPES)
    set_grads(params, 0)
    before = [p.grad.clone() for p in params if p.grad is not None]
    case.make(params, weight_decay=0.1, maximize=True).step()
    assert all(
        p.grad is not None and torch.equal(p.grad, g) for p, g in zip(params, before, strict=True)
    )


def test_learning_rate_tensor(case: Case) -> None:
    a, b = tensors(*SHAPES), tensors(*SHAPES)
    run(case.make(a, lr=0.02), a, range(2))
    run(case.make(b, lr=torch.tensor(0.02)), b, range(2))
    torch.testing.assert_close(flat(a), flat(b), rtol=0, atol=1e-8)


def test_the_rule_is_copied(case: Case) -> None:
    a, b = tensors(*SHAPES), tensors(*SHAPES)
    rule = copy.deepcopy(case.rule).requires_grad_()
    opt = case.make(b, weights=rule)
    assert all(weight.requires_grad for weight in rule.parameters())
    assert not any(weight.requires_grad for weight in opt.rule.parameters())
    with torch.no_grad():
        for weight in rule.parameters():
            weight.zero_()
    run(case.make(a), a, range(2))
    run(opt, b, range(2))
    assert torch.equal(flat(a), flat(b))


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
def test_the_users_random_numbers_are_left_alone(case: Case, state_dtype: torch.dtype) -> None:
    params = tensors(*SHAPES)
    before = torch.get_rng_state()
    run(case.make(params, state_dtype=state_dtype), params, range(2))
    assert torch.equal(torch.get_rng_state(), before)


def test_step_hooks_run(case: Case) -> None:
    (p,) = tensors((3,))
    p.grad = torch.ones(3)
    opt, seen = case.make([p]), []
    opt.register_step_pre_hook(lambda *_: seen.append("pre"))
    opt.register_step_post_hook(lambda *_: seen.append("post"))
    opt.step()
    assert seen == ["pre", "post"]


def test_a_stale_graph_is_found_out(case: Case) -> None:
    """As with torch's own optimizers, a backward through parameters that a step has moved since is an error."""
    (p,) = tensors((5, 5))
    p.grad = torch.ones(5, 5)
    opt, product = case.make([p]), (p @ p).sum()
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_repr_is_short_and_says_what_matters(case: Case) -> None:
    text = repr(case.make(tensors(*SHAPES), weight_decay=0.25))
    for word in (
        case.optimizer.__name__,
        case.rule.kind,
        case.backend,
        "torch.float32",
        "lr: 0.01",
        "weight_decay: 0.25",
    ):
        assert word in text
    assert len(text) < 500
