"""A horizon that changes: training that is shorter or longer than announced, stopped, or resumed with another plan."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from hyperadam import LearnedOptimizer

from .cases import SHAPES, Case, Snapshot, flat, run, set_grads, tensors
from .reference import Reference


def announce(opt: LearnedOptimizer, total: Any) -> None:
    for group in opt.param_groups:
        group["total_steps"] = total


def pair(case: Case, **options: Any) -> tuple[list[Tensor], LearnedOptimizer]:
    params = tensors(*SHAPES)
    return params, case.make(params, **options)


def resumed(
    case: Case, params: list[Tensor], opt: LearnedOptimizer
) -> tuple[list[Tensor], LearnedOptimizer]:
    """New objects that have taken over the state of others."""
    twin, opt2 = pair(case)
    with torch.no_grad():
        for p, q in zip(params, twin, strict=True):
            q.copy_(p)
    opt2.load_state_dict(copy.deepcopy(opt.state_dict()))
    return twin, opt2


@pytest.mark.parametrize("later", [4, 8, 40, None])
def test_another_end_holds_from_the_next_step_on(case: Case, later: int | None) -> None:
    """For the pace, and for a rule that looks at it."""
    params, opt = pair(case, total_steps=10)
    expected = Reference(case.rule, params)
    for t in range(8):
        total = 10 if t < 4 else later
        announce(opt, total)
        set_grads(params, t)
        expected.step([p.grad for p in params if p.grad is not None], total)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # beyond the fourth step of four
            opt.step()
    torch.testing.assert_close(flat(params), expected.values, rtol=1e-5, atol=1e-5)
    never, opt_never = pair(case, total_steps=10)
    run(opt_never, never, range(8))
    assert not torch.equal(flat(never), flat(params))


def test_a_resumed_training_may_be_given_a_longer_plan(case: Case) -> None:
    """A checkpoint brings its own total; changed after the load, it is as if it had been changed without one."""
    params, opt = pair(case, total_steps=4)
    run(opt, params, range(3))
    twin, opt2 = resumed(case, params, opt)
    assert opt2.param_groups[0]["total_steps"] == 4
    for x in (opt, opt2):
        announce(x, 9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(opt, params, range(3, 9))
        run(opt2, twin, range(3, 9))
    assert torch.equal(flat(params), flat(twin))
    with pytest.warns(UserWarning, match="step 10 of .* beyond total_steps=9"):
        run(opt, params, range(9, 10))


def test_a_training_that_stops_early_leaves_a_good_state(case: Case) -> None:
    """Nothing waits for the end: what was taken so far goes on elsewhere, without a known end, too."""
    params, opt = pair(case, total_steps=1000)
    run(opt, params, range(3))
    twin, opt2 = resumed(case, params, opt)
    for x in (opt, opt2):
        announce(x, None)
    run(opt, params, range(3, 6))
    run(opt2, twin, range(3, 6))
    assert torch.equal(flat(params), flat(twin))


def test_skipped_steps_do_not_count(case: Case) -> None:
    params, opt = pair(case, total_steps=5, nonfinite="skip")
    twin, by_hand = pair(case, total_steps=5)
    for t in range(3):
        run(opt, params, range(t, t + 1))
        run(by_hand, twin, range(t, t + 1))
        set_grads(params, 7)
        params[0].grad = torch.full_like(params[0], math.nan)
        opt.step()
    assert opt.skipped_steps == 3
    assert torch.equal(flat(params), flat(twin))
    assert {int(state["step"]) for state in opt.state.values()} == {3}


def test_each_parameter_counts_its_own_steps(case: Case) -> None:
    """A group that joins late has its whole way before it."""
    (first, late), (alone,) = tensors((7, 9), (5,)), tensors((5,), seed=0)
    with torch.no_grad():
        alone.copy_(late)
    opt, opt_alone = case.make([first], total_steps=6), case.make([alone], total_steps=4)
    run(opt, [first], range(2))
    opt.add_param_group({"params": [late], "total_steps": 4})
    for t in range(4):
        set_grads([first, late], t)
        assert late.grad is not None
        alone.grad = late.grad.clone()
        if case.rule.rounds:  # so that the norms, too, are those of the late one
            first.grad = None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            opt.step()
            opt_alone.step()
    assert torch.equal(late, alone)


@pytest.mark.parametrize("bad", [0, -3, 2.5, True, "100", torch.tensor(10), math.inf], ids=repr)
@pytest.mark.parametrize("steps", [0, 2])
def test_a_total_that_is_none_is_refused_in_the_step(case: Case, bad: Any, steps: int) -> None:
    params, opt = pair(case, total_steps=5)
    run(opt, params, range(steps))
    opt.param_groups[0]["total_steps"] = bad
    before = Snapshot(opt)
    set_grads(params, 3)
    with pytest.raises(ValueError, match="total_steps must be None or a whole number of steps ≥ 1"):
        opt.step()
    before.assert_same()
    announce(opt, 6)
    opt.step()
