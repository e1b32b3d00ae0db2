"""Fast steps of the rules. Each has the rule itself as its reference twin."""

from __future__ import annotations

import os
from typing import Any

from hyperadam.kernels import native
from hyperadam.kernels.base import Kernel
from hyperadam.kernels.fused import FusedKernel
from hyperadam.kernels.native import NativeKernel, with_native_lstms
from hyperadam.kernels.tape import FusedTape, Tape
from hyperadam.kernels.tiled import TiledKernel
from hyperadam.rules.base import UpdateRule
from hyperadam.rules.hyperadam import HyperAdamRule
from hyperadam.rules.layers import LSTM

__all__ = ["FusedKernel", "FusedTape", "Kernel", "NativeKernel", "Tape", "TiledKernel", "available", "make_kernel", "make_tape"]


def available() -> tuple[str, ...]:
    """The backends this machine has, in the order that "auto" prefers them.

    "avx512", "avx2" and "portable" are the C++ kernel for different processors; "torch" is tiles of plain torch.
    """
    return (*native.available(), "torch")


def make_kernel(rule: UpdateRule[Any], backend: str = "auto") -> Kernel:
    """The in-place step of ``rule``.

    ``backend`` is one of :func:`available` or "auto": what the environment variable ``HYPERADAM_BACKEND`` names, else the
    first available. In C++ are HyperAdam's whole step and other rules' LSTM layers; a rule with neither is left to torch.
    """
    name = _choose(rule, backend)
    if isinstance(rule, HyperAdamRule):
        return TiledKernel(rule) if name == "torch" else NativeKernel(rule, name)
    kernel = Kernel(rule, None if name == "torch" else with_native_lstms(rule, name, in_place=True))
    kernel.name = name
    return kernel


def make_tape(rule: UpdateRule[Any], backend: str = "auto") -> Tape:
    """A tape for meta-training ``rule``: on HyperAdam's fused kernel, else by autograd, with LSTM layers in C++."""
    if isinstance(rule, HyperAdamRule):
        kernel = make_kernel(rule, backend)
        assert isinstance(kernel, FusedKernel)
        return FusedTape(kernel)
    name = _choose(rule, backend)
    return Tape(rule, None if name == "torch" else with_native_lstms(rule, name))


def _choose(rule: UpdateRule[Any], backend: str) -> str:
    """The name of a backend that this machine has and the rule can use."""
    if backend == "auto":
        backend = os.environ.get("HYPERADAM_BACKEND", "auto")
    choices = available()
    if backend != "auto" and backend not in choices:
        raise ValueError(f"backend must be 'auto' or one of {', '.join(choices)} on this machine, got {backend!r}")
    if not isinstance(rule, HyperAdamRule) and not any(isinstance(layer, LSTM) for layer in rule.children()):
        return "torch"
    return choices[0] if backend == "auto" else backend
