"""Which backend steps a rule: by its kind, and the device and dtype of its weights."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import torch

from hyperadam.kernels import native
from hyperadam.kernels.base import Kernel
from hyperadam.kernels.native import NativeKernel, NativeTensorKernel, with_native_lstms
from hyperadam.kernels.sampled import SampledTape
from hyperadam.kernels.tape import NativeTape, Tape
from hyperadam.kernels.tensors import TensorKernel
from hyperadam.rules.base import UpdateRule
from hyperadam.rules.hyperadam import HyperAdamRule
from hyperadam.rules.hyperadam2 import HyperAdam2Rule
from hyperadam.rules.layers import LSTM


def available() -> tuple[str, ...]:
    """The backends this machine has, in the order that "auto" prefers them.

    "avx512", "avx2" and "portable" are C++ for different processors. "triton" is for GPUs, and
    there if triton and a GPU are. "torch" is the rule itself, in tiles, for any device and dtype.
    """
    triton = ("triton",) if find_spec("triton") is not None and torch.cuda.is_available() else ()
    return (*native.available(), *triton, "torch")


def make_kernel(
    rule: UpdateRule[Any], backend: str = "auto", state_dtype: torch.dtype | None = None
) -> Kernel:
    """The in-place step of ``rule``, on the device and in the dtype of its weights.

    ``backend`` is one of :func:`available` or "auto": what the environment variable
    ``HYPERADAM_BACKEND`` names if it fits, else the first that does. In C++ are HyperAdam's whole
    step and other rules' LSTM layers, in float32 on the CPU. What has neither is left to torch.
    ``state_dtype`` is the dtype of the state where it is not the rule's own.
    """
    name = _choose(rule, backend)
    if isinstance(rule, HyperAdam2Rule):
        if name == "torch":
            return TensorKernel(rule, state_dtype)
        if name == "triton":
            from hyperadam.kernels.triton import TritonTensorKernel

            return TritonTensorKernel(rule, state_dtype)
        return NativeTensorKernel(rule, name, state_dtype)
    if name == "torch":
        return Kernel(rule, state_dtype)
    if isinstance(rule, HyperAdamRule):
        if name == "triton":
            from hyperadam.kernels.triton import TritonKernel

            return TritonKernel(rule, state_dtype)
        return NativeKernel(rule, name, state_dtype)
    kernel = Kernel(rule, state_dtype, with_native_lstms(rule, name, in_place=True))
    kernel.name = name
    return kernel


def make_tape(rule: UpdateRule[Any], backend: str = "auto") -> Tape:
    """A tape for meta-training ``rule``: HyperAdam's in C++, else autograd with layers in C++."""
    name = _choose(rule, backend)
    if name in ("torch", "triton"):
        return Tape(rule)
    if isinstance(rule, HyperAdamRule):
        return NativeTape(NativeKernel(rule, name))
    return Tape(rule, with_native_lstms(rule, name))


def make_sampled_tape(rule: UpdateRule[Any], backend: str = "auto") -> SampledTape:
    """A tape that goes back through some coordinates alone: HyperAdam's, in C++."""
    name = _choose(rule, backend)
    if not isinstance(rule, HyperAdamRule) or name in ("torch", "triton"):
        raise ValueError(
            f"backend {name!r} cannot go back through a sample of the coordinates of {rule.kind}: "
            "that is in C++ alone, for hyperadam in float32 on a CPU"
        )
    return SampledTape(NativeKernel(rule, name))


def _choose(rule: UpdateRule[Any], backend: str) -> str:
    """The name of a backend that this machine has and that fits the rule."""
    wish = os.environ.get("HYPERADAM_BACKEND", "auto") if backend == "auto" else backend
    choices = available()
    if wish != "auto" and wish not in choices:
        raise ValueError(
            f"backend must be 'auto' or one of {', '.join(choices)} on this machine, got {wish!r}"
        )
    like = next(rule.parameters())
    fitting = [name for name in choices if _fits(name, like.device.type, like.dtype, rule)]
    if wish in fitting:
        return wish
    if backend != "auto" and _is_in_cpp(rule):
        raise ValueError(
            f"backend {backend!r} cannot step {rule.kind} in {like.dtype} on {like.device}, "
            f"only {', '.join(fitting)} can"
        )
    return fitting[0]


def _fits(name: str, device: str, dtype: torch.dtype, rule: UpdateRule[Any]) -> bool:
    if name == "torch":
        return True
    if name == "triton":
        return _is_in_triton(rule) and device == "cuda" and dtype == torch.float32
    return _is_in_cpp(rule) and device == "cpu" and dtype == torch.float32


def _is_in_triton(rule: UpdateRule[Any]) -> bool:
    """Whether the rule's step is in Triton: HyperAdam2's with as many rates as it usually has."""
    if isinstance(rule, HyperAdam2Rule):
        return rule.fastest_is_gradient and (len(rule.slow), len(rule.gammas)) == (3, 2)
    return isinstance(rule, HyperAdamRule)


def _is_in_cpp(rule: UpdateRule[Any]) -> bool:
    """Whether all of the rule is in C++, or at least its LSTM layers."""
    if isinstance(rule, HyperAdam2Rule):
        return NativeTensorKernel.fits(rule)
    return isinstance(rule, HyperAdamRule) or any(
        isinstance(layer, LSTM) for layer in rule.children()
    )
