"""Fast steps of the rules. Each has the rule itself as its reference twin."""

from __future__ import annotations

import os
from typing import Any

from hyperadam.kernels import native
from hyperadam.kernels.base import Kernel
from hyperadam.kernels.fused import FusedKernel
from hyperadam.kernels.native import NativeKernel
from hyperadam.kernels.tape import FusedTape, Tape
from hyperadam.kernels.tiled import TiledKernel
from hyperadam.rules.base import UpdateRule
from hyperadam.rules.hyperadam import HyperAdamRule

__all__ = ["FusedKernel", "FusedTape", "Kernel", "NativeKernel", "Tape", "TiledKernel", "available", "make_kernel", "make_tape"]


def available() -> tuple[str, ...]:
    """The backends this machine has for HyperAdam, in the order that "auto" prefers them.

    "avx512", "avx2" and "portable" are the C++ kernel for different processors; "torch" is tiles of plain torch.
    """
    return (*native.available(), "torch")


def make_kernel(rule: UpdateRule[Any], backend: str = "auto") -> Kernel:
    """The in-place step of ``rule``.

    ``backend`` is one of :func:`available` or "auto": what the environment variable ``HYPERADAM_BACKEND`` names, else the
    first available. Rules other than HyperAdam have the torch backend alone.
    """
    if backend == "auto":
        backend = os.environ.get("HYPERADAM_BACKEND", "auto")
    choices = available()
    if backend != "auto" and backend not in choices:
        raise ValueError(f"backend must be 'auto' or one of {', '.join(choices)} on this machine, got {backend!r}")
    if not isinstance(rule, HyperAdamRule):
        return Kernel(rule)
    name = choices[0] if backend == "auto" else backend
    return TiledKernel(rule) if name == "torch" else NativeKernel(rule, name)


def make_tape(rule: UpdateRule[Any], backend: str = "auto") -> Tape:
    """A tape for meta-training ``rule``: on its fused kernel if it has one, else by autograd."""
    kernel = make_kernel(rule, backend)
    return FusedTape(kernel) if isinstance(kernel, FusedKernel) else Tape(rule)
