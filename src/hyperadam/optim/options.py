"""What an optimizer's options may be, whether a caller gives them or a checkpoint."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from numbers import Integral, Number, Real
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hyperadam.rules import UpdateRule
from hyperadam.weights.loader import WeightsError, check_finite, load_rule

#: What ``weights`` takes: a shipped name, a path to a ``.safetensors`` file, or a rule.
Weights: TypeAlias = str | os.PathLike[str] | UpdateRule[Any]

#: The dtypes that a state may have.
STATE_DTYPES = (torch.float32, torch.float64, torch.bfloat16)
#: The largest ``lr`` and ``weight_decay``. An update is of the order of 1: one such step ruins any
#: parameter, and much larger ones overflow.
LARGEST = 1e4
#: No training counts so far. A float64 still tells such a number from the next.
LARGEST_COUNT = 2**52


def take_rule(weights: Weights, wanted: type[UpdateRule[Any]]) -> UpdateRule[Any]:
    """A frozen rule of the wanted kind, the optimizer's own."""
    if isinstance(weights, UpdateRule):
        rule, source = copy.deepcopy(weights), "the rule given as weights"
        check_finite(rule, source)
    elif isinstance(weights, str | os.PathLike):
        rule, source = load_rule(weights), f"weights {os.fspath(weights)!r}"
    else:
        raise TypeError(
            "weights must be the name of shipped weights, a path or an UpdateRule, "
            f"got {type(weights).__name__}"
        )
    if not isinstance(rule, wanted):
        raise WeightsError(f"{source}: got a {type(rule).__name__}, expected a {wanted.__name__}")
    return rule.requires_grad_(False)


def check_state_dtype(dtype: torch.dtype) -> None:
    """Refuse a dtype in which a state cannot be kept."""
    if dtype not in STATE_DTYPES:
        small = dtype == torch.float16
        why = ", whose range is too small for squared gradients" if small else ""
        expected = ", ".join(map(str, STATE_DTYPES))
        raise ValueError(f"state_dtype must be one of {expected}, got {dtype}{why}")


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that a step cannot use; ``lr`` may be a one-element tensor."""
    for name in ("lr", "weight_decay"):
        value = options[name]
        number = as_number(value) if name == "lr" or not isinstance(value, Tensor) else math.nan
        if not 0 <= number < math.inf:
            raise ValueError(f"{name} must be a finite number ≥ 0, got {shown(value)}")
        if number > LARGEST:
            raise ValueError(f"{name} must be at most {LARGEST:g}, got {shown(value)}")
    check_total(options.get("total_steps"))  # not there in what older versions saved
    if not isinstance(options["maximize"], bool):
        raise ValueError(f"maximize must be True or False, got {shown(options['maximize'])}")
    if not math.isfinite(as_number(options["momentum"])):
        raise ValueError(f"momentum must be a finite number, got {shown(options['momentum'])}")


def check_total(total: Any) -> None:
    """Refuse a ``total_steps`` that is no number of steps."""
    whole = isinstance(total, Integral) and not isinstance(total, bool)
    if total is not None and not (whole and 1 <= total <= LARGEST_COUNT):
        expected = "None or a whole number of steps ≥ 1"
        raise ValueError(f"total_steps must be {expected}, got {shown(total)}")


def as_number(value: Any) -> float:
    """``value``, a real number or a tensor of one, as a float; not a number if it is neither."""
    try:
        if isinstance(value, Real):
            return float(value)
        if isinstance(value, Tensor) and has_data(value) and value.numel() == 1:
            unreal = value.is_complex() or value.is_quantized
            return math.nan if unreal else float(value.detach())
    except (ArithmeticError, RuntimeError, TypeError, ValueError):
        pass  # an integer beyond all floats, a tensor that cannot be read
    return math.nan


def has_data(x: Tensor) -> bool:
    """Whether ``x`` is a dense tensor whose numbers are all in memory.

    Torch does not look when it reads them, and FSDP, for one, frees what lies behind a tensor."""
    if x.is_nested or x.layout != torch.strided or x.is_meta:
        return False
    reach = sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True))
    end = (x.storage_offset() + reach + 1) * x.element_size() if x.numel() else 0
    return x.untyped_storage().nbytes() >= end


def shown(value: Any) -> str:
    """``value`` for an error message: numbers and strings in full, of all else the type."""
    text = f"a {type(value).__name__}"
    small = isinstance(value, Tensor) and has_data(value) and value.numel() < 9
    if value is None or small or isinstance(value, Number | str):
        with suppress(ValueError):  # an integer of thousands of digits has no repr
            text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
