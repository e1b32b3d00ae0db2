"""Who computes the step: a kernel for each device, and tensors as it reads them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hyperadam.kernels import Kernel, make_kernel
from hyperadam.optim.sharding import local_grad
from hyperadam.rules import UpdateRule
from hyperadam.rules.faults import largest_gradient


class Kernels:
    """An optimizer's kernels, one for each device, made when first asked for."""

    def __init__(self, rule: UpdateRule[Any], backend: str, state_dtype: torch.dtype) -> None:
        self.rule, self.backend, self.state_dtype = rule, backend, state_dtype
        self._made: dict[torch.device, Kernel] = {}

    def __getitem__(self, device: torch.device) -> Kernel:
        if device not in self._made:
            rule = copy.deepcopy(self.rule).to(device, self.dtype)
            self._made[device] = make_kernel(rule, self.backend, self.state_dtype)
        return self._made[device]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the rule computes."""
        return torch.float64 if self.state_dtype == torch.float64 else torch.float32

    @property
    def limit(self) -> float:
        """The largest entry that a gradient may have."""
        return largest_gradient(self.dtype)

    def readable(self, x: Tensor) -> Tensor:
        """``x`` in a dtype that its kernel reads, its own if that will do, and contiguous."""
        dtypes = self[x.device].dtypes
        fits = dtypes is None or x.dtype in dtypes
        return (x if fits else x.to(self.dtype)).contiguous()

    def readable_grad(self, p: Tensor, maximize: bool, label: Callable[[Tensor], str]) -> Tensor:
        """This rank's gradient of ``p`` as its kernel reads it, with the sign to descend.

        An error calls the parameter by its ``label``."""
        grad = local_grad(p)
        fault = ""
        if grad.layout != torch.strided:
            fault = f"layout {grad.layout}, expected a dense one"
        elif not grad.is_floating_point():
            fault = f"type {grad.dtype}, expected a real floating type"
        if fault:
            raise RuntimeError(f"{label(p)} has a gradient of {fault}")
        grad = self.readable(grad)
        return -grad if maximize else grad
