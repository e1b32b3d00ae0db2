"""Loops as people write them with torch alone: closures, accumulation, clipping, copies."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from .problem import (
    assert_close,
    assert_same_bits,
    assert_same_state,
    backward,
    flat,
    make_batches,
    make_data,
    make_model,
    state_of,
    train,
)

Make = Callable[..., Any]


def test_closure(make: Make) -> None:
    model, twin = make_model(), make_model()
    opt, by_hand = make(model.parameters()), make(twin.parameters())
    losses = []
    for x, y in make_batches(6):

        def closure(x: Any = x, y: Any = y) -> torch.Tensor:
            opt.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        with torch.no_grad():  # a closure computes gradients wherever it is called
            losses.append(opt.step(closure).item())
    assert losses == train(twin, by_hand, make_batches(6))
    assert_same_bits(model, twin)


def test_gradient_accumulation(make: Make) -> None:
    """Two batches a step: as one step on the mean of their gradients, and on the joint batch."""
    model, means, joint = make_model(), make_model(), make_model()
    opt, by_hand, whole = (make(x.parameters()) for x in (model, means, joint))
    batches = make_batches(12)
    for i, (x, y) in enumerate(batches):
        (cross_entropy(model(x), y) / 2).backward()
        if i % 2:
            opt.step()
            opt.zero_grad()
    for pair in zip(batches[::2], batches[1::2], strict=True):
        params = list(means.parameters())
        grads = [torch.autograd.grad(cross_entropy(means(x), y), params) for x, y in pair]
        for p, a, b in zip(params, *grads, strict=True):
            p.grad = a / 2 + b / 2
        by_hand.step()
        train(joint, whole, [tuple(torch.cat(z) for z in zip(*pair, strict=True))])
    assert_same_bits(model, means)
    assert_close(model, joint, atol=1e-5)
    once = make_model()
    train(once, make(once.parameters()), batches[1::2])
    assert (flat(once) - flat(model)).abs().max() > 1e-3


def test_clip_grad_norm(make: Make) -> None:
    """The step sees the clipped gradient, and leaves it as it is."""
    model, twin = make_model(), make_model()
    opt, by_hand = make(model.parameters()), make(twin.parameters())
    for t, batch in enumerate(make_batches(6)):
        limit = 0.05 * (1 + t % 3)
        train(model, opt, [batch], clip=limit)
        by_hand.zero_grad()
        backward(twin, batch)
        grads = [p.grad for p in twin.parameters() if p.grad is not None]
        norm = torch.cat([g.reshape(-1) for g in grads]).norm()
        assert norm > limit
        for grad in grads:
            grad *= limit / (norm + 1e-6)
        by_hand.step()
        clipped = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
        assert clipped.norm().item() == pytest.approx(limit, rel=1e-4)
    assert_close(model, twin)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_gradient_scaler_skips_a_step(make: Make, clip: float | None) -> None:
    """One batch overflows: parameters and state do not know of it, the scale halves."""
    model, twin = make_model(), make_model()
    opt, by_hand = make(model.parameters()), make(twin.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=100)
    good = make_batches(8)
    spoilt = (good[3][0] * torch.inf, good[3][1])
    scales = []
    for x, y in [*good[:3], spoilt, *good[3:]]:
        opt.zero_grad()
        scaler.scale(cross_entropy(model(x), y)).backward()
        if clip is not None:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(opt)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [2.0**10] * 3 + [2.0**9] * 6
    train(twin, by_hand, good, clip=clip)
    assert_same_bits(model, twin)  # scales are powers of two, so that scaling rounds nothing
    assert_same_state(opt, by_hand)
    assert opt.skipped_steps == 0, "the scaler skipped it, not the optimizer"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_step_under_autocast(make: Make, dtype: torch.dtype) -> None:
    """Autocast is for the model: the optimizer's own products keep their precision."""
    model, twin = make_model(), make_model()
    opt, by_hand = make(model.parameters()), make(twin.parameters())
    for batch in make_batches(5):
        for x in (model, twin):
            x.zero_grad()
            backward(x, batch)
        with torch.autocast("cpu", dtype=dtype):
            opt.step()
        by_hand.step()
    assert_same_bits(model, twin)
    assert_same_state(opt, by_hand)


def test_a_mixed_precision_loop(make: Make) -> None:
    """Everything under autocast, a closure too: as with the step outside."""
    model, twin = make_model(), make_model()
    opt, by_hand = make(model.parameters()), make(twin.parameters())
    for x, y in make_batches(5):

        def closure(net: Any, owner: Any, x: Any = x, y: Any = y) -> torch.Tensor:
            owner.zero_grad()
            loss = cross_entropy(net(x).float(), y)
            loss.backward()
            return loss

        with torch.autocast("cpu", dtype=torch.bfloat16):
            opt.step(lambda c=closure: c(model, opt))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            closure(twin, by_hand)
        by_hand.step()
    assert_same_bits(model, twin)


def test_deepcopy_with_the_model(make: Make) -> None:
    """A copied pair belongs together, goes on alike, and is apart from the first."""
    model = make_model()
    opt = make(model.parameters(), weight_decay=0.1)
    train(model, opt, make_batches(3))
    model2, opt2 = copy.deepcopy((model, opt))
    pairs = zip(model2.parameters(), opt2.param_groups[0]["params"], strict=True)
    assert all(a is b for a, b in pairs)
    before, state = flat(model), state_of(opt)
    train(model2, opt2, make_batches(8)[3:])
    assert torch.equal(flat(model), before)
    assert all(torch.equal(x, y) for x, y in zip(state, state_of(opt), strict=True))
    train(model, opt, make_batches(8)[3:])
    assert_same_bits(model2, model)
    assert_same_state(opt2, opt)


def stepped(make: Make) -> tuple[Any, int]:
    """An optimizer over 10,000 coordinates, and the bytes of its state."""
    model = nn.Linear(100, 99)
    opt = make(model.parameters())
    model(torch.ones(4, 100)).square().sum().backward()
    opt.step()
    return opt, sum(x.numel() * x.element_size() for x in state_of(opt))


def test_a_pickle_is_as_large_as_the_state(make: Make) -> None:
    """Parameters come along, their gradients do not; no field may bring another field's memory."""
    opt, size = stepped(make)
    params = sum(p.numel() * p.element_size() for p in opt.param_groups[0]["params"])
    assert size + params < len(pickle.dumps(opt)) < 1.1 * (size + params)


def test_a_checkpoint_is_as_large_as_the_state(make: Make) -> None:
    opt, size = stepped(make)
    buffer = io.BytesIO()
    torch.save(opt.state_dict(), buffer)
    assert size < len(buffer.getvalue()) < 1.1 * size


def test_data_loader_with_shuffling_leaves_the_same_order(make: Make) -> None:
    """A step draws no random numbers: a shuffled loader gives the order that it gives to Adam."""
    orders = []
    for kind in (make, torch.optim.Adam):
        torch.manual_seed(11)
        model = make_model()
        data = torch.utils.data.TensorDataset(*make_data(), torch.arange(len(make_data()[0])))
        loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
        opt, order = kind(model.parameters()), []
        for _ in range(2):
            for x, y, rows in loader:
                train(model, opt, [(x, y)])
                order += rows.tolist()
        orders.append(order)
    assert orders[0] == orders[1]
    assert orders[0][:96] != orders[0][96:]
