"""torch's schedulers as people write them for Adam. Those of ``tests/optim`` are not repeated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as ls
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from .problem import assert_same_bits, flat, make_batches, make_model, train

Make = Callable[..., Any]
STEPS = 12

#: Both cycle momentum by default. HyperAdam has none, so that part must be without effect.
CYCLES: dict[str, Callable[..., Any]] = {
    "one cycle": lambda o, **kw: ls.OneCycleLR(o, max_lr=0.02, total_steps=STEPS, **kw),
    "three phases": lambda o, **kw: ls.OneCycleLR(
        o,
        max_lr=[0.02],
        epochs=3,
        steps_per_epoch=4,
        three_phase=True,
        **kw,
    ),
    "cyclic": lambda o, **kw: ls.CyclicLR(o, base_lr=0.001, max_lr=0.02, step_size_up=3, **kw),
    "triangular": lambda o, **kw: ls.CyclicLR(
        o,
        base_lr=0.001,
        max_lr=0.02,
        step_size_up=3,
        mode="triangular2",
        **kw,
    ),
}


@pytest.mark.parametrize("name", CYCLES)
def test_cycles_are_called_as_with_adam(make: Make, name: str) -> None:
    model, twin, other = make_model(), make_model(), make_model()
    opt, by_hand = make(model.parameters()), make(twin.parameters())
    adam = torch.optim.Adam(other.parameters())
    scheduler, adams = CYCLES[name](opt), CYCLES[name](adam)
    rates = set()
    for batch in make_batches(STEPS - 1):
        rate = adam.param_groups[0]["lr"]
        assert opt.param_groups[0]["lr"] == rate
        assert scheduler.get_last_lr() == [rate]
        rates.add(rate)
        by_hand.param_groups[0]["lr"] = rate
        train(model, opt, [batch], scheduler)
        train(other, adam, [batch], adams)
        train(twin, by_hand, [batch])
    assert len(rates) > 4
    assert_same_bits(model, twin)


@pytest.mark.parametrize("name", CYCLES)
def test_cycled_momentum_has_no_effect(make: Make, name: str) -> None:
    model, twin = make_model(), make_model()
    opt, plain = make(model.parameters()), make(twin.parameters())
    train(model, opt, make_batches(STEPS - 1), CYCLES[name](opt))
    train(twin, plain, make_batches(STEPS - 1), CYCLES[name](plain, cycle_momentum=False))
    assert_same_bits(model, twin)


@pytest.mark.parametrize("name", CYCLES)
def test_a_cycle_resumes_in_the_middle(make: Make, name: str) -> None:
    batches = make_batches(STEPS - 1)
    model, resumed = make_model(), make_model()
    opt = make(model.parameters())
    scheduler = CYCLES[name](opt)
    train(model, opt, batches[:5], scheduler)
    saved = copy.deepcopy([x.state_dict() for x in (model, opt, scheduler)])
    train(model, opt, batches[5:], scheduler)

    opt2 = make(resumed.parameters())
    scheduler2 = CYCLES[name](opt2)
    for x, state in zip((resumed, opt2, scheduler2), saved, strict=True):
        x.load_state_dict(state)
    train(resumed, opt2, batches[5:], scheduler2)
    assert_same_bits(resumed, model)


def test_a_cycle_over_several_groups(make: Make) -> None:
    model, twin = make_model(), make_model()
    opt = make([{"params": model[0].parameters()}, {"params": model[2].parameters()}])
    scheduler = ls.OneCycleLR(opt, max_lr=[0.01, 0.03], total_steps=STEPS)
    by_hand = make([{"params": twin[0].parameters()}, {"params": twin[2].parameters()}])
    for batch in make_batches(STEPS - 1):
        for group, rate in zip(by_hand.param_groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = rate
        train(twin, by_hand, [batch])
        train(model, opt, [batch], scheduler)
    assert opt.param_groups[0]["lr"] * 2 < opt.param_groups[1]["lr"]
    assert_same_bits(model, twin)


def test_plateau_in_a_loop(make: Make) -> None:
    """The rate falls after the losses that the loop hands in, and the next steps take it."""
    model, twin = make_model(), make_model()
    opt, by_hand = make(model.parameters()), make(twin.parameters())
    start = opt.param_groups[0]["lr"]
    scheduler = ls.ReduceLROnPlateau(opt, factor=0.5, patience=1)
    falls = [1.0, 0.5, 0.6, 0.6, 0.6, 0.6]  # two bad ones are allowed for, the third halves
    expected = [start, start, start, start / 2, start / 2, start / 4]
    for batch, loss, rate in zip(make_batches(6), falls, expected, strict=True):
        scheduler.step(loss)
        assert opt.param_groups[0]["lr"] == rate
        by_hand.param_groups[0]["lr"] = rate
        train(model, opt, [batch])
        train(twin, by_hand, [batch])
    assert_same_bits(model, twin)


def test_warm_up_then_cosine(make: Make) -> None:
    """The usual chain, whose rates are those of a formula."""
    model, twin = make_model(), make_model()
    opt, by_hand = make(model.parameters(), lr=0.01), make(twin.parameters())
    warm = ls.LinearLR(opt, 0.25, total_iters=3)
    cosine = ls.CosineAnnealingLR(opt, T_max=7)
    scheduler = ls.SequentialLR(opt, [warm, cosine], milestones=[3])
    for t, batch in enumerate(make_batches(10)):
        turn = torch.tensor(torch.pi * (t - 3) / 7, dtype=torch.float64)
        rate = 0.01 * (1 + t) / 4 if t < 3 else 0.005 * (1 + turn.cos().item())
        assert opt.param_groups[0]["lr"] == pytest.approx(rate)
        by_hand.param_groups[0]["lr"] = opt.param_groups[0]["lr"]
        train(model, opt, [batch], scheduler)
        train(twin, by_hand, [batch])
    assert_same_bits(model, twin)


def test_stochastic_weight_averaging(make: Make) -> None:
    """A copy of the model that averages, and a schedule to the rate at which it does."""
    model, twin = make_model(), make_model()
    opt, by_hand = make(model.parameters(), lr=0.01), make(twin.parameters(), lr=0.01)
    averaged = AveragedModel(model)
    scheduler = SWALR(opt, swa_lr=0.002, anneal_epochs=4, anneal_strategy="linear")
    seen = []
    for t, batch in enumerate(make_batches(8)):
        by_hand.param_groups[0]["lr"] = 0.01 + (0.002 - 0.01) * min(1, t / 4)
        train(model, opt, [batch], scheduler)
        train(twin, by_hand, [batch])
        averaged.update_parameters(model)
        seen.append(flat(twin))
    torch.testing.assert_close(flat(model), flat(twin), rtol=0, atol=1e-6)
    torch.testing.assert_close(flat(averaged), torch.stack(seen).mean(0), rtol=0, atol=1e-6)
    assert (flat(averaged) - flat(model)).abs().max() > 1e-4
    # the average trains on, with an optimizer of its own
    start = flat(averaged)
    train(averaged, make(averaged.parameters()), make_batches(1))
    assert not torch.equal(flat(averaged), start)


def test_exponential_moving_average(make: Make) -> None:
    model, twin = make_model(), make_model()
    opt, by_hand = make(model.parameters()), make(twin.parameters())
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    mean = None
    for batch in make_batches(6):
        train(model, opt, [batch])
        averaged.update_parameters(model)
        train(twin, by_hand, [batch])
        mean = flat(twin) if mean is None else 0.8 * mean + 0.2 * flat(twin)
    assert_same_bits(model, twin)
    assert mean is not None
    torch.testing.assert_close(flat(averaged), mean, rtol=0, atol=1e-6)
    assert (mean - flat(model)).abs().max() > 1e-4
