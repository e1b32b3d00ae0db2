"""How long a step is: its pace over a training, and the size of the tensor it moves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from hyperadam.rules.layers import sum_of_squares

#: Of a known number of steps, one in so many is warm-up.
WARMUP_SHARE = 20
#: The size of weights for which a step is as long as ``lr`` says: all of the paper's learners start
#: from N(0, 0.1²).
USUAL_SIZE = 0.1
#: Matrices with more inputs than this have a lower floor.
NARROW = 64
#: With HyperAdam's option ``width``, matrices with more inputs than this take shorter steps, and
#: vectors and convolutions steps of these shares.
WIDE, VECTOR, CONVOLUTION = 448, 0.5, 0.4
#: With its option ``depth``, steps are shorter if more matrices than this move together.
SHALLOW = 2
#: A tensor that is not zero counts for at least its floor over this.
SMALL = 20
#: A training of so many steps takes steps as long as ``lr`` says; and one of unknown length counts
#: for so many.
SHORT, UNKNOWN = 100, 1000
#: Numbers that are squared in float64 at a time.
TILE = 2**14


def pace(step: int, total: int | None, warmup: int, share: int = WARMUP_SHARE) -> float:
    """The share of ``lr`` that is taken at ``step``, counted from 1.

    Of ``total`` steps one in ``share`` is linear warm-up; the rest falls on a line that would reach
    zero one step after the last. Beyond the last step its length stays. Where the total is not
    known, the first ``warmup`` steps are shorter, and all others whole.
    """
    if total is None:
        return min(1.0, step / warmup) if warmup else 1.0
    if total < 1:
        raise ValueError(f"total must be None or at least 1 step, got {total}")
    rise = math.ceil(total / share)
    step = min(step, total)
    return step / rise if step <= rise else (total + 1 - step) / (total + 1 - rise)


def fan_in(shape: Sequence[int]) -> int:
    """How many inputs a tensor of this shape adds up, seen as weights ``(outputs, inputs…)``."""
    return max(1, math.prod(shape[1:]))


def size_floor(shape: Sequence[int]) -> float:
    """The size that a tensor of this shape counts for if it is zero: zeros must be able to move."""
    return USUAL_SIZE * min(1.0, math.sqrt(NARROW / fan_in(shape)))


def least_size(rms: Tensor, floor: Tensor) -> Tensor:
    """The least size of a tensor that starts with ``rms``: if that is zero its floor, else a small
    part of it."""
    return torch.where(rms > 0, floor / SMALL, floor)


def counted_size(rms: Tensor, floor: Tensor, vector: Tensor) -> Tensor:
    """The size that a tensor counts for if it starts with ``rms``: its own, and no less than the
    least. A vector counts for the geometric mean of its own and its floor, at least for that: gains
    of 1 stand beside matrices a tenth of that size."""
    own = torch.maximum(rms, least_size(rms, floor))
    return torch.where(vector, (torch.maximum(rms, floor) * floor).sqrt(), own)


def tensor_scale(rms: Tensor, shape: Sequence[int]) -> Tensor:
    """What a relative step is multiplied by, for a tensor of ``shape`` that began with ``rms``.

    Elementwise in ``rms``, one entry for each run.
    """
    floor = torch.full_like(rms, size_floor(shape))
    return counted_size(rms, floor, torch.full_like(rms, len(shape) <= 1).bool()) / USUAL_SIZE


def width_factor(shape: Sequence[int]) -> float:
    """What HyperAdam2's steps are multiplied by besides: matrices with many inputs move less.

    All inputs of a unit move together, so what a step does to its output grows with their number.
    """
    return (NARROW / fan_in(shape)) ** 0.25 if len(shape) > 1 else 1.0


def narrow_factor(shape: Sequence[int]) -> float:
    """What HyperAdam's relative steps are multiplied by with its option ``width``: matrices with
    more than :data:`WIDE` inputs move less, and so do vectors and convolutions: each of their
    entries acts at many units, or at many places."""
    if len(shape) < 2:
        return VECTOR
    return min(1.0, WIDE / fan_in(shape)) * (CONVOLUTION if len(shape) > 2 else 1.0)


def count_matrices(shapes: Iterable[Sequence[int]]) -> int:
    """How many of these are shapes of weights ``(outputs, inputs…)``, and not of vectors."""
    return sum(len(shape) > 1 for shape in shapes)


def depth_factor(matrices: int) -> float:
    """What HyperAdam's steps are multiplied by with its option ``depth``, where so many matrices
    move together: what they do to the answer adds up over them."""
    return math.sqrt(SHALLOW / max(SHALLOW, matrices))


def horizon_factor(total: int) -> float:
    """What HyperAdam2's steps, and HyperAdam's with ``temper``, are multiplied by for a training of
    so many steps, 0 if that is not known: long ones want shorter steps. The unknown counts as
    :data:`UNKNOWN` steps."""
    return float((SHORT / (total or UNKNOWN)) ** 0.3)


def square_sum(x: Tensor) -> Tensor:
    """The sum of squares of all of ``x``, a float64 scalar on its device.

    By tiles, to need little memory. Threads change nothing of it that a float32 shows."""
    flat = x.detach().reshape(-1)
    whole = len(flat) // TILE * TILE
    tiles = [*flat[:whole].view(-1, TILE).split(64), flat[whole:].unsqueeze(0)]
    return torch.cat([sum_of_squares(tile) for tile in tiles]).sum()


def root_mean_square(x: Tensor) -> Tensor:
    """The root mean square of all of ``x``, a float32 scalar on its device; 0 if it is empty."""
    return (square_sum(x) / max(1, x.numel())).sqrt().float()
