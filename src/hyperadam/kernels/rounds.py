"""Where matrices leave their mixtures before they are turned: memory for some at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hyperadam.kernels.base import Part
from hyperadam.rules.hyperadam2 import HyperAdam2Rule
from hyperadam.rules.orthogonal import LANES

#: Coordinates of matrices that a round takes, unless a single one has more: their mixtures take
#: some megabytes, not four bytes a parameter.
LIMIT = 2**20


class Alike(NamedTuple):
    """Matrices of one shape whose mixtures lie one behind the other, ``(matrices * runs, n)``."""

    shape: Sequence[int]
    numbers: list[int]
    mixture: Tensor


class Round(NamedTuple):
    """Parts ``first`` to ``last`` (not included) of a batch.

    ``mixtures`` has memory ``(runs, n)`` for each part that is turned, and ``None`` for the others.
    ``whole`` are the matrices that lie here as a whole, those of one shape together; ``shards``
    the numbers of the others.
    """

    first: int
    last: int
    mixtures: list[Tensor | None]
    whole: list[Alike]
    shards: list[int]


def lay_out(
    rule: HyperAdam2Rule, parts: Sequence[Part], runs: int, dtype: torch.dtype, device: torch.device
) -> list[Round]:
    """The rounds of a batch. All use the same memory."""
    # a shard of no coordinates, too: its rank takes part when the whole matrix is turned
    turned = [rule.turns(part.shape) for part in parts]
    sizes = [_room(part) if turn else 0 for part, turn in zip(parts, turned, strict=True)]
    ends, filled = [], 0
    for number, size in enumerate(sizes):
        if filled and filled + size > LIMIT:
            ends.append(number)
            filled = 0
        filled += size
    starts = [0, *ends]
    spans = list(zip(starts, [*ends, len(parts)], strict=True))
    most = max((sum(sizes[first:last]) for first, last in spans), default=0)
    memory = torch.empty(most, dtype=dtype, device=device)
    return [_round(parts, turned, runs, memory, first, last) for first, last in spans]


def _round(
    parts: Sequence[Part], turned: Sequence[bool], runs: int, memory: Tensor, first: int, last: int
) -> Round:
    """One round, its matrices laid out by shape."""
    shapes: dict[tuple[int, ...], list[int]] = {}
    shards = []
    for number in range(first, last):
        part = parts[number]
        if not turned[number]:
            continue
        if math.prod(part.shape) * runs == part.param.numel():
            shapes.setdefault(tuple(part.shape), []).append(number)
        else:
            shards.append(number)
    mixtures: list[Tensor | None] = [None] * (last - first)
    whole, at = [], 0
    for shape, numbers in shapes.items():
        n = math.prod(shape)
        size = len(numbers) * runs * n
        mixture = memory[at : at + size].view(-1, n)
        for number, own in zip(numbers, mixture.split(runs), strict=True):
            mixtures[number - first] = own
        whole.append(Alike(shape, numbers, mixture))
        at += sum(_room(parts[number]) for number in numbers)
    for number in shards:
        size = parts[number].param.numel()
        mixtures[number - first] = memory[at : at + size].view(runs, size // runs)
        at += _room(parts[number])
    return Round(first, last, mixtures, whole, shards)


def _room(part: Part) -> int:
    """What a part's mixture takes, so that the next one begins where rows do."""
    return LANES * math.ceil(part.param.numel() / LANES)
