"""Many tensors in one launch: the table in which the programs on the GPU look up theirs."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hyperadam.kernels.base import Motion, Part
from hyperadam.kernels.triton import device as programs

#: 256 threads a program; loops are not pipelined, which would take registers and shared memory;
#: products and sums are fused, whatever the version of Triton would do.
OPTIONS = {"num_warps": 4 if torch.version.hip else 8, "num_stages": 1, "enable_fp_fusion": True}
STATE_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
PARAM_DTYPES = {**STATE_DTYPES, torch.float16: tl.float16}


class Entry(NamedTuple):
    """What the table says of one part: its gradient ``(runs, n)``, tensors, how it moves, and the
    scales of a relative rule's updates ``(runs,)``."""

    grad: Tensor
    part: Part
    motion: Motion
    scale: Tensor | None = None


class Launch(NamedTuple):
    """What one launch needs to know of its parts."""

    table: Tensor
    programs: int
    state: tl.dtype
    param: tl.dtype


def launches(entries: Sequence[Entry], block: int, limit: int | None = None) -> Iterator[Launch]:
    """The parts gathered into few launches: neighbours of the same dtypes, up to PARTS of them.

    A program serves ``block`` coordinates. Of a part that needs more than ``limit`` programs, each
    serves several blocks."""
    for (state, param), same in groupby(entries, _dtypes):
        group = list(same)
        for begin in range(0, len(group), programs.PARTS.value):
            table, count = _table(group[begin : begin + programs.PARTS.value], block, limit)
            if count:
                device = group[0].grad.device
                yield Launch(table.to(device), count, STATE_DTYPES[state], PARAM_DTYPES[param])


def _table(entries: list[Entry], block: int, limit: int | None) -> tuple[Tensor, int]:
    """A column of numbers for each part, in the order of ``device.FIRST`` and on; all programs."""
    columns, first = [], 0
    for grad, (param, state, *_), motion, scale in entries:
        n = grad.shape[1]
        count = triton.cdiv(n, block)
        count = count if limit is None else min(count, limit)
        addresses = [x.data_ptr() for x in (grad, param, *state)]
        addresses.append(0 if scale is None else scale.data_ptr())
        columns.append(
            (first, count, n, *addresses, _bits(motion.lr), _bits(motion.decay), motion.seed)
        )
        first += count
    # what is left over begins after the last program, and so has none
    table = torch.full((len(columns[0]), programs.PARTS.value), first)
    table[:, : len(columns)] = torch.tensor(columns).T
    return table, first


def _bits(value: float) -> int:
    """A float32's bits as an integer."""
    bits: int = struct.unpack("<i", struct.pack("<f", value))[0]
    return bits


def _dtypes(entry: Entry) -> tuple[torch.dtype, torch.dtype]:
    """Of state and param, which a launch has in common."""
    return entry.part.state[0].dtype, entry.part.param.dtype
