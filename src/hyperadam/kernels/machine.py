"""How busy the machine is.

Threads that wait for each other must all get their turn, which on a busy machine takes long.
"""

from __future__ import annotations

import os
import time

_seen: tuple[float, bool] = 0.0, False


def cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def load() -> float:
    """How many processes wanted a core over the last minute; nought if the system does not tell."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def is_busy() -> bool:
    """Whether half as many again want a core as there are; looked up once a second."""
    global _seen
    now = time.monotonic()
    if now - _seen[0] > 1:
        _seen = now, load() > 1.5 * cores()
    return _seen[1]


def spare_cores() -> int:
    """The cores that nobody was using, at least one: threads for a program that starts now."""
    return max(1, round(cores() - load()))
