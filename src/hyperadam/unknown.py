"""One message for a name that nobody knows: what may be meant, and all that there is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(kind: str, name: str, known: Iterable[str], also: str = "") -> str:
    """``no task is called 'mnits'; did you mean mnist? there are …``; ``also`` ends the list."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    every = ", ".join(known) + (f", {also}" if also else "")
    return f"no {kind} is called {name!r}; {hint}there are {every}"
