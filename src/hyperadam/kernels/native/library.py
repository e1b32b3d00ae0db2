"""Where the C++ libraries are found, and what every call into them needs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hyperadam.kernels import machine

#: Fastest first.
INSTRUCTION_SETS = ("avx512", "avx2", "portable")


class Rows(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("run", ctypes.c_int64), ("row", ctypes.c_int64))


def rows(x: Tensor) -> Rows:
    """``(runs, p)`` or ``(runs, rows, p)`` with contiguous coordinates."""
    return Rows(x.data_ptr(), x.stride(0), x.stride(1) if x.dim() == 3 else 0)


def threads(coordinates: int, grain: int) -> int:
    """How many threads to use where ``grain`` coordinates are worth one; it changes no bits."""
    wanted = max(1, min(torch.get_num_threads(), coordinates // grain))
    return 1 if wanted > 1 and machine.is_busy() else wanted


@cache
def load_library(name: str) -> ctypes.CDLL | None:
    """The library for an instruction set; ``None`` if it is not there or cannot run here."""
    path = Path(__file__).with_name(f"{name}.so")
    if not path.exists():
        return None
    # Threads that spin while they wait take the core from whoever needs it. Read as it loads.
    before = os.environ.get("OMP_WAIT_POLICY")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    finally:
        if before is None:
            del os.environ["OMP_WAIT_POLICY"]
    supports = getattr(library, f"hyperadam_supports_{name}", None)
    return library if supports is None or supports() else None


def available() -> tuple[str, ...]:
    """The instruction sets that were built and that this processor runs, fastest first."""
    return tuple(name for name in INSTRUCTION_SETS if load_library(name))


def load_functions(instruction_set: str, names: Iterable[str]) -> dict[str, Any]:
    """The entry points ``hyperadam_<name>`` of the library for an instruction set."""
    library = load_library(instruction_set)
    if library is None:
        raise ValueError(
            f"instruction set {instruction_set!r} is not available, only {available()}"
        )
    functions = {name: getattr(library, f"hyperadam_{name}") for name in names}
    for function in functions.values():
        function.restype = None
    return functions
