"""What the settings of a meta-training may be: every field is checked when they are made,
in one line."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hyperadam.rules import RULES, HyperAdam2Rule, HyperAdamRule, UpdateRule
from hyperadam.rules.checks import check_flag, check_number, check_whole, is_number, shown

if TYPE_CHECKING:
    from hyperadam.meta.settings import Settings

ESTIMATORS = ("bptt", "es", "slopes")
STARTS = ("published", "near-adam", "mixture")
#: What only one rule can do.
OWNERS: dict[tuple[str, str], type[UpdateRule[Any]]] = {
    ("start", "near-adam"): HyperAdamRule,
    ("start", "mixture"): HyperAdam2Rule,
    ("estimator", "es"): HyperAdam2Rule,
    ("estimator", "slopes"): HyperAdam2Rule,
}
#: What all but back-propagation train on, in the place of tasks with names.
FAMILY = "family"
#: The largest count of anything, and the largest seed.
MANY, LARGEST_SEED = 10**9, 2**63 - 1

Check = Callable[[str, Any], None]


def check(settings: Settings) -> None:
    """Refuse settings that cannot be trained with: the field, what was given, what is expected."""
    for field in fields(settings):
        if field.name in CHECKS:
            CHECKS[field.name](field.name, getattr(settings, field.name))
    for length in settings.lengths:
        if length % settings.period:
            raise ValueError(
                f"lengths must be multiples of the period, {settings.period}, got {length}"
            )
    for (name, value), owner in OWNERS.items():
        if getattr(settings, name) == value and settings.rule != owner.kind:
            whose = owner.__name__.removesuffix("Rule")
            raise ValueError(f"{name} {value!r} is {whose}'s alone, not {settings.rule}'s")
    if settings.estimator != "bptt" and settings.tasks != (FAMILY,):
        raise ValueError(
            f"tasks must be {FAMILY!r} with estimator {settings.estimator!r}, "
            f"got {', '.join(settings.tasks)!r}: "
            "its tasks are drawn at random"
        )
    _check_config(settings.rule, settings.config)
    if settings.backward < 1:
        _check_backward(settings)
    if settings.trained:
        _check_trained(settings)


def one_of(choices: Iterable[str], what: str, given: Any) -> None:
    """Refuse what is none of ``choices``; the error lists the near ones, or all."""
    known = list(choices)
    if not isinstance(given, str) or given not in known:
        near = difflib.get_close_matches(given, known, n=3) if isinstance(given, str) else []
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(
            f"{what} must be one of {', '.join(map(repr, known))}, got {shown(given)}{hint}"
        )


def _check_config(kind: str, config: dict[str, Any]) -> None:
    """Refuse options that the rule does not have or take."""
    known = [name for name in inspect.signature(RULES[kind]).parameters if name != "self"]
    for name in config:
        one_of(known, f"config: an option of {RULES[kind].__name__}", name)
    try:
        with torch.device("meta"):  # no memory, and none of the caller's random numbers
            RULES[kind](**config)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"config: {error}") from error


def _check_backward(settings: Settings) -> None:
    """Refuse to look at some coordinates where all are needed, or nothing can look at some."""
    if settings.estimator != "bptt" or settings.rule != HyperAdamRule.kind:
        raise ValueError(
            f"backward below 1 is for hyperadam with estimator 'bptt', got "
            f"{settings.backward} for {settings.rule} with {settings.estimator!r}"
        )
    if settings.exact_from is not None:
        raise ValueError(
            f"backward must be 1 with exact_from, got {settings.backward}: "
            "the way back through the learner needs all coordinates"
        )


def _check_trained(settings: Settings) -> None:
    """Refuse names of parameters that the rule does not have."""
    with torch.device("meta"):
        names = [name for name, _ in RULES[settings.rule](**settings.config).named_parameters()]
    for text in settings.trained:
        one_of(names, f"trained: a parameter of {settings.rule}", text.partition("@")[0])


# One check for each field -------------------------------------------------------------------------


def _count(least: int = 1, most: int = MANY) -> Check:
    return partial(check_whole, least=least, most=most)


def _between(low: float, high: float) -> Check:
    return partial(check_number, low=low, high=high)


def _positive(name: str, value: Any) -> None:
    if not is_number(value) or not 0 < value <= 1e6:
        raise ValueError(f"{name} must be a number above 0, at most 1e6, got {shown(value)}")


def _share(name: str, value: Any) -> None:
    if not is_number(value) or not 0 < value <= 1:
        raise ValueError(f"{name} must be a number above 0, at most 1, got {shown(value)}")


def _name(choices: Iterable[str]) -> Check:
    return lambda name, value: one_of(choices, name, value)


def _config(name: str, value: Any) -> None:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name} must be the rule's options by name, got {shown(value)}")


def _tuple(each: Check, sizes: str, least: int = 1, most: int = 10**6) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, tuple) or not least <= len(value) <= most:
            raise ValueError(f"{name} must be a tuple of {sizes}, got {shown(value)}")
        for item in value:
            each(name, item)

    return check


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be names, got {shown(value)}")


def _parameter(name: str, value: Any) -> None:
    if not isinstance(value, str) or not re.fullmatch(r"[\w.]+(@[0-9]{1,9})?", value, re.ASCII):
        raise ValueError(f"{name} must be NAME or NAME@UPDATE, got {shown(value)}")


def _exact_from(name: str, value: Any) -> None:
    if value is not None:
        check_whole(f"{name}, if not None,", value, 0, MANY)


def _horizons(name: str, value: Any) -> None:
    _tuple(_count(), "two numbers of steps", 2, 2)(name, value)
    if value[0] > value[1]:
        raise ValueError(f"{name} must be the least and the largest number of steps, got {value}")


#: The check of each field of the settings. A field without one is found by a test.
CHECKS: dict[str, Check] = {
    "rule": _name(RULES),
    "config": _config,
    "estimator": _name(ESTIMATORS),
    "seed": _count(0, LARGEST_SEED),
    "tasks": _tuple(_text, "at least one name"),
    "others": _tuple(_text, "names", 0),
    "scaling": check_flag,
    "convex": check_flag,
    "updates": _count(),
    "period": _count(),
    "lengths": _tuple(_count(), "at least one number of steps"),
    "rollouts": _count(most=10**6),
    "last": check_flag,
    "relative": check_flag,
    "exact_from": _exact_from,
    "backward": _share,
    "lr": _positive,
    "final_lr": _between(0, 1e6),
    "warmup": _count(0),
    "clip": _positive,
    "average": _between(0, 1 - 1e-9),
    "start": _name(STARTS),
    "total_weight": _between(-1e6, 1e6),
    "input_scale": _between(0, 1e6),
    "horizon": check_flag,
    "shorter": _positive,
    "pairs": _count(most=10**6),
    "sigma": _positive,
    "horizons": _horizons,
    "trained": _tuple(_parameter, "names of parameters", 0),
    "hidden": _between(0, 1),
    "budget": _positive,
    "validate_every": _count(),
    "validation_runs": _count(most=10**6),
    "validation_steps": _count(),
}
