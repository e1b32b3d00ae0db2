"""Reads a rule from a ``.safetensors`` file, shipped or the user's. Weights are data: nothing is
ever unpickled."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from hyperadam.rules import RULES, UpdateRule
from hyperadam.rules.base import FORMAT, LARGEST_WEIGHT, METADATA
from hyperadam.rules.checks import shown

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

    A string with neither a directory separator nor the suffix ``.safetensors`` is the name of
    shipped weights; all else is a path. Raises :class:`WeightsError` if the name is not shipped or
    the file does not hold a rule, and ``FileNotFoundError`` if there is no such file."""
    if not isinstance(name_or_path, str | os.PathLike):
        raise TypeError(
            f"name_or_path must be the name of shipped weights or a path to a {SUFFIX} file, got "
            f"{type(name_or_path).__name__}"
        )
    path = _find(name_or_path)
    if not path.is_file():
        raise FileNotFoundError(
            f"name_or_path: there is no file {str(path)!r}; "
            f"expected a {SUFFIX} file or a shipped name"
        )
    with _opened(path) as file:
        rule = _build(path, _about(path, file.metadata()), relative)
        _fill(rule, file, str(path))
    return rule


def check_finite(rule: UpdateRule[Any], source: str) -> None:
    """Refuse a rule whose weights are not finite, or so large that a step's numbers are not.

    ``source`` says in the error where it came from.
    """
    for name, value in rule.state_dict().items():
        if not value.isfinite().all():
            raise WeightsError(f"{source}: weight {name!r} is not finite; expected finite numbers")
        largest = rule.largest.get(name, LARGEST_WEIGHT)
        if value.numel() and value.abs().max() > largest:
            raise WeightsError(
                f"{source}: weight {name!r} has an entry of {value.abs().max():g}, "
                f"expected at most {largest:g}"
            )


def _find(name_or_path: str | os.PathLike[str]) -> Path:
    """Where the weights should be; an unknown name is refused here, with what could have been
    meant."""
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
        f"there are no shipped weights named {name!r}: {hint}shipped: {listed}; "
        f"a path ends in {SUFFIX}"
    )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A ``.safetensors`` file; whatever its reader raises is a :class:`WeightsError`."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except WeightsError:
        raise
    except Exception as error:  # a foreign reader, and any file at all
        why = str(error)[:200] or type(error).__name__
        raise WeightsError(
            f"{path} is not a readable {SUFFIX} file (corrupt or cut short?): {why}"
        ) from error


def _about(path: Path, metadata: dict[str, str] | None) -> dict[str, Any]:
    """What a file of ours says about its rule."""
    try:
        about = json.loads((metadata or {}).get(METADATA, "{}"))
    except (ValueError, RecursionError) as error:  # also an integer of thousands of digits
        why = str(error)[:200]
        raise WeightsError(f"{path} is not a readable {SUFFIX} file: {why}") from error
    given = about.get("format") if isinstance(about, dict) else about
    if given != FORMAT:
        raise WeightsError(
            f"{path} does not hold a rule: its format is {shown(given)}, expected {FORMAT!r}"
        )
    return about


def _build(path: Path, about: dict[str, Any], relative: bool | None) -> UpdateRule[Any]:
    """The rule that the file describes, its weights still without memory."""
    kind, config, provenance = (
        about.get("rule"),
        about.get("config", {}),
        about.get("provenance", {}),
    )
    if not isinstance(kind, str) or kind not in RULES:
        known = ", ".join(map(repr, RULES))
        raise WeightsError(
            f"{path} holds a rule of unknown kind {shown(kind)}, expected one of {known}"
        )
    if not isinstance(provenance, dict):
        raise WeightsError(f"{path}: provenance must be an object, got {shown(provenance)}")
    try:
        # on the meta device a random start is never drawn: the caller's random numbers stay as they
        # are, and a nonsensical size in the file costs no memory
        with torch.device("meta"):
            chosen = {} if relative is None else {"relative": relative}
            rule = RULES[kind](**{**config, **chosen})
    except (TypeError, ValueError, RuntimeError) as error:
        name, why = RULES[kind].__name__, str(error)[:200]
        raise WeightsError(
            f"{path} has a configuration that {name} does not take: {why}"
        ) from error
    rule.provenance = provenance
    return rule


def _fill(rule: UpdateRule[Any], file: Any, source: str) -> None:
    """Put the file's tensors into the rule, once their names, shapes and values are as expected.

    Shapes are looked at before numbers are read: a file takes no more memory than its rule.
    """
    expected = {name: tuple(value.shape) for name, value in rule.state_dict().items()}
    names = set(file.keys())
    if missing := expected.keys() - names:
        raise WeightsError(
            f"{source} lacks weights {shown(sorted(missing))} "
            f"that its {rule.kind!r} configuration asks for"
        )
    if unknown := names - expected.keys():
        raise WeightsError(
            f"{source} has weights {shown(sorted(unknown))} "
            f"that its {rule.kind!r} configuration does not know"
        )
    tensors = {}
    for name, shape in expected.items():
        given = tuple(file.get_slice(name).get_shape())
        if given != shape:
            raise WeightsError(f"{source}: weight {name!r} has shape {given}, expected {shape}")
        tensors[name] = file.get_tensor(name)
        if not tensors[name].is_floating_point():
            kind = tensors[name].dtype
            raise WeightsError(
                f"{source}: weight {name!r} has type {kind}, expected floating point"
            )
    rule.load_state_dict({name: value.float() for name, value in tensors.items()}, assign=True)
    check_finite(rule, source)
