"""What stays the same from step to step: whose turn it is, where their tensors lie, and which kernel steps them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import is_
from typing import NamedTuple

import torch
from torch import Tensor

from hyperadam.kernels import Batch, Kernel, Motion
from hyperadam.optim.checkpoint import STEP
from hyperadam.optim.sharding import is_dtensor
from hyperadam.rules.base import Sums


class Share(NamedTuple):
    """The parameters that one kernel steps together."""

    kernel: Kernel
    batch: Batch
    #: Which of the plan's parameters they are; none on a rank that only takes part in the sums.
    members: list[int]
    #: How much their sums count towards the whole vector's.
    weight: float
    #: Parameters that the kernel cannot write as they are, each with the copy that is stepped in its stead.
    staged: list[tuple[Tensor, Tensor]]


class Plan:
    """A step laid out for some parameters. It may serve again, as long as it :meth:`holds`.

    Args:
        params: whose turn it is.
        places: each one's group, and its position over all groups.
        states: each one's entry in the optimizer's state.
        shares: who steps which of them.
        fresh: those whose state was made for this plan.
    """

    def __init__(
        self,
        params: list[Tensor],
        places: list[tuple[int, int]],
        states: list[dict[str, Tensor]],
        shares: list[Share],
        fresh: list[Tensor],
    ) -> None:
        self.params, self.places, self.states, self.shares, self.fresh = params, places, states, shares, fresh
        self._tensors = [x for p, state in zip(params, states, strict=True) for x in (p, *state.values())]
        # shards and copies may change in ways that their addresses do not tell
        self.reusable = not any(share.staged for share in shares) and not any(map(is_dtensor, params))
        self._addresses = [x.data_ptr() for x in self._tensors] if self.reusable else []
        # the counts themselves, without torch's way to them
        self._counts = [state[STEP].numpy().reshape(1).data for state in states]

    def holds(self, params: list[Tensor], state: dict[Tensor, dict[str, Tensor]]) -> bool:
        """Whether it is the turn of the same parameters, and they and their state lie where they lay."""
        if not (self.reusable and len(params) == len(self.params) and all(map(is_, params, self.params))):
            return False
        # the state's own order first: it spares looking each parameter up
        kept = len(state) == len(params) and all(map(is_, state.values(), self.states))
        if not kept and not all(state.get(p) is old for p, old in zip(params, self.states, strict=True)):
            return False
        now = chain.from_iterable((p, *fields.values()) for p, fields in zip(params, self.states, strict=True))
        return all(map(is_, now, self._tensors)) and list(map(Tensor.data_ptr, self._tensors)) == self._addresses

    def take(self, grads: Sequence[Tensor]) -> None:
        """Lay the gradients in, one for each parameter."""
        for share in self.shares:
            mine = grads if len(self.shares) == 1 else [grads[i] for i in share.members]
            # a rank without parameters has one part of no coordinates, which is its own gradient
            share.kernel.take(share.batch, mine or [part.param for part in share.batch.parts])

    def too_large(self, limit: float) -> list[int]:
        """The positions of parameters whose gradient is not finite or exceeds ``limit``."""
        bad = []
        for share in self.shares:
            sizes = share.kernel.largest(share.batch) if share.members else []
            bad += [self.places[i][1] for i, size in zip(share.members, sizes, strict=True) if not size <= limit]
        return sorted(bad)

    def sums(self, earlier: Sums) -> Tensor:
        """The next round's sums over all shares, ``(1, columns)``, on the first one's device."""
        home = self.shares[0].kernel.device
        totals = []
        for kernel, batch, _, weight, _ in self.shares:
            sums = kernel.sums(batch, _on(kernel.device, earlier)).to(home)
            totals.append(sums if weight == 1 else weight * sums)
        return totals[0] if len(totals) == 1 else torch.stack(totals).sum(0)

    def steps(self) -> list[int]:
        """The number of the step that each parameter is about to take, from 1."""
        return [count[0] + 1 for count in self._counts]

    def step_(self, sums: Sums, motions: Sequence[Motion]) -> None:
        """Move all parameters, and count the step."""
        for count in self._counts:
            count[0] += 1
        self.fresh = []
        for kernel, batch, members, _, staged in self.shares:
            if not members:
                continue
            here = _on(kernel.device, sums)
            kernel.step_(batch, here, motions if len(self.shares) == 1 else [motions[i] for i in members])
            for w, moved in staged:
                w.copy_(moved)


def _on(device: torch.device, sums: Sums) -> Sums:
    return tuple(x.to(device) for x in sums)
