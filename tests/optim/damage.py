"""Optimizers on tiny parameters, and state dicts of theirs that are damaged in some place."""

from __future__ import annotations

import copy
import math
import random
import threading
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import hyperadam
from hyperadam import (
    DMOptimizer,
    HyperAdam,
    HyperAdam2,
    LearnedOptimizer,
    RNNprop,
    UpdateRule,
)

from .cases import tensors

KINDS: dict[str, type[LearnedOptimizer]] = {
    "hyperadam": HyperAdam,
    "hyperadam-paper": HyperAdam,
    "rnnprop": RNNprop,
    "dm": DMOptimizer,
    "hyperadam+relative": HyperAdam,
    "rnnprop+relative": RNNprop,
    "hyperadam2": HyperAdam2,
}
SHAPES = [(3, 2), (4,), (), (4,)]


# Optimizers to load into ----------------------------------------------------------------------------


@cache
def rule(kind: str) -> UpdateRule[Any]:
    name, _, relative = kind.partition("+")
    return hyperadam.load_rule(name, relative=True if relative else None)


def make(kind: str, dtype: torch.dtype = torch.float32) -> LearnedOptimizer:
    """An optimizer that has taken two steps, on two groups of tiny parameters."""
    params = tensors(*SHAPES)
    groups = [
        {"params": params[:3], "weight_decay": 0.1, "total_steps": 9},
        {"params": params[3:], "lr": 0.02},
    ]
    opt = KINDS[kind](groups, weights=rule(kind), state_dtype=dtype)
    train(opt, steps=2, seed=1)
    return opt


def train(opt: LearnedOptimizer, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for p in opt._params():
            p.grad = torch.randn(p.shape, generator=generator)
        opt.step()


@cache
def good(kind: str, dtype: torch.dtype) -> dict[str, Any]:
    return make(kind, dtype).state_dict()


# Damage ---------------------------------------------------------------------------------------------


def nest() -> Any:
    inner: list[Any] = []
    for _ in range(5000):
        inner = [inner]
    return inner


def loop() -> Any:
    inner: dict[str, Any] = {}
    inner["again"] = inner
    return inner


def graph() -> Tensor:
    return torch.ones((), requires_grad=True) * 2


def freed(size: int = 4) -> Tensor:
    x = torch.ones(size)
    x.untyped_storage().resize_(0)
    return x


NUMBERS: list[Callable[[], Any]] = [
    *(
        lambda x=x: x
        for x in (0, 1, -1, 3, 0.5, -0.5, 1e-30, 1e5, 1e30, 1e300, -1e300, 2**52 + 1, 2**70)
    ),
    *(lambda x=x: x for x in (math.nan, math.inf, -math.inf, 10**400, -(10**400), 10**5000)),
    *(
        lambda x=x: x
        for x in (True, 1j, Fraction(1, 3), Fraction(10**400), np.float32(2), np.int64(7))
    ),
    *(
        lambda x=x: torch.tensor(x)
        for x in (0, 2, -2, 0.25, 2.5, math.nan, math.inf, 1e30, True, 1j)
    ),
    lambda: torch.tensor([3.0]),
    lambda: torch.tensor([3.0, 4.0]),
    lambda: torch.tensor(3.0, dtype=torch.float64, requires_grad=True),
    lambda: torch.tensor(3.0, dtype=torch.float16),
    lambda: torch.tensor(3.0, device="meta"),
    lambda: torch.tensor(3.0).to_sparse(),
    lambda: torch.quantize_per_tensor(torch.tensor(3.0), 1.0, 0, torch.qint8),
    graph,
    lambda: freed(1),
]
JUNK: list[Callable[[], Any]] = [
    *(lambda x=x: x for x in (None, "", "x", "0.1", b"x", (), (1, 2), range(2), object, print)),
    list,
    dict,
    set,
    object,
    nest,
    loop,
    lambda: [1],
    lambda: {"a": {"b": None}},
    lambda: {0: None},
    lambda: (i for i in range(2)),
    threading.Lock,
    lambda: np.ones(3),
    lambda: np.array(1.0),
    lambda: torch.ones(0),
    lambda: torch.ones(2, 2),
    lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided),
    freed,
]
VALUES = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 1e-45, 1e-30, -1e-12]
VALUES += [1e-6, 1.001, 1e3, -1e6, 1e12, 1e19, -1e20, 1e30, -1e30, 3.4e38, -3.4e38, 1e300]


def poke(x: Tensor, rng: random.Random) -> Tensor:
    poked = x.double()
    poked.view(-1)[rng.randrange(x.numel())] = rng.choice(VALUES)
    return poked if rng.random() < 0.2 else poked.to(x.dtype)


def fill(x: Tensor, rng: random.Random) -> Tensor:
    filled = torch.full_like(x, rng.choice(VALUES), dtype=torch.float64)
    return filled if rng.random() < 0.5 else filled.float()


#: What can happen to a tensor, values first, then all that makes it another kind of thing.
CHANGES: list[Callable[[Tensor, random.Random], Any]] = [
    poke,
    poke,
    fill,
    lambda x, rng: -x,
    lambda x, rng: x * 10.0 ** rng.randint(-40, 38),
    lambda x, rng: x.double() * 10.0 ** rng.randint(-300, 300),
    lambda x, rng: x.flatten()[torch.randperm(x.numel())].view_as(x),
    lambda x, rng: x.to(rng.choice([torch.float64, torch.float16, torch.bfloat16])),
    lambda x, rng: x.to(rng.choice([torch.int64, torch.uint8, torch.bool, torch.complex64])),
    lambda x, rng: x.float().to(torch.float8_e4m3fn),
    lambda x, rng: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    lambda x, rng: x.to_sparse(),
    lambda x, rng: x.to("meta"),
    lambda x, rng: x.clone().requires_grad_(),
    lambda x, rng: x.clone().requires_grad_() * 1,
    lambda x, rng: torch.nn.Parameter(x.clone()),
    lambda x, rng: x.float().numpy(),
    lambda x, rng: x.tolist(),
    lambda x, rng: x.flatten(),
    lambda x, rng: x.unsqueeze(0),
    lambda x, rng: x[:-1],
    lambda x, rng: torch.cat([x, x]),
    lambda x, rng: x.mT if x.dim() > 1 else x[None],
    lambda x, rng: x[:1].expand_as(x),
    lambda x, rng: x.flip(0).contiguous().flip(0),
    lambda x, rng: torch.nested.nested_tensor([x.float()], layout=torch.strided),
]


class Damage(NamedTuple):
    """A damaged dict, and words of which an error must have at least one."""

    state_dict: Any
    words: tuple[str, ...]
    how: str


def damage(kind: str, dtype: torch.dtype, rng: random.Random) -> Damage:
    """One wound in a good state dict, or sometimes two."""
    saved = copy.deepcopy(good(kind, dtype))
    result = rng.choices([root, group, params, state, field, step], [1, 6, 3, 3, 12, 3])[0](
        saved, rng
    )
    if isinstance(result.state_dict, dict) and result.state_dict is saved and rng.random() < 0.2:
        other = (
            saved["state"].get(rng.randrange(4)) if isinstance(saved.get("state"), dict) else None
        )
        if isinstance(other, dict):
            name, like = rng.choice(list(good(kind, dtype)["state"][1].items())[1:])
            result = result._replace(
                words=(*result.words, "of state"), how=f"{result.how}; fill {name}"
            )
            other[name] = fill(like, rng)
    return result


def root(saved: dict[str, Any], rng: random.Random) -> Damage:
    names, junk = list(saved), rng.choice(JUNK)
    name = rng.choice(names)
    match rng.randrange(4):
        case 0:
            return Damage(junk(), ("state_dict must be", "param_groups"), f"root = {junk}")
        case 1:
            del saved[name]
            return Damage(saved, (repr(name),), f"no {name}")
        case 2:
            saved["extra"] = junk()
            return Damage(saved, (), "extra entry in the root")
    saved[name] = junk()
    return Damage(saved, (name,), f"{name} = {junk}")


def group(saved: dict[str, Any], rng: random.Random) -> Damage:
    groups, number = saved["param_groups"], rng.randrange(2)
    here, junk = groups[number], rng.choice(JUNK + NUMBERS)
    name = rng.choice(
        ["lr", "weight_decay", "maximize", "momentum", "rule", "skipped_steps", "total_steps"]
    )
    if rng.random() < 0.1:
        name = rng.choice(["param_names", "initial_lr", "extra"])
    match rng.randrange(12):
        case 0:
            groups[number] = junk()
            return Damage(saved, (f"group {number}",), f"group {number} = {junk}")
        case 1:
            del groups[number]
            return Damage(saved, ("parameter group",), "a group less")
        case 2:
            groups.append(copy.deepcopy(here))
            return Damage(saved, ("parameter group",), "a group more")
        case 3:
            here.pop(name, None)
            return Damage(saved, (name,), f"no {name} in group {number}")
        case 4:
            key = rng.choice([5, None, (1,), "extra"])
            here[key] = junk()
            return Damage(saved, ("key", "extra"), f"key {key!r} in group {number}")
    here[name] = junk()
    return Damage(saved, (name,), f"{name} of group {number} = {junk} {shown(here[name])}")


def params(saved: dict[str, Any], rng: random.Random) -> Damage:
    number = rng.randrange(2)
    here = saved["param_groups"][number]
    keys, junk, what = here["params"], rng.choice(JUNK + NUMBERS), rng.randrange(7)
    match what:
        case 0:
            del here["params"]
        case 1:
            here["params"] = junk()
        case 2:
            keys[0] = junk()
        case 3:
            keys[0] = rng.randrange(4)
        case 4:
            keys.append(9)
        case 5:
            keys.pop()
        case 6:
            rng.shuffle(keys)
    words = ("params", "parameter group", "of no parameter", "has shape")
    return Damage(saved, words, f"params {what} of group {number}: {junk}")


def state(saved: dict[str, Any], rng: random.Random) -> Damage:
    states, (key, other) = saved["state"], rng.sample(range(4), 2)
    junk = rng.choice(JUNK + NUMBERS)
    match rng.randrange(5):
        case 0:
            states[key] = junk()
            return Damage(saved, (f"state {key}",), f"state {key} = {junk}")
        case 1:
            del states[key]
            return Damage(saved, (), f"no state {key}")
        case 2:
            name = rng.choice([7, -1, "0", None, 0.5, (0,)])
            states[name] = states.pop(key) if rng.random() < 0.5 else junk()
            return Damage(saved, ("state",), f"state {name!r}")
        case 3:
            states[key], states[other] = states[other], states[key]
            return Damage(saved, ("has shape",), f"states {key} and {other} swapped")
    states[key] = {name: rng.choice([x, states[other][name]]) for name, x in states[key].items()}
    return Damage(saved, (f"of state {key}",), f"state {key} has fields of {other}")


def field(saved: dict[str, Any], rng: random.Random) -> Damage:
    key = rng.randrange(4)
    fields, junk = saved["state"][key], rng.choice(JUNK + NUMBERS)
    name, other = rng.sample(sorted(fields.keys() - {"step"}), 2)
    if "memory" in fields and rng.random() < 0.3:
        name, other = "memory", rng.choice(sorted(fields.keys() - {"step", "memory"}))
    words, label = (f"{name!r} of state {key}",), f"{name} of state {key}"
    match rng.randrange(12):
        case 0:
            del fields[name]
            return Damage(saved, (f"state {key} has fields",), f"no {label}")
        case 1:
            fields[rng.choice(["extra", 3, None, (1,)])] = junk()
            return Damage(saved, (f"state {key} has fields",), f"extra field in state {key}")
        case 2:
            fields[name] = junk()
            return Damage(saved, words, f"{label} = {junk}")
        case 3:
            fields[name], fields[other] = fields[other], fields[name]
            return Damage(saved, (f"of state {key}",), f"{label} swapped with {other}")
        case 4:
            x = fields[name].clone()
            x.untyped_storage().resize_(rng.choice([0, 4]))
            fields[name] = x
            return Damage(saved, words, f"{label} freed")
    change = rng.randrange(len(CHANGES))
    fields[name] = CHANGES[change](fields[name], rng)
    # one moment is judged by the other and by their corrections
    return Damage(saved, (f"of state {key}",), f"change {change} of {label} {shown(fields[name])}")


def step(saved: dict[str, Any], rng: random.Random) -> Damage:
    key, junk = rng.randrange(4), rng.choice(JUNK + 3 * NUMBERS)
    saved["state"][key]["step"] = junk()
    words = (f"'step' of state {key}", f"of state {key} has an entry too large for its 'step'")
    return Damage(saved, words, f"step of state {key} = {junk}")


def shown(x: Any) -> str:
    return str(x)[:60] if isinstance(x, int | float) and abs(x) < 1e30 else type(x).__name__
