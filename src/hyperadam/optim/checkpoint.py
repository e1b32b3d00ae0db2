"""A parameter's state: how it begins, and what of a loaded one is taken over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import StateDict

from hyperadam.optim.sharding import local, local_rows, rows_like
from hyperadam.rules import UpdateRule

STEP = "step"


@torch.no_grad()
def new_state(
    rule: UpdateRule[Any], p: Tensor, dtype: torch.dtype, saved: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """The state of ``p``: steps taken, and each field ``(rows, *p.shape)``, contiguous. Zeros, or a copy of ``saved``."""
    w = local(p)
    state = {STEP: torch.tensor(0 if saved is None else int(saved[STEP]))}
    for name, rows in rule.state_rows().items():
        field = torch.zeros(rows, *w.shape, dtype=dtype, device=w.device)
        if saved is not None:
            field.copy_(local_rows(p, saved[name]))
        state[name] = rows_like(p, field)
    return state


def check_state_dict(rule: UpdateRule[Any], name: str, groups: list[dict[str, Any]], state_dict: StateDict) -> None:
    """Refuse the state of another rule. Numbers of groups and parameters are torch's to check."""
    for group in state_dict["param_groups"]:
        given = group.get("rule")
        if given != name:
            what = "has no rule in its groups: it is not of a learned optimizer" if given is None else f"belongs to {given}"
            raise ValueError(f"state_dict {what}; expected {name}")
    rows = rule.state_rows()
    for key, p in loaded_params(groups, state_dict).items():
        saved = state_dict["state"].get(key)
        if saved and saved.keys() != {STEP, *rows}:
            raise ValueError(f"state_dict: state {key} has fields {sorted(saved)}, expected {sorted({STEP, *rows})}")
        for field, count in rows.items() if saved else ():
            given, expected = tuple(saved[field].shape), (count, *p.shape)
            if given != expected:
                raise ValueError(f"state_dict: {field!r} of state {key} has shape {given}, expected {expected}")


def loaded_params(groups: Iterable[dict[str, Any]], state_dict: StateDict) -> dict[Any, Tensor]:
    """The parameters of ``groups`` by their keys in ``state_dict``; none if they do not match, as torch will say."""
    saved = state_dict["param_groups"]
    if [len(group["params"]) for group in saved] != [len(group["params"]) for group in groups]:
        return {}
    keys, params = (chain.from_iterable(group["params"] for group in some) for some in (saved, groups))
    return dict(zip(keys, params, strict=True))
