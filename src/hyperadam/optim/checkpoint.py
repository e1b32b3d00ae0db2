"""A parameter's state: how it begins, and how a saved one is checked and taken over."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from itertools import chain
from numbers import Real
from typing import Any, NoReturn

import torch
from torch import Tensor

from hyperadam.kernels.base import DEVICE_TILE, TILE
from hyperadam.optim.memory import MEMORY, loaded_memory, memory_fault
from hyperadam.optim.options import LARGEST_COUNT, as_number, check_options, has_data, shown
from hyperadam.optim.sharding import local, local_rows, rows_like
from hyperadam.rules import UpdateRule
from hyperadam.rules.faults import extremes

STEP = "step"

#: What every saved group must have.
ENTRIES = ("params", "lr", "weight_decay", "maximize", "momentum", "rule", "skipped_steps")
#: The dtypes of a saved state that are taken over.
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16)

#: A saved state: its key, the parameter, and the fields by name.
Saved = tuple[Any, Tensor, Mapping[str, Any]]


@torch.no_grad()
def new_state(
    rule: UpdateRule[Any], p: Tensor, dtype: torch.dtype, memory: Tensor | None
) -> dict[str, Tensor]:
    """The state of ``p`` before its first step: each field ``(rows, *p.shape)``, contiguous.

    ``memory (rule.memory,)`` is what the rule keeps of ``p`` as a whole, if it does. All lies on
    the device of ``p``: a step on a GPU then waits for nothing."""
    w = local(p)
    state = {STEP: torch.tensor(0)}
    if memory is not None:
        state[MEMORY] = memory.to(w.device)
    for name, rows in rule.state_rows().items():
        field = torch.zeros(rows, *w.shape, dtype=dtype, device=w.device)
        state[name] = rows_like(p, field)
    return state


def used_state(
    rule: UpdateRule[Any], p: Tensor, dtype: torch.dtype, state: dict[str, Tensor]
) -> Any:
    """This rank's fields of the state of ``p`` as a kernel reads them.

    What a tool has put in the place of some of it is brought into line."""
    device = local(p).device
    state[STEP] = torch.as_tensor(state[STEP]).to("cpu", torch.int64)
    if rule.memory:
        state[MEMORY] = state[MEMORY].to(device, torch.float32).contiguous()
    fields = []
    for name in rule.State._fields:
        x = local(state[name])
        if x.dtype != dtype or not x.is_contiguous() or x.device != device:
            x = x.to(device, dtype).contiguous()
            state[name] = rows_like(p, x)
        fields.append(x)
    return rule.State(*fields)


@torch.no_grad()
def loaded_state(
    rule: UpdateRule[Any],
    p: Tensor,
    dtype: torch.dtype,
    key: Any,
    saved: Mapping[str, Any],
) -> dict[str, Tensor]:
    """The state of ``p`` as a copy of ``saved``, which is state ``key`` of a state dict.

    Refused if it does not fit ``p``, or if no step of ``rule`` can have left it.
    """
    _check_fields(rule, p, key, saved)
    memory = loaded_memory(saved[MEMORY]) if rule.memory else None
    if memory is not None and (fault := memory_fault(memory)):
        _refuse(f": {MEMORY!r} of state {shown(key)} {fault}")
    state = new_state(rule, p, dtype, memory)
    state[STEP].fill_(int(_own(saved[STEP])))
    values = {name: local(state[name]) for name in rule.state_rows()}
    for name, x in values.items():
        label = f"{name!r} of state {shown(key)}"
        try:
            share = local_rows(p, saved[name])
            if share.shape != x.shape:  # a DTensor that is not what it says it is
                given, expected = tuple(share.shape), tuple(x.shape)
                _refuse(f": {label} has shape {given} on this rank, expected {expected}")
            x.copy_(share)
        except RuntimeError as error:
            raise ValueError(f"state_dict: {label} cannot be read: {error}") from error
    # the copies are looked at: they lie on one device, and what overflowed in the cast is seen
    _check_values(rule, key, values, int(state[STEP]))
    return state


def check_groups(
    name: str,
    groups: list[dict[str, Any]],
    state_dict: Any,
) -> tuple[list[dict[str, Any]], list[Saved]]:
    """Refuse a state dict that does not fit ``groups``, or is of another rule than ``name``.

    Returns copies of its groups, and the states in it, whose fields are still to be checked.
    """
    if not isinstance(state_dict, Mapping):
        _refuse(f" must be a mapping, got {shown(state_dict)}")
    for entry, kind in (("param_groups", list), ("state", Mapping)):
        if entry not in state_dict:
            _refuse(f" has no {entry!r}")
        if not isinstance(state_dict[entry], kind):
            expected = kind.__name__.lower()
            _refuse(f": {entry!r} must be a {expected}, got {shown(state_dict[entry])}")
    saved = state_dict["param_groups"]
    for number, group in enumerate(saved):
        _check_rule(name, number, group)
    if len(saved) != len(groups):
        _refuse(f": 'param_groups' has {len(saved)} parameter groups, expected {len(groups)}")
    for number, group in enumerate(saved):
        _check_group(number, group, len(groups[number]["params"]))
    copies = [_copied(number, group) for number, group in enumerate(saved)]

    keys = list(chain.from_iterable(group["params"] for group in saved))
    params = chain.from_iterable(group["params"] for group in groups)
    try:
        named = dict(zip(keys, params, strict=True))
    except TypeError:
        _refuse(": 'params' of a group has a key that cannot be hashed")
    if len(named) != len(keys):
        _refuse(": 'params' of the groups has a key twice")
    states = state_dict["state"]
    for key, fields in states.items():
        if key not in named:
            _refuse(f": state {shown(key)} is of no parameter in 'param_groups'")
        if not isinstance(fields, Mapping):
            _refuse(f": state {shown(key)} must be a mapping, got {shown(fields)}")
    return copies, [(key, p, states[key]) for key, p in named.items() if states.get(key)]


def _check_rule(name: str, number: int, group: Any) -> None:
    if not isinstance(group, Mapping):
        _refuse(f": group {number} of 'param_groups' must be a mapping, got {shown(group)}")
    given = group.get("rule")
    if given is None:
        what = f"group {number} has no rule: it is not of a learned optimizer"
        _refuse(f": {what}; expected {name}")
    if not isinstance(given, str):
        _refuse(f": group {number}: rule must be a string, got {shown(given)}; expected {name}")
    if given != name:
        _refuse(f": rule of group {number}: it belongs to {given}; expected {name}")


def _check_group(number: int, group: Mapping[str, Any], size: int) -> None:
    """Refuse a saved group that a step cannot use, or that has not ``size`` parameters."""
    for entry in ENTRIES:
        if entry not in group:
            _refuse(f": group {number} has no {entry!r}")
    for key in group:
        if not isinstance(key, str):
            _refuse(f": group {number} has a key {shown(key)}, expected strings")
    params, skipped = group["params"], group["skipped_steps"]
    if not isinstance(params, list | tuple):
        _refuse(f": group {number}: params must be a list, got {shown(params)}")
    if len(params) != size:
        _refuse(f": parameter group {number} has {len(params)} params, expected {size}")
    try:
        check_options(group)
    except ValueError as error:
        _refuse(f": group {number}: {error}")
    if not isinstance(skipped, int) or not _is_count(skipped):
        what = "skipped_steps must be a whole number ≥ 0"
        _refuse(f": group {number}: {what}, got {shown(skipped)}")
    names = group.get("param_names", [""] * size)
    if not isinstance(names, list | tuple) or [type(x) for x in names] != [str] * size:
        _refuse(f": group {number}: param_names must be {size} strings, got {shown(names)}")


def _copied(number: int, group: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a saved group, but for its ``params``, as a plain dict."""
    copied: dict[str, Any] = {"params": list(group["params"])}
    for key, value in group.items():
        try:
            copied.setdefault(key, copy.deepcopy(value))
        except Exception as error:  # a foreign object may raise anything
            _refuse(f": group {number}: {key} cannot be copied ({type(error).__name__})")
    return copied


def _check_fields(rule: UpdateRule[Any], p: Tensor, key: Any, saved: Mapping[str, Any]) -> None:
    """Refuse fields that are not those of ``rule``, or not tensors of the size of ``p``."""
    rows, label = rule.state_rows(), f"state {shown(key)}"
    names = {STEP, *rows, *([MEMORY] if rule.memory else [])}
    if saved.keys() != names:
        given, expected = sorted(map(str, saved)), sorted(names)
        _refuse(f": {label} has fields {given}, expected {expected}")
    step = _own(saved[STEP])
    if isinstance(step, Tensor) and (step.is_nested or step.dim() or step.dtype == torch.bool):
        _refuse(f": 'step' of {label} must be one whole number, got {shown(step)}")
    if not _is_count(step):
        _refuse(f": 'step' of {label} must be a whole number ≥ 0, got {shown(step)}")
    for name, count in rows.items():
        if fault := _tensor_fault(saved[name], (count, *p.shape)):
            _refuse(f": {name!r} of {label} {fault}")
    if rule.memory and (fault := _tensor_fault(saved[MEMORY], (rule.memory,))):
        _refuse(f": {MEMORY!r} of {label} {fault}")


def _tensor_fault(x: Any, expected: tuple[int, ...]) -> str | None:
    """What is wrong with ``x`` as a field of the expected shape."""
    if not isinstance(x, Tensor):
        return f"must be a tensor, got {shown(x)}"
    if x.is_nested or x.layout != torch.strided:
        return f"is {'nested' if x.is_nested else x.layout}, expected a dense tensor"
    if x.dtype not in DTYPES:
        return f"has dtype {x.dtype}, expected one of {', '.join(map(str, DTYPES))}"
    if tuple(x.shape) != expected:
        return f"has shape {tuple(x.shape)}, expected {expected}"
    return None if has_data(local(x)) else "has no data"


def _check_values(rule: UpdateRule[Any], key: Any, values: dict[str, Tensor], steps: int) -> None:
    """Refuse values that no steps of ``rule`` can have left; by tiles, to need little memory."""
    flat = [x.view(len(x), math.prod(x.shape[1:])) for x in values.values()]
    wide = torch.promote_types(flat[0].dtype, torch.float32)
    width = TILE.get(flat[0].device.type, DEVICE_TILE)
    for start in range(0, flat[0].shape[1], width):
        state = rule.State(*(x[:, start : start + width].to(wide) for x in flat))
        for name, x in zip(values, state, strict=True):
            if not all(map(math.isfinite, extremes(x))):
                what = f"has an entry that is not finite in {values[name].dtype}"
                _refuse(f": {name!r} of state {shown(key)} {what}")
        if fault := rule.state_fault(state, steps):
            _refuse(f": {fault[0]!r} of state {shown(key)} {fault[1]}")


def _own(x: Any) -> Any:
    """This rank's share of ``x``, if it is a tensor."""
    return local(x) if isinstance(x, Tensor) else x


def _is_count(value: Any) -> bool:
    """Whether ``value``, a number or a tensor of one, is whole and not negative."""
    if isinstance(value, bool) or not isinstance(value, Real | Tensor):
        return False
    number = as_number(value)
    return 0 <= number <= LARGEST_COUNT and number == int(number)


def _refuse(why: str) -> NoReturn:
    raise ValueError(f"state_dict{why}")
