"""A known horizon: the pace that it sets, what is none, and steps beyond it."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from hyperadam import HyperAdam, HyperAdamRule
from tests.rules.numpy_twins import pace_twin

from .cases import Case, Snapshot, flat, refused, run, set_grads, tensors, through_file
from .sizes import starts


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
