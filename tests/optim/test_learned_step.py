"""The step: the rule's own numbers, however parameters are cut into groups, dtypes and chunks.

Most rules take norms over the whole vector, and how it is cut into tensors does not matter. One that takes
them tensor by tensor gives a tensor the same numbers in any company.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import hyperadam
from hyperadam import HyperAdam, HyperAdam2, HyperAdam2Rule, HyperAdamRule, UpdateRule

from .cases import SHAPES, Case, fields, flat, lively, run, set_grads, tensors
from .reference import Reference


def gradients(params: list[Tensor], steps: range) -> list[list[Tensor]]:
    """What :func:`run` gives to each parameter at these steps."""
    out = []
    for t in steps:
        set_grads(params, t)
        out.append([p.grad.clone() for p in params if p.grad is not None])
    return out


def followed(
    rule: UpdateRule[Any], params: list[Tensor], steps: range, lr: float = 0.01
) -> Reference:
    """The rule by itself along the gradients of :func:`run`."""
    reference = Reference(rule, params, lr)
    for grads in gradients(params, steps):
        reference.step(grads)
    return reference


def check_against_rule(case: Case, rule: UpdateRule[Any], **options: Any) -> None:
    params = tensors(*SHAPES)
    expected = followed(rule, params, range(5))
    opt = case.make([{"params": params[:2]}, {"params": params[2:]}], weights=rule, **options)
    run(opt, params, range(5))
    torch.testing.assert_close(flat(params), expected.values, rtol=1e-5, atol=1e-5)
    for p, there in zip(params, expected.tensors, strict=True):
        for name, value in there.state._asdict().items():
            torch.testing.assert_close(
                opt.state[p][name].reshape(len(value), p.numel()),
                value,
                rtol=1e-4,
                atol=1e-5,
                msg=lambda text, name=name: f"{name}: {text}",
            )
        if there.memory is not None:
            torch.testing.assert_close(opt.state[p]["memory"], there.memory, rtol=1e-4, atol=1e-30)


def test_tensors_and_groups_give_the_rules_numbers(case: Case) -> None:
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


@pytest.mark.parametrize(
    "config",
    [
        {"betas": (0.3, 0.9)},
        {"gammas": (0.97,)},
        {"hidden": 3, "units": 2},
        {"betas": (0.0,), "gammas": (0.5, 0.9, 0.99)},
    ],
    ids=str,
)
def test_every_option_of_hyperadam2s_rule(config: dict[str, Any]) -> None:
    rule = lively(HyperAdam2Rule(**config))
    check_against_rule(Case(HyperAdam2, rule, "auto"), rule)


def zero(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Parameters of zeros: steps relative to their size are as long as those that are not."""
    return [(0 * p.detach()).requires_grad_() for p in tensors(*shapes)]


def test_one_flat_tensor_gives_the_same(case: Case) -> None:
    params, whole = zero(*SHAPES), [flat(zero(*SHAPES)).requires_grad_()]
    opt, opt_whole = case.make(params), case.make(whole)
    for t in range(5):
        set_grads(params, t)
        whole[0].grad = flat([p.grad for p in params])
        opt.step()
        opt_whole.step()
    if case.rule.per_tensor:
        assert (flat(params) - whole[0].detach()).abs().max() > 1e-3, "it is another tensor"
    else:
        torch.testing.assert_close(flat(params), whole[0].detach(), rtol=1e-5, atol=1e-5)


def test_what_norms_span(case: Case) -> None:
    """Over the whole vector they make every tensor's numbers depend on the others'. Over one tensor, or
    without norms, each moves as if it were alone: to the bit, and with the same state."""
    together, alone = tensors(*SHAPES), tensors(*SHAPES)
    opt = case.make(together)
    run(opt, together, range(5))
    opts = [case.make([p]) for p in alone]
    for t in range(5):
        set_grads(alone, t)
        for one in opts:
            one.step()
    if case.rule.rounds:
        assert (flat(together) - flat(alone)).abs().max() > 1e-3
        return
    assert torch.equal(flat(together), flat(alone))
    for p, q, one in zip(together, alone, opts, strict=True):
        assert all(torch.equal(x, one.state[q][name]) for name, x in opt.state[p].items())


def test_company_that_comes_and_goes(case: Case) -> None:
    """Only norms over all make a tensor feel that others take no part in a step, or join in late."""
    (mine, *others), (twin,) = tensors(*SHAPES), tensors(SHAPES[0])
    opt, alone = case.make([mine, *others[:2]]), case.make([twin])
    for t in range(6):
        if t == 3:
            opt.add_param_group({"params": others[2:], "lr": 0.5, "weight_decay": 0.3})
        set_grads([mine, *others], t)
        set_grads([twin], t)
        others[0].grad = others[0].grad if t % 2 else None
        opt.step()
        alone.step()
    same = [torch.equal(x, alone.state[twin][name]) for name, x in fields(opt.state[mine]).items()]
    assert torch.equal(mine, twin) == all(same) == (not case.rule.rounds)


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


def test_a_late_group_joins_in(case: Case) -> None:
    params = tensors(*SHAPES)
    opt = case.make(params[:3])
    expected = followed(case.rule, params[:3], range(2))
    run(opt, params[:3], range(2))

    opt.add_param_group({"params": params[3:], "lr": 0.02})
    expected.add(params[3:], lr=0.02)
    for grads in gradients(params, range(2, 4)):
        expected.step(grads)
    run(opt, params, range(2, 4))
    torch.testing.assert_close(flat(params), expected.values, rtol=1e-5, atol=1e-5)


def test_several_dtypes(case: Case) -> None:
    dtypes = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
    params = [
        p.detach().to(d).requires_grad_()
        for p, d in zip(tensors((30,), (4, 5), (17,), (9,)), dtypes, strict=True)
    ]
    expected = followed(case.rule, params, range(4))
    opt = case.make(params)
    run(opt, params, range(4))
    assert [p.dtype for p in params] == dtypes
    for p, there in zip(params, expected.tensors, strict=True):
        assert {x.dtype for x in fields(opt.state[p]).values()} == {torch.float32}
        # four roundings of numbers up to about three
        tolerance = 1e-5 + 4 * 2 * torch.finfo(p.dtype).eps
        torch.testing.assert_close(p.detach().float().reshape(-1), there.w, rtol=0, atol=tolerance)


def test_float64_state_computes_in_float64(case: Case) -> None:
    params = tensors(*SHAPES, dtype=torch.float64)
    expected = followed(copy.deepcopy(case.rule).double(), params, range(5))
    opt = case.make(params, state_dtype=torch.float64, backend="torch")
    run(opt, params, range(5))
    torch.testing.assert_close(flat(params), expected.values, rtol=1e-12, atol=1e-12)
    assert {x.dtype for x in fields(opt.state[params[0]]).values()} == {torch.float64}


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
    rate = torch.tensor(0.02)  # in float32, which is not quite 0.02
    run(case.make(a, lr=rate.item()), a, range(2))
    run(case.make(b, lr=rate), b, range(2))
    assert torch.equal(flat(a), flat(b))


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
