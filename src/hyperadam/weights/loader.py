"""Reads a rule from a ``.safetensors`` file, shipped or the user's. Weights are data: nothing is ever unpickled."""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hyperadam.rules import RULES, UpdateRule
from hyperadam.rules.base import FORMAT, METADATA

SHIPPED = Path(__file__).parent
SUFFIX = ".safetensors"


class WeightsError(ValueError):
    """Weights that are not there, not readable, or not those of the rule that was asked for."""


def list_weights() -> list[str]:
    """The names of all shipped weights."""
    return sorted(path.stem for path in SHIPPED.glob(f"*{SUFFIX}"))


def load_rule(
    name_or_path: str | os.PathLike[str], relative: bool | None = None
) -> UpdateRule[Any]:
    """The rule in a weight file, in float32 on the CPU, with the file's ``provenance``.

    ``relative`` turns the rule's option of that name on or off; ``None``: as the file says.

    A string with neither a directory separator nor the suffix ``.safetensors`` is the name of shipped weights; all else is
    a path. Raises :class:`WeightsError` if the name is not shipped or the file does not hold a rule, and
    ``FileNotFoundError`` if there is no such file.
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise TypeError(
            f"name_or_path must be the name of shipped weights or a path to a {SUFFIX} file, got {type(name_or_path).__name__}"
        )
    path = _find(name_or_path)
    if not path.is_file():
        raise FileNotFoundError(
            f"name_or_path: there is no file {str(path)!r}; expected a {SUFFIX} file or a shipped name"
        )
    about, tensors = _read(path)
    rule = _build(path, about, relative)
    _fill(rule, tensors, str(path))
    return rule


def check_finite(rule: UpdateRule[Any], source: str) -> None:
    """Refuse a rule with infinite or undefined weights; ``source`` says in the error where it came from."""
    for name, value in rule.state_dict().items():
        if not value.isfinite().all():
            raise WeightsError(f"{source}: weight {name!r} is not finite; expected finite numbers")


def _find(name_or_path: str | os.PathLike[str]) -> Path:
    """Where the weights should be; an unknown name is refused here, with what could have been meant."""
    if (
        not isinstance(name_or_path, str)
        or name_or_path.endswith(SUFFIX)
        or any(c in name_or_path for c in "/\\")
    ):
        return Path(name_or_path)
    shipped, name = list_weights(), name_or_path
    if name in shipped:
        return SHIPPED / f"{name}{SUFFIX}"
    listed = ", ".join(map(repr, shipped)) or "none"
    near = difflib.get_close_matches(name, shipped, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise WeightsError(
        f"there are no shipped weights named {name!r}: {hint}shipped: {listed}; a path ends in {SUFFIX}"
    )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file of ours says about its rule, and its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        about = json.loads(metadata.get(METADATA, "{}"))
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise WeightsError(
            f"{path} is not a readable {SUFFIX} file (corrupt or cut short?): {error}"
        ) from error
    given = about.get("format") if isinstance(about, dict) else about
    if given != FORMAT:
        raise WeightsError(
            f"{path} does not hold a rule: its format is {given!r}, expected {FORMAT!r}"
        )
    return about, tensors


def _build(path: Path, about: dict[str, Any], relative: bool | None) -> UpdateRule[Any]:
    """The rule that the file describes, its weights still without memory."""
    kind, config, provenance = (
        about.get("rule"),
        about.get("config", {}),
        about.get("provenance", {}),
    )
    if kind not in RULES:
        raise WeightsError(
            f"{path} holds a rule of unknown kind {kind!r}, expected one of {', '.join(map(repr, RULES))}"
        )
    try:
        # on the meta device a random start is never drawn: the caller's random numbers stay as they are, and a
        # nonsensical size in the file costs no memory
        with torch.device("meta"):
            chosen = {} if relative is None else {"relative": relative}
            rule = RULES[kind](**{**config, **chosen})
    except (TypeError, ValueError, RuntimeError) as error:
        raise WeightsError(
            f"{path} has a configuration that {RULES[kind].__name__} does not take: {error}"
        ) from error
    rule.provenance = provenance
    return rule


def _fill(rule: UpdateRule[Any], tensors: dict[str, Tensor], source: str) -> None:
    """Put the tensors into the rule, once their names, shapes and values are what the rule expects."""
    expected = {name: tuple(value.shape) for name, value in rule.state_dict().items()}
    if missing := expected.keys() - tensors.keys():
        raise WeightsError(
            f"{source} lacks weights {sorted(missing)} that its {rule.kind!r} configuration asks for"
        )
    if unknown := tensors.keys() - expected.keys():
        raise WeightsError(
            f"{source} has weights {sorted(unknown)} that its {rule.kind!r} configuration does not know"
        )
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise WeightsError(
                f"{source}: weight {name!r} has shape {tuple(tensors[name].shape)}, expected {shape}"
            )
        if not tensors[name].is_floating_point():
            raise WeightsError(
                f"{source}: weight {name!r} has type {tensors[name].dtype}, expected floating point"
            )
    rule.load_state_dict({name: value.float() for name, value in tensors.items()}, assign=True)
    check_finite(rule, source)
