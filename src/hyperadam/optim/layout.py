"""How a parameter's state lies in memory: one buffer with coordinates last, seen from outside as ``p.shape + (rows,)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hyperadam.kernels.base import row_length
from hyperadam.rules import UpdateRule


@torch.no_grad()
def pack(rule: UpdateRule[Any], p: Tensor, dtype: torch.dtype, values: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """State fields of ``p``, each ``p.shape + (rows,)``, as views of one new buffer; zeros, or a copy of ``values``."""
    counts, width = rule.state_rows(), row_length(p.numel())
    buffer = torch.zeros(sum(counts.values()), width, dtype=dtype, device=p.device)
    fields, first = {}, 0
    for name, rows in counts.items():
        fields[name] = buffer.as_strided((*p.shape, rows), _strides(p), first * width)
        if values is not None:
            fields[name].copy_(values[name])
        first += rows
    return fields


def is_packed(rule: UpdateRule[Any], p: Tensor, dtype: torch.dtype, fields: Mapping[str, Tensor]) -> bool:
    """Whether ``fields`` lie as :func:`pack` would lay them, on the parameter's device; a copied state may not."""
    expected = _strides(p)
    tensors = [fields[name] for name in rule.state_rows()]
    return len({x.untyped_storage()._cdata for x in tensors}) == 1 and all(
        x.stride() == expected and x.dtype == dtype and x.device == p.device for x in tensors
    )


def rows_of(rule: UpdateRule[Any], p: Tensor, fields: Mapping[str, Tensor]) -> Any:
    """Packed ``fields`` as the rule's NamedTuple of ``(rows, n)`` views: the kernel's sight of the same memory."""
    n, width = p.numel(), row_length(p.numel())
    return rule.State(*(fields[name].as_strided((rows, n), (width, 1)) for name, rows in rule.state_rows().items()))


def _strides(p: Tensor) -> tuple[int, ...]:
    """Strides of a packed field: row-major over ``p.shape``, whatever the parameter's own memory format, rows last."""
    strides = [row_length(p.numel())]
    step = 1
    for size in reversed(p.shape):
        strides.insert(0, step)
        step *= size
    return tuple(strides)
