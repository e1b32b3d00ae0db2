"""torch's hooks around ``step`` and ``state_dict``, used for what people use them for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .problem import assert_same_bits, assert_same_state, backward, make_batches, make_model, train

Make = Callable[..., Any]


def test_a_pre_hook_that_changes_gradients(make: Make) -> None:
    model, twin = make_model(), make_model()
    opt, by_hand = make(model.parameters()), make(twin.parameters())

    def damp(optimizer: Any, args: Any, kwargs: Any) -> None:
        assert optimizer is opt
        for p in optimizer.param_groups[0]["params"][:2]:
            p.grad *= 0.125

    opt.register_step_pre_hook(damp)
    train(model, opt, make_batches(5))
    for batch in make_batches(5):
        by_hand.zero_grad()
        backward(twin, batch)
        for p in twin[0].parameters():
            p.grad *= 0.125
        by_hand.step()
    assert_same_bits(model, twin)


def test_a_post_hook_that_changes_parameters(make: Make) -> None:
    """Weights kept in a box, until the hook is removed."""
    model, twin = make_model(), make_model()
    opt, by_hand = make(model.parameters()), make(twin.parameters())

    def clamp(net: Any) -> None:
        with torch.no_grad():
            for p in net.parameters():
                p.clamp_(-0.2, 0.2)

    handle = opt.register_step_post_hook(lambda *_: clamp(model))
    train(model, opt, make_batches(4))
    assert all(p.abs().max() <= 0.2 for p in model.parameters())
    handle.remove()
    train(model, opt, make_batches(2))
    for batch in make_batches(4):
        train(twin, by_hand, [batch])
        clamp(twin)
    train(twin, by_hand, make_batches(2))
    assert_same_bits(model, twin)


def test_hooks_see_the_closure(make: Make) -> None:
    """A pre-hook may hand another closure to the step; the post-hook comes after the update."""
    model, twin = make_model(), make_model()
    opt, by_hand = make(model.parameters()), make(twin.parameters())
    batches = make_batches(2)
    seen = []
    opt.register_step_pre_hook(lambda o, *_: ((o, lambda: backward(model, batches[1])), {}))
    opt.register_step_post_hook(lambda o, *_: seen.append(len(o.state)))
    opt.step(lambda: backward(model, batches[0]))
    assert seen == [4]
    train(twin, by_hand, batches[1:])
    assert_same_bits(model, twin)


def test_hooks_on_all_optimizers(make: Make) -> None:
    model = make_model()
    opt = make(model.parameters())
    seen: list[str] = []
    handles = [
        register_optimizer_step_pre_hook(lambda o, *_: seen.append(f"pre {o is opt}")),
        register_optimizer_step_post_hook(lambda o, *_: seen.append(f"post {o is opt}")),
    ]
    try:
        train(model, opt, make_batches(2))
    finally:
        for handle in handles:
            handle.remove()
    assert seen == ["pre True", "post True"] * 2


def test_state_dict_hooks_carry_something_along(make: Make) -> None:
    """A counter rides in the dict on its way out and is taken out of it on its way in."""
    model, resumed = make_model(), make_model()
    opt, opt2 = make(model.parameters()), make(resumed.parameters())
    train(model, opt, make_batches(3))
    seen: list[Any] = []
    opt.register_state_dict_pre_hook(lambda o: seen.append("saving"))
    opt.register_state_dict_post_hook(lambda o, state_dict: state_dict | {"epoch": 7})
    saved = copy.deepcopy(opt.state_dict())
    assert seen == ["saving"]
    assert saved["epoch"] == 7

    def take(o: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        seen.append(state_dict["epoch"])
        return {k: v for k, v in state_dict.items() if k != "epoch"}

    opt2.register_load_state_dict_pre_hook(take)
    opt2.register_load_state_dict_post_hook(lambda o: seen.append(len(o.state)))
    opt2.load_state_dict(saved)
    assert seen == ["saving", 7, 4]
    resumed.load_state_dict(model.state_dict())
    train(model, opt, make_batches(8)[3:])
    train(resumed, opt2, make_batches(8)[3:])
    assert_same_bits(resumed, model)


def test_a_load_hook_that_adapts_the_names(make: Make) -> None:
    """As when a checkpoint of another tool keeps the state by name."""
    model, resumed = make_model(), make_model()
    names = [name for name, _ in model.named_parameters()]
    opt = make(model.named_parameters())
    train(model, opt, make_batches(3))
    saved = copy.deepcopy(opt.state_dict())
    by_name = {"state": {names[i]: x for i, x in saved["state"].items()}}
    by_name["param_groups"] = [g | {"params": names} for g in saved["param_groups"]]

    def to_numbers(o: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        state = {names.index(name): x for name, x in state_dict["state"].items()}
        groups = [g | {"params": list(range(4))} for g in state_dict["param_groups"]]
        return {"state": state, "param_groups": groups}

    opt2 = make(resumed.named_parameters())
    opt2.register_load_state_dict_pre_hook(to_numbers)
    opt2.load_state_dict(by_name)
    assert_same_state(opt2, opt)
