"""A damaged state dict is refused, by name and before anything changes, or else training goes on soundly."""

from __future__ import annotations

import copy
import math
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hyperadam
from hyperadam import HyperAdam, LearnedOptimizer

from .cases import tensors
from .damage import KINDS, damage, make, nest, rule, train

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning"
)  # torch's, of quantized and nested tensors


def seen(opt: LearnedOptimizer) -> Any:
    """All that a load may change, as bits and identities."""
    groups = [{k: v for k, v in group.items() if k != "params"} for group in opt.param_groups]
    params = [(id(p), p.detach().numpy().tobytes()) for p in opt._params()]
    state = {id(p): {k: (id(x), bits(x)) for k, x in s.items()} for p, s in opt.state.items()}
    hooks = len(opt._optimizer_load_state_dict_pre_hooks)
    return repr(groups), params, state, opt.skipped_steps, hooks


def bits(x: Tensor) -> bytes:
    return x.double().numpy().tobytes()


# What must hold -------------------------------------------------------------------------------------


def verdict(number: int) -> tuple[str, str]:
    """What became of mutation ``number``: "refused", "accepted", or what is wrong; and its story."""
    rng = random.Random(number)
    torch.manual_seed(number)
    kind = list(KINDS)[number % len(KINDS)]
    dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float64])
    state_dict, words, how = damage(kind, rng.choice([dtype, torch.float32]), rng)
    opt = make(kind, dtype)
    story, before = f"{number} ({kind}, {dtype}): {how}", seen(opt)
    try:
        opt.load_state_dict(state_dict)
    except ValueError as error:
        if seen(opt) != before:
            return "refused, but something has changed", story
        named = str(error).startswith("state_dict") and any(word in str(error) for word in words)
        return "refused" if named else "refused without a name", f"{story}: {error}"
    except Exception as error:
        return f"{type(error).__name__} escaped", f"{story}: {error}"
    try:
        train(opt, steps=3, seed=number)
        saved = opt.state_dict()
    except Exception as error:
        return "accepted, but step() failed", f"{story}: {type(error).__name__}: {error}"
    values = [*opt._params(), *(x for fields in opt.state.values() for x in fields.values())]
    if not all(x.isfinite().all() for x in values):
        return "accepted, but not finite", story
    try:
        opt.load_state_dict(saved)
    except Exception as error:
        return "accepted, but its own state is refused", f"{story}: {error}"
    return "accepted", story


def judge(numbers: range) -> None:
    outcomes: Counter[str] = Counter()
    stories = []
    for number in numbers:
        outcome, story = verdict(number)
        outcomes[outcome] += 1
        if outcome not in ("refused", "accepted"):
            stories.append(f"{outcome}: {story}")
    assert not stories, f"{outcomes}\n" + "\n".join(stories[:20])
    assert outcomes["refused"] > len(numbers) / 3, outcomes
    assert outcomes["accepted"] > len(numbers) / 20, outcomes


def test_mutations() -> None:
    judge(range(1500))


@pytest.mark.slow
def test_ten_thousand_mutations() -> None:
    judge(range(10_000))


def damaged(opt: LearnedOptimizer, match: str, *path: Any, value: Any) -> None:
    """With another value at the end of this path, the optimizer refuses its own state dict."""
    state_dict = copy.deepcopy(opt.state_dict())
    *way, last = path
    here: Any = state_dict
    for key in way:
        here = here[key]
    here[last] = value
    before = seen(opt)
    with pytest.raises(ValueError, match=match):
        opt.load_state_dict(state_dict)
    assert seen(opt) == before


def test_errors_name_the_entry_of_hyperadam2() -> None:
    opt = make("hyperadam2")
    refused = partial(damaged, opt)
    state = opt.state_dict()["state"][3]
    m, v, memory = state["m"], state["v"], state["memory"]
    refused("state_dict: 'v' of state 3 has a negative entry", "state", 3, "v", value=-v)
    refused("'m' of state 3 has an entry too large for its 'v'", "state", 3, "v", value=0 * v)
    refused("'m' of state 3 has an entry too large for its 'v'", "state", 3, "m", value=40 * m)
    refused("'v' of state 3 .* too large for its 'step', 2", "state", 3, "v", value=v + 1e36)
    refused("'v' of state 3 .* too large for its 'step', 0", "state", 3, "step", value=0)
    refused("'v' of state 3 .* not finite", "state", 3, "v", value=v / 0)
    refused(
        r"'v' of state 3 has shape \(3, 4\), expected \(2, 4\)",
        "state",
        3,
        "v",
        value=torch.ones(3, 4),
    )
    refused("'memory' of state 3 has a negative entry", "state", 3, "memory", value=-memory)
    refused("'memory' of state 3 .* not finite", "state", 3, "memory", value=memory * math.nan)
    refused(
        "'memory' of state 3 .* not finite", "state", 3, "memory", value=memory.double() * 1e300
    )
    refused(
        r"'memory' of state 3 has shape \(7,\), expected \(8,\)",
        "state", 3, "memory", value=memory[:7],
    )  # fmt: skip
    refused("'memory' of state 3 has a size above", "state", 3, "memory", value=memory + 1e13)


def test_errors_name_the_entry() -> None:
    opt = make("hyperadam")
    refused = partial(damaged, opt)
    shape, v = (20, 4), opt.state_dict()["state"][3]["v"]
    refused("state_dict: 'v' of state 3 has a negative entry", "state", 3, "v", value=-v)
    refused("'m' of state 3 has an entry too large for its 'v' and", "state", 3, "v", value=0 * v)
    refused(
        "'m' of state 3 .* not finite in torch.float32", "state", 3, "m", value=v.double() + 1e300
    )
    refused("'gamma_hat' of state 3 has an entry above 1", "state", 3, "gamma_hat", value=v + 2)
    refused(
        "'beta_hat' of state 3 has an entry between 0 and",
        "state",
        3,
        "beta_hat",
        value=0 * v + 1e-9,
    )
    refused(
        "'beta_hat' of state 3 is zero where 'gamma_hat' is not",
        "state",
        3,
        "beta_hat",
        value=0 * v,
    )
    refused("'s' of state 3 has an entry beyond ±1", "state", 3, "s", value=v + 2)
    refused(
        r"'c' of state 3 has shape \(4,\), expected \(20, 4\)", "state", 3, "c", value=torch.ones(4)
    )
    refused("'c' of state 3 has dtype torch.int64", "state", 3, "c", value=torch.ones(shape).long())
    refused(
        "'c' of state 3 is torch.sparse_coo", "state", 3, "c", value=torch.ones(shape).to_sparse()
    )
    refused("'c' of state 3 has no data", "state", 3, "c", value=torch.ones(shape, device="meta"))
    refused("'c' of state 3 must be a tensor, got a ndarray", "state", 3, "c", value=np.ones(shape))
    refused("'step' of state 3 must be a whole number ≥ 0, got -1", "state", 3, "step", value=-1)
    refused("state 9 is of no parameter", "state", 9, value={})
    refused("state 3 must be a mapping, got None", "state", 3, value=None)
    refused(
        "group 1: lr must be a finite number ≥ 0, got nan", "param_groups", 1, "lr", value=math.nan
    )
    refused("group 1: skipped_steps must be", "param_groups", 1, "skipped_steps", value=-1)
    refused("'params' of the groups has a key twice", "param_groups", 1, "params", value=[0])
    refused("group 0: extra cannot be copied", "param_groups", 0, "extra", value=nest())


def test_a_load_that_fails_midway_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    opt, saved = make("hyperadam"), make("hyperadam").state_dict()
    train(opt, steps=1, seed=3)
    before, zeros, left = seen(opt), torch.zeros, iter(range(15))

    def short_of_memory(*args: Any, **options: Any) -> Tensor:
        if next(left, None) is None:
            raise MemoryError
        return zeros(*args, **options)

    monkeypatch.setattr(torch, "zeros", short_of_memory)
    with pytest.raises(MemoryError):
        opt.load_state_dict(saved)
    monkeypatch.undo()
    assert seen(opt) == before
    opt.load_state_dict(saved)
    assert seen(opt) != before


# Real states ----------------------------------------------------------------------------------------


def spikes(t: int, noise: Tensor) -> Tensor:
    """Most steps tiny, a few huge: moments far from each other."""
    return noise * (1e12 if t % 37 == 0 else 1e-9)


GRADIENTS: dict[str, Callable[[int, Tensor], Tensor]] = {
    "noise": lambda t, noise: noise,
    "constant": lambda t, noise: torch.full_like(noise, 0.3),
    "zero": lambda t, noise: torch.zeros_like(noise),
    "1e-25": lambda t, noise: noise * 1e-25,
    "1e-19": lambda t, noise: noise * 1e-19,
    "1e15": lambda t, noise: noise * 1e15,
    "dead": lambda t, noise: noise * (t < 5),
    "1e15, then dead": lambda t, noise: noise * 1e15 * (t < 5),
    "dead in part": lambda t, noise: noise * (torch.arange(noise.numel()).view_as(noise) % 2),
    "dying": lambda t, noise: noise * 0.8**t,
    "spikes": spikes,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weights", hyperadam.list_weights())
def test_real_states_are_never_refused(weights: str, dtype: torch.dtype) -> None:
    for name, gradient in GRADIENTS.items():
        real_states(weights, dtype, gradient, checks=(0, 1, 2, 5, 20, 60, 149), name=name)


@pytest.mark.slow
@pytest.mark.parametrize("weights", hyperadam.list_weights())
def test_real_states_of_long_training_are_never_refused(weights: str) -> None:
    for name, gradient in GRADIENTS.items():
        real_states(weights, torch.bfloat16, gradient, checks=tuple(range(0, 2000, 100)), name=name)


def real_states(
    weights: str, dtype: torch.dtype, gradient: Any, checks: tuple[int, ...], name: str
) -> None:
    kind = KINDS.get(weights, HyperAdam)
    p, q = tensors((5, 7))[0], tensors((5, 7))[0]
    opt, twin = (kind([x], weights=rule(weights), state_dtype=dtype) for x in (p, q))
    generator = torch.Generator().manual_seed(5)
    for t in range(checks[-1] + 1):
        p.grad = gradient(t, torch.randn(p.shape, generator=generator))
        opt.step()
        if t in checks:
            try:
                twin.load_state_dict(opt.state_dict())
            except ValueError as error:
                raise AssertionError(f"{name}, step {t}: {error}") from error
            for key, x in opt.state[p].items():
                assert torch.equal(x, twin.state[q][key]), (name, t, key)


@pytest.mark.parametrize(
    "options",
    [{"lstm": False}, {"preprocess": False}, {"lstm": False, "preprocess": False}],
    ids=str,
)
@pytest.mark.parametrize("bound", [None, 0.5, 0.999])
def test_real_states_of_ablated_rules(options: dict[str, bool], bound: float | None) -> None:
    torch.manual_seed(3)
    ablated = hyperadam.HyperAdamRule(
        **options, candidates=4, decay_bound=bound, normalize_state=True
    )
    params = tensors((5, 7), (0,), ())
    opt = HyperAdam(params, weights=ablated)
    for t in range(40):
        train(opt, steps=1, seed=t)
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert opt.state[params[0]]["step"] == 40
