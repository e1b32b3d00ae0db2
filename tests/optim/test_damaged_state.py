"""A damaged state dict is refused, by name and before anything changes, or else training goes on soundly."""

from __future__ import annotations

import copy
import math
import random
import threading
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import hyperadam
from hyperadam import DMOptimizer, HyperAdam, LearnedOptimizer, RNNprop, UpdateRule

from .cases import tensors

KINDS: dict[str, type[LearnedOptimizer]] = {
    "hyperadam": HyperAdam,
    "hyperadam-paper": HyperAdam,
    "rnnprop": RNNprop,
    "dm": DMOptimizer,
}
SHAPES = [(3, 2), (4,), (), (4,)]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of quantized and nested tensors


# Optimizers to load into ----------------------------------------------------------------------------


@cache
def rule(kind: str) -> UpdateRule[Any]:
    return hyperadam.load_rule(kind)


def make(kind: str, dtype: torch.dtype = torch.float32) -> LearnedOptimizer:
    """An optimizer that has taken two steps, on two groups of tiny parameters."""
    params = tensors(*SHAPES)
    groups = [{"params": params[:3], "weight_decay": 0.1}, {"params": params[3:], "lr": 0.02}]
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


def seen(opt: LearnedOptimizer) -> Any:
    """All that a load may change, as bits and identities."""
    groups = [{k: v for k, v in group.items() if k != "params"} for group in opt.param_groups]
    params = [(id(p), p.detach().numpy().tobytes()) for p in opt._params()]
    state = {id(p): {k: (id(x), bits(x)) for k, x in s.items()} for p, s in opt.state.items()}
    hooks = len(opt._optimizer_load_state_dict_pre_hooks)
    return repr(groups), params, state, opt.skipped_steps, hooks


def bits(x: Tensor) -> bytes:
    return x.double().numpy().tobytes()


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
    *(lambda x=x: x for x in (0, 1, -1, 3, 0.5, -0.5, 1e-30, 1e5, 1e30, 1e300, -1e300, 2**52 + 1, 2**70)),
    *(lambda x=x: x for x in (math.nan, math.inf, -math.inf, 10**400, -(10**400), 10**5000)),
    *(lambda x=x: x for x in (True, 1j, Fraction(1, 3), Fraction(10**400), np.float32(2), np.int64(7))),
    *(lambda x=x: torch.tensor(x) for x in (0, 2, -2, 0.25, 2.5, math.nan, math.inf, 1e30, True, 1j)),
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
    result = rng.choices([root, group, params, state, field, step], [1, 6, 3, 3, 12, 3])[0](saved, rng)
    if isinstance(result.state_dict, dict) and result.state_dict is saved and rng.random() < 0.2:
        other = saved["state"].get(rng.randrange(4)) if isinstance(saved.get("state"), dict) else None
        if isinstance(other, dict):
            name, like = rng.choice(list(good(kind, dtype)["state"][1].items())[1:])
            result = result._replace(words=(*result.words, "of state"), how=f"{result.how}; fill {name}")
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
    name = rng.choice(["lr", "weight_decay", "maximize", "momentum", "rule", "skipped_steps"])
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
    return Damage(saved, (f"'step' of state {key}",), f"step of state {key} = {junk}")


def shown(x: Any) -> str:
    return str(x)[:60] if isinstance(x, int | float) and abs(x) < 1e30 else type(x).__name__


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


def test_errors_name_the_entry() -> None:
    opt = make("hyperadam")

    def refused(match: str, *path: Any, value: Any) -> None:
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

    shape, v = (20, 4), opt.state_dict()["state"][3]["v"]
    refused("state_dict: 'v' of state 3 has a negative entry", "state", 3, "v", value=-v)
    refused("'m' of state 3 has an entry too large for its 'v' and", "state", 3, "v", value=0 * v)
    refused("'m' of state 3 .* not finite in torch.float32", "state", 3, "m", value=v.double() + 1e300)
    refused("'gamma_hat' of state 3 has an entry above 1", "state", 3, "gamma_hat", value=v + 2)
    refused("'beta_hat' of state 3 has an entry between 0 and", "state", 3, "beta_hat", value=0 * v + 1e-9)
    refused("'beta_hat' of state 3 is zero where 'gamma_hat' is not", "state", 3, "beta_hat", value=0 * v)
    refused("'s' of state 3 has an entry beyond ±1", "state", 3, "s", value=v + 2)
    refused(r"'c' of state 3 has shape \(4,\), expected \(20, 4\)", "state", 3, "c", value=torch.ones(4))
    refused("'c' of state 3 has dtype torch.int64", "state", 3, "c", value=torch.ones(shape).long())
    refused("'c' of state 3 is torch.sparse_coo", "state", 3, "c", value=torch.ones(shape).to_sparse())
    refused("'c' of state 3 has no data", "state", 3, "c", value=torch.ones(shape, device="meta"))
    refused("'c' of state 3 must be a tensor, got a ndarray", "state", 3, "c", value=np.ones(shape))
    refused("'step' of state 3 must be a whole number ≥ 0, got -1", "state", 3, "step", value=-1)
    refused("state 9 is of no parameter", "state", 9, value={})
    refused("state 3 must be a mapping, got None", "state", 3, value=None)
    refused("group 1: lr must be a finite number ≥ 0, got nan", "param_groups", 1, "lr", value=math.nan)
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


def real_states(weights: str, dtype: torch.dtype, gradient: Any, checks: tuple[int, ...], name: str) -> None:
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


@pytest.mark.parametrize("options", [{"lstm": False}, {"preprocess": False}, {"lstm": False, "preprocess": False}], ids=str)
@pytest.mark.parametrize("bound", [None, 0.5, 0.999])
def test_real_states_of_ablated_rules(options: dict[str, bool], bound: float | None) -> None:
    torch.manual_seed(3)
    ablated = hyperadam.HyperAdamRule(**options, candidates=4, decay_bound=bound, normalize_state=True)
    params = tensors((5, 7), (0,), ())
    opt = HyperAdam(params, weights=ablated)
    for t in range(40):
        train(opt, steps=1, seed=t)
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert opt.state[params[0]]["step"] == 40
