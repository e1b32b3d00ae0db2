"""Many tensors in one launch: the table in which the programs on the GPU look up theirs."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hyperadam.kernels.triton import device as programs

#: 256 threads a program; loops are not pipelined, which would take registers and shared memory;
#: products and sums are fused, whatever the version of Triton would do.
OPTIONS = {"num_warps": 4 if torch.version.hip else 8, "num_stages": 1, "enable_fp_fusion": True}
STATE_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
PARAM_DTYPES = {**STATE_DTYPES, torch.float16: tl.float16}


# To be replaced by the import of the same from hyperadam.kernels.base once that is there.
class Part(NamedTuple):
    """One tensor's share of the vector: n coordinates for each of several runs, all contiguous."""

    grad: Tensor  # (runs, n), float32
    state: Any  # HyperAdamState, each field (runs, rows, n), float32 or bfloat16
    param: Tensor  # (runs, n), moved in place: param -= step * (update + decay * param)
    step: float  # learning rate times pace
    decay: float = 0.0
    seed: int = 0  # of the stochastic rounding of bfloat16 state


class Launch(NamedTuple):
    """What one launch needs to know of its parts."""

    table: Tensor
    programs: int
    state: tl.dtype
    param: tl.dtype


def launches(parts: Sequence[Part], block: int, limit: int | None = None) -> Iterator[Launch]:
    """The parts gathered into few launches: neighbours of the same dtypes, up to PARTS of them.

    A program serves ``block`` coordinates. Of a part that needs more than ``limit`` programs, each
    serves several blocks."""
    for (state, param), same in groupby(parts, _dtypes):
        group = list(same)
        for begin in range(0, len(group), programs.PARTS.value):
            table, count = _table(group[begin : begin + programs.PARTS.value], block, limit)
            if count:
                device = group[0].grad.device
                yield Launch(table.to(device), count, STATE_DTYPES[state], PARAM_DTYPES[param])


def _table(parts: list[Part], block: int, limit: int | None) -> tuple[Tensor, int]:
    """A column of numbers for each part, in the order of ``device.FIRST`` and on; all programs."""
    columns, first = [], 0
    for part in parts:
        n = part.grad.shape[1]
        count = triton.cdiv(n, block)
        count = count if limit is None else min(count, limit)
        tensors = (part.grad, part.param, *part.state)
        scalars = (_bits(part.step), _bits(part.decay), part.seed % 2**63)
        columns.append((first, count, n, *(x.data_ptr() for x in tensors), *scalars))
        first += count
    # what is left over begins after the last program, and so has none
    table = torch.full((len(columns[0]), programs.PARTS.value), first)
    table[:, : len(columns)] = torch.tensor(columns).T
    return table, first


def _bits(value: float) -> int:
    """A float32's bits as an integer."""
    bits: int = struct.unpack("<i", struct.pack("<f", value))[0]
    return bits


def _dtypes(part: Part) -> tuple[torch.dtype, torch.dtype]:
    """Of state and param, which a launch has in common."""
    state = {x.dtype for x in part.state}
    if len(state) != 1 or not state <= set(STATE_DTYPES):
        raise ValueError(f"state must be all float32 or all bfloat16, got {state}")
    if part.grad.dtype != torch.float32:
        raise ValueError(f"grad must be float32, got {part.grad.dtype}")
    if part.param.dtype not in PARAM_DTYPES:
        raise ValueError(f"param must be float32, bfloat16 or float16, got {part.param.dtype}")
    return state.pop(), part.param.dtype
