"""What a rule's options may be: whoever makes a rule, from code, a command or a file, gets one line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

#: The largest number of units, candidates and the like.
LARGEST_SIZE = 4096


def shown(value: Any) -> str:
    """``value`` for an error message, not longer than a line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list in lists
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_whole(value: Any) -> bool:
    """Whether ``value`` is an integer, which a bool is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite real number."""
    try:
        return (is_whole(value) or isinstance(value, float)) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def check_whole(name: str, value: Any, least: int, most: int = LARGEST_SIZE) -> None:
    """Refuse what is no whole number from ``least`` to ``most``."""
    if not is_whole(value) or not least <= value <= most:
        expected = f"a whole number, at least {least} and at most {most:,}"
        raise ValueError(f"{name} must be {expected}, got {shown(value)}")


def check_number(name: str, value: Any, low: float, high: float) -> None:
    """Refuse what is no number from ``low`` to ``high``."""
    if not is_number(value) or not low <= value <= high:
        raise ValueError(
            f"{name} must be a number, at least {low:g} and at most {high:g}, got {shown(value)}"
        )


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither ``True`` nor ``False``."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")


def rates(name: str, values: Any) -> tuple[float, ...]:
    """Decay rates as floats; refused unless there are some that rise, each in [0, 1)."""
    listed = isinstance(values, Sequence) and not isinstance(values, str)
    found = tuple(float(x) for x in values if is_number(x)) if listed else ()
    if not found or len(found) < len(values) or list(found) != sorted(set(found)):
        raise ValueError(f"{name} must be numbers that rise, got {shown(values)}")
    if found[0] < 0 or found[-1] >= 1:
        raise ValueError(f"{name} must lie in [0, 1), got {shown(values)}")
    check_whole(f"the number of {name}", len(found), 1, 64)
    return found
