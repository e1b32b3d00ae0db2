"""Relative steps: against a twin in NumPy, to the bit where nothing should change, and the sizes that are kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import hyperadam
from hyperadam import HyperAdam
from tests.rules.numpy_twins import DMTwin, HyperAdamTwin, RNNpropTwin, pace_twin, scale_twin

from .cases import Case, flat, run, set_grads, tensors
from .sizes import SHAPES, starts

TWINS = {"hyperadam": HyperAdamTwin, "rnnprop": RNNpropTwin, "dm": DMTwin}


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


@pytest.mark.parametrize("groups", [1, 2])
def test_steps_are_shorter_where_more_matrices_move(groups: int) -> None:
    """Nine matrices of which one has no gradient, and vectors, which do not count."""
    shapes = [(3, 4)] * 8 + [(5,), (2, 2)]
    ends = []
    for depth in (False, True):
        rule = hyperadam.load_rule("hyperadam", relative=True)
        rule.depth = depth
        params = tensors(*shapes)
        split = [params] if groups == 1 else [params[:3], params[3:]]
        opt = HyperAdam([{"params": part} for part in split], weights=rule)
        set_grads(params, 0)
        params[-1].grad = None
        pace = opt.diagnostics()["0"]["pace"]
        before = [p.detach().clone() for p in params]
        opt.step()
        ends.append([p.detach() - w for p, w in zip(params, before, strict=True)])
        assert pace == (0.5 if depth else 1) / 20  # the first step of a warm-up
    rounding = torch.finfo(torch.float32).eps * max(w.abs().max().item() for w in before)
    for plain, deep in zip(*ends, strict=True):  # weights are rounded when they move
        torch.testing.assert_close(deep, 0.5 * plain, rtol=1e-5, atol=rounding)
    assert all(x.any() for x in ends[0][:-1])


def test_shipped_weights_take_relative_steps_when_asked() -> None:
    rule = hyperadam.load_rule("hyperadam", relative=True)
    params = starts()
    opt = HyperAdam(params, weights=rule, total_steps=20)
    assert "relative=True" in repr(opt)
    assert "total_steps: 20" in repr(opt)
    run(opt, params, range(3))
    assert all("memory" in state for state in opt.state.values())


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
