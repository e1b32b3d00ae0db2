"""A second device for machines that have none: tensors that say they are on it and compute on the CPU.

As on a real device, an operation on tensors of both devices is an error, unless it copies or one of them is a scalar.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

#: A kind of device that torch knows how to select and, unless it is asked to, does nothing with.
TOY = torch.device("lazy", 0)


class ToyTensor(torch.Tensor):
    """A tensor on the toy device; its numbers are in ``raw``."""

    raw: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> ToyTensor:
        out = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=TOY,
        )
        out.raw = raw
        return out

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class ToyDevice(TorchDispatchMode):
    """While it is active, tensors can be made on the toy device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    operands: list[torch.Tensor] = []

    def raw(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            operands.append(x)
        return x.raw if isinstance(x, ToyTensor) else x

    operation = func.name().removeprefix("aten::").split(".")[0]
    raw_args, raw_kwargs = tree_map(raw, args), tree_map(raw, kwargs)
    if "copy" not in operation and len({x.device for x in operands if x.dim()}) > 1:
        raise RuntimeError(f"{func}: expected all tensors on one device")
    device = kwargs.get("device")
    if device is not None:
        raw_kwargs["device"] = "cpu"
    result = func(*raw_args, **raw_kwargs)
    if operation.endswith("_"):
        return None if operation.startswith("_foreach") else args[0]
    if "out" in kwargs:
        return kwargs["out"]
    on_toy = (
        torch.device(device) == TOY
        if device is not None
        else any(isinstance(x, ToyTensor) for x in operands)
    )
    return tree_map(lambda x: ToyTensor(x) if on_toy and isinstance(x, torch.Tensor) else x, result)
