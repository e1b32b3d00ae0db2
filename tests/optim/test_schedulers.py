"""torch's learning-rate schedulers drive the optimizers like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as ls
from torch.optim.swa_utils import SWALR

from hyperadam import HyperAdam, HyperAdamRule

from .cases import SHAPES, Case, flat, set_grads, tensors

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda o: ls.LambdaLR(o, lambda t: 1 / (1 + t)),
    "step": lambda o: ls.StepLR(o, 2),
    "multistep": lambda o: ls.MultiStepLR(o, [1, 3]),
    "exponential": lambda o: ls.ExponentialLR(o, 0.5),
    "cosine": lambda o: ls.CosineAnnealingLR(o, 5),
    "restarts": lambda o: ls.CosineAnnealingWarmRestarts(o, 2),
    "one cycle": lambda o: ls.OneCycleLR(
        o, max_lr=0.02, total_steps=6
    ),  # as with Adam: there is no momentum to cycle
    "cyclic": lambda o: ls.CyclicLR(o, 0.001, 0.02, step_size_up=2),
    "sequential": lambda o: ls.SequentialLR(o, [ls.ConstantLR(o, 0.1), ls.LinearLR(o)], [2]),
    "swa": lambda o: SWALR(o, swa_lr=0.001, anneal_epochs=3),
}


@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["float", "tensor"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_is_a_learning_rate_per_step(case: Case, name: str, kind: Any) -> None:
    params, twin = tensors(*SHAPES), tensors(*SHAPES)
    opt, by_hand = case.make(params, lr=kind(0.01)), case.make(twin)
    scheduler = SCHEDULERS[name](opt)
    rates = set()
    for t in range(5):
        by_hand.param_groups[0]["lr"] = float(opt.param_groups[0]["lr"])
        rates.add(by_hand.param_groups[0]["lr"])
        for step, values in ((opt, params), (by_hand, twin)):
            set_grads(values, t)
            step.step()
        scheduler.step()
    assert len(rates) > 1
    assert torch.equal(flat(params), flat(twin))


def test_plateau(case: Case) -> None:
    opt = case.make(tensors((3,)))
    scheduler = ls.ReduceLROnPlateau(opt, patience=0)
    for loss in (1.0, 2.0):
        scheduler.step(loss)
    assert opt.param_groups[0]["lr"] == pytest.approx(0.001)


def test_scheduler_resumes_from_its_own_and_the_optimizers_dict(case: Case) -> None:
    opt, opt2 = case.make(tensors((3,))), case.make(tensors((3,)))
    scheduler, scheduler2 = ls.ExponentialLR(opt, 0.5), ls.ExponentialLR(opt2, 0.5)
    opt.step()
    scheduler.step()
    opt2.load_state_dict(opt.state_dict())
    scheduler2.load_state_dict(scheduler.state_dict())
    assert opt2.param_groups[0]["lr"] == 0.005
    opt2.step()
    scheduler2.step()
    assert opt2.param_groups[0]["lr"] == 0.0025


def test_warm_up_is_a_schedule_of_its_own() -> None:
    """As ``LinearLR`` would do it, through a checkpoint in the middle, and under a scheduler of the user's."""
    torch.manual_seed(0)
    rule = HyperAdamRule(candidates=3)
    warm = HyperAdamRule(candidates=3, warmup=4)
    warm.load_state_dict(rule.state_dict())
    params, twin = tensors(*SHAPES), tensors(*SHAPES)
    opt, by_hand = HyperAdam(params, weights=warm), HyperAdam(twin, weights=rule)
    user = ls.ExponentialLR(opt, 0.9)
    own = ls.ChainedScheduler(
        [ls.LinearLR(by_hand, 1 / 4, total_iters=3), ls.ExponentialLR(by_hand, 0.9)]
    )
    for t in range(6):
        if t == 2:
            saved, rate = opt.state_dict(), opt.param_groups[0]["lr"]
            opt = HyperAdam(params, weights=warm)
            opt.load_state_dict(saved)
            assert opt.param_groups[0]["lr"] == rate
            user.optimizer = opt
        for step, values in ((opt, params), (by_hand, twin)):
            set_grads(values, t)
            step.step()
        user.step()
        own.step()
    torch.testing.assert_close(flat(params), flat(twin), rtol=1e-6, atol=1e-7)
    assert by_hand.param_groups[0]["lr"] == pytest.approx(0.005 * 0.9**6)
