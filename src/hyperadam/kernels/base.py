"""The in-place step of a rule on one part of the parameter vector, in tiles of plain torch: works for every rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hyperadam.rules.base import Sums, UpdateRule

#: Coordinates a tile: a few megabytes of temporaries, which stay in the second-level cache.
TILE = 4096


class Kernel:
    """A rule's step for an optimizer: no graph, the state overwritten in place.

    ``grad`` is ``(n,)``, one part of the whole vector, and ``state`` the rule's NamedTuple of ``(rows, n)`` tensors with
    contiguous rows, of any floating dtype. ``sums`` are the totals of :meth:`column_sums` over all parts, one tensor a round.
    """

    name = "torch"

    def __init__(self, rule: UpdateRule[Any], forward: Callable[..., Any] | None = None) -> None:
        """``forward`` may compute the rule's step in its stead, and overwrite the state it is given."""
        self.rule = rule
        self._forward = forward or rule

    @torch.no_grad()
    def column_sums(self, grad: Tensor, state: Any, sums: Sums) -> Tensor:
        """The next round's sums of squares over this part, ``(columns,)`` in float64, on the part's device."""
        total: Tensor | None = None
        for g, tile, _ in self._tiles(grad, state):
            share = self.rule.column_sums(g, tile, self._cast(sums, g)).double()
            total = share if total is None else total + share
        assert total is not None, "a part of no coordinates has no column sums"
        return total

    @torch.no_grad()
    def step_(self, grad: Tensor, state: Any, sums: Sums, seed: int = 0) -> Tensor:
        """One step: returns the update ``(n,)`` and overwrites ``state``. ``seed`` varies stochastic rounding."""
        update = torch.empty_like(grad)
        for g, tile, here in self._tiles(grad, state):
            update[here], new = self._forward(g, tile, self._cast(sums, g))
            for field, (old, given, value) in enumerate(zip(state, tile, new, strict=True)):
                overwritten = value is given and given.dtype == old.dtype
                if not overwritten:
                    store(old[:, here], value, seed + 31 * field + 1009 * here.start)
        return update

    def _tiles(self, grad: Tensor, state: Any) -> Any:
        """Gradient, state and slice of each tile, the state in the gradient's dtype."""
        for start in range(0, grad.numel(), TILE):
            here = slice(start, start + TILE)
            yield grad[here], self.rule.State(*(x[:, here].to(grad.dtype) for x in state)), here

    @staticmethod
    def _cast(sums: Sums, like: Tensor) -> Sums:
        return tuple(x.to(like.device, like.dtype) for x in sums)


def row_length(n: int) -> int:
    """Elements from one row of a buffer to the next: at least ``n``, a multiple of 16, and that multiple odd.

    A multiple of 16 keeps every row aligned for vector loads. An odd one keeps rows apart in the cache: with a power of two
    between them, the same coordinate of all 120 rows of HyperAdam's state would compete for the same few cache sets.
    """
    return 16 * (-(-n // 16) | 1)


def padded_rows(like: Tensor, rows: list[int]) -> list[Tensor]:
    """Zeros ``(..., rows[i], p)`` for ``like (..., any, p)`` or ``(p,)``, as rows of one buffer."""
    *lead, p = like.shape
    buffer = like.new_zeros(*lead[:-1], sum(rows), row_length(p))
    return [x[..., :p] for x in buffer.split(rows, dim=-2)]


def store(target: Tensor, value: Tensor, seed: int) -> None:
    """Copy ``value`` into ``target``, rounding stochastically to bfloat16: to nearest would stall slow moving averages."""
    if target.dtype == torch.bfloat16 and value.numel():
        noise = _noise(value.shape, seed, value.device)
        value = (value.float().contiguous().view(torch.int32) + noise).bitwise_and(-65536).view(torch.float32)
    target.copy_(value)


def _noise(shape: torch.Size, seed: int, device: torch.device) -> Tensor:
    """Uniform integers in [0, 65536) that depend on ``seed`` and position alone, so that a resumed run repeats them."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randint(0, 65536, shape, generator=generator, device=device, dtype=torch.int32)
