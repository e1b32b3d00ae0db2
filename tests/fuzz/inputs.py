"""Inputs for readers: files damaged in some places, and values that JSON can hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

#: What has broken readers before: numbers, texts and nestings at the edge of what there is.
NUMBERS = [0, -1, 1, 2, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.5, 1e-300, 1e300, math.nan]
TEXTS = ["", "\0", "é", "\ud800", "../x", "a" * 300, "1" * 5000, "[" * 5000, "{" * 5000, "{", "$"]


def edges() -> st.SearchStrategy[Any]:
    """One plain value, at an edge or anywhere."""
    return st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from([*NUMBERS, math.inf, -math.inf, True]),
        st.integers(-3, 300),
        st.floats(),
        st.sampled_from(TEXTS[:6]),
        st.text(max_size=10),
    )


def values() -> st.SearchStrategy[Any]:
    """Anything that JSON can hold."""
    return st.recursive(
        edges(),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
        ),
        max_leaves=8,
    )


@st.composite
def changed(draw: st.DrawFn, good: dict[str, Any], new: st.SearchStrategy[Any]) -> dict[str, Any]:
    """``good`` with some entries replaced, removed or added."""
    found = dict(good)
    for key in draw(st.lists(st.sampled_from([*good, "new", "self", ""]), min_size=1, max_size=3)):
        if draw(st.booleans()) or key not in found:
            found[key] = draw(new)
        else:
            del found[key]
    return found


def json_text(value: Any) -> str:
    """``value`` as JSON, also where Python would not write it."""
    return json.dumps(value) if not _is_huge(value) else "1" * 5000


def _is_huge(value: Any) -> bool:
    return isinstance(value, int) and abs(value) > 10**300


@st.composite
def damaged(
    draw: st.DrawFn, good: Sequence[bytes], sign: Callable[[bytes], bytes] = bytes
) -> bytes:
    """One of ``good`` with a few bits flipped, bytes replaced, cut out, put in or cut off."""
    data = bytearray(draw(st.sampled_from(list(good))))
    for _ in range(draw(st.integers(1, 6))):
        # many places of interest are near the ends, where headers and lists of contents are
        size = len(data)
        few = min(600, size)
        at = draw(
            st.one_of(st.integers(0, few), st.integers(size - few, size), st.integers(0, size))
        )
        how = draw(st.sampled_from(["flip", "replace", "cut out", "put in", "repeat", "cut off"]))
        if how == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "replace":
            new = draw(st.binary(min_size=1, max_size=12))
            data[at : at + len(new)] = new
        elif how == "cut out":
            del data[at : at + draw(st.integers(1, 600))]
        elif how == "put in":
            data[at:at] = draw(st.binary(max_size=40))
        elif how == "repeat":
            data[at:at] = data[at : at + draw(st.integers(1, 600))]
        elif how == "cut off":
            del data[at:]
    return sign(bytes(data))
