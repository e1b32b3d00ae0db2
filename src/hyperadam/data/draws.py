"""Random numbers that depend on nothing but (seed, purpose, step): a run draws the same whoever it is computed with."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

Seeds = Sequence[int] | Tensor
Steps = int | Sequence[int] | Tensor

# SplitMix64 (Steele, Lea and Flood, 2014): a counter times the golden ratio, then a bijective mix. Seeding a Mersenne
# twister per run and step costs more than a learner's whole step; this is a handful of vectorised integer operations.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = tuple(np.uint64(n) for n in (30, 27, 31))


def keys(seeds: Seeds, purpose: str, step: Steps = 0) -> Tensor:
    """One 64-bit key a run, ``(runs,)`` int64, for what ``purpose`` names. ``step`` is one number or one per run."""
    steps = [step] if isinstance(step, int) else step
    if len(steps) not in (1, len(seeds)):
        raise ValueError(
            f"step must be one number or one per run, got {len(steps)} for {len(seeds)} seeds"
        )
    key = _mix(_purpose(purpose) + _words(seeds))
    key = _mix(key + _words(steps))
    return torch.from_numpy(key.view(np.int64))


def uniform(keys: Tensor, *shape: int) -> Tensor:
    """Uniform numbers in [0, 1), ``(runs, *shape)`` float64."""
    return torch.from_numpy(_uniform(keys, math.prod(shape))).view(len(keys), *shape)


def integers(keys: Tensor, high: int, *shape: int) -> Tensor:
    """Uniform integers in [0, high), ``(runs, *shape)`` int64."""
    return torch.from_numpy((_uniform(keys, math.prod(shape)) * high).astype(np.int64)).view(
        len(keys), *shape
    )


def normal(keys: Tensor, *shape: int) -> Tensor:
    """Standard normal numbers, ``(runs, *shape)`` float64, by Box and Muller."""
    count = math.prod(shape)
    radius, angle = torch.from_numpy(_uniform(keys, 2 * ((count + 1) // 2))).chunk(2, dim=1)
    radius = (1 - radius).log_().mul_(-2).sqrt_()  # 1 - u lies in (0, 1]: no logarithm of zero
    angle = angle * (2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :count].view(
        -1, *shape
    )


def coins(keys: Tensor, *shape: int) -> Tensor:
    """Fair coins, ``(runs, *shape)`` uint8 of zeros and ones: one bit each, so dropout masks cost next to nothing."""
    count = math.prod(shape)
    words = _stream(keys, -(-count // 64)).astype("<u8", copy=False)
    return torch.from_numpy(np.unpackbits(words.view(np.uint8), axis=1, count=count)).view(
        len(keys), *shape
    )


def _uniform(keys: Tensor, count: int) -> np.ndarray:
    return (_stream(keys, count) >> np.uint64(11)) * 2.0**-53


def _stream(keys: Tensor, count: int) -> np.ndarray:
    counter = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    return _mix(keys.numpy().view(np.uint64)[:, None] + counter)


def _mix(z: np.ndarray) -> np.ndarray:
    z ^= z >> _SHIFTS[0]
    z *= _MIX_1
    z ^= z >> _SHIFTS[1]
    z *= _MIX_2
    z ^= z >> _SHIFTS[2]
    return z


@lru_cache(maxsize=256)
def _purpose(purpose: str) -> np.ndarray:
    return _mix(_words([zlib.crc32(purpose.encode())]) * _GOLDEN)


def _words(numbers: Seeds) -> np.ndarray:
    """Integers of any size and sign as 64-bit words, wrapping."""
    values = numbers.tolist() if isinstance(numbers, Tensor) else numbers
    return np.array([int(n) & 0xFFFFFFFFFFFFFFFF for n in values], dtype=np.uint64)
