"""What stays from step to step: whose turn it is, where their tensors lie, who steps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor

from hyperadam.kernels import Batch, Motion, Part
from hyperadam.optim.checkpoint import STEP
from hyperadam.optim.sharding import Ranks, is_dtensor, turned_shard
from hyperadam.rules.base import Sums, UpdateRule
from hyperadam.rules.pace import count_matrices

#: Adds up a tensor over ranks, in place.
Add = Callable[[Tensor], Tensor]


class Share:
    """The parameters that one kernel steps together, and how much their sums count."""

    batch: Batch

    def __init__(self, kernel: Any, weight: float) -> None:
        self.kernel, self.weight = kernel, weight
        #: Which of the plan's parameters they are.
        self.members: list[int] = []
        #: Those that the kernel cannot write as they are, each with the copy that is stepped.
        self.staged: list[tuple[Tensor, Tensor]] = []
        self._parts: list[Part] = []

    def add(self, member: int, w: Tensor, part: Part) -> None:
        """Add a parameter: its values, and the part with the same as the kernel reads them."""
        self.members.append(member)
        self._parts.append(part)
        if part.param is not w:
            self.staged.append((w, part.param))

    def admit(self) -> None:
        """Go through the kernel's door; a share without parameters has one of no coordinates."""
        kernel = self.kernel
        if not self._parts:
            nothing = torch.zeros(0, dtype=kernel.dtype, device=kernel.device)
            rule = kernel.rule
            fields = (x.to(kernel.state_dtype) for x in rule.init_state(nothing))
            size = torch.zeros(1, device=kernel.device)
            memory = rule.init_memory(size) if rule.memory else None
            self._parts.append(Part(nothing, rule.State(*fields), (0,), memory))
        self.batch = kernel.admit(self._parts)


class Plan:
    """A step laid out for some parameters. It may serve again, as long as it :meth:`holds`.

    Args:
        params: whose turn it is.
        groups: the optimizer's groups, where their places are.
        states: each one's entry in the optimizer's state.
        shares: who steps which of them.
        fresh: those whose state was made for this plan.
    """

    def __init__(
        self,
        params: list[Tensor],
        groups: Sequence[dict[str, Any]],
        states: list[dict[str, Tensor]],
        shares: list[Share],
        fresh: list[Tensor],
    ) -> None:
        self.params, self.states, self.shares, self.fresh = params, states, shares, fresh
        #: How many matrices move together: here, or on all ranks once they have told each other.
        self.matrices = self._own_matrices = count_matrices(p.shape for p in params)
        numbered = ((number, p) for number, group in enumerate(groups) for p in group["params"])
        found = {id(p): (number, i) for i, (number, p) in enumerate(numbered)}
        self._number = len(found)
        #: Each one's group, and its position over all groups.
        self.places = [found[id(p)] for p in params]
        for share in shares:
            share.admit()
        pairs = zip(params, states, strict=True)
        self._tensors = [x for p, state in pairs for x in (p, *state.values())]
        # shards and copies may change in ways that their addresses do not tell
        staged = any(share.staged for share in shares)
        self.reusable = not staged and not any(map(is_dtensor, params))
        self._addresses = [x.data_ptr() for x in self._tensors] if self.reusable else []
        # the counts themselves, without torch's way to them
        self._counts = [state[STEP].numpy().reshape(1).data for state in states]

    def holds(self, params: list[Tensor], state: dict[Tensor, dict[str, Tensor]]) -> bool:
        """Whether it is the turn of the same parameters, and all lies where it lay."""
        if not (
            self.reusable and len(params) == len(self.params) and all(map(is_, params, self.params))
        ):
            return False
        # the state's own order first: it spares looking each parameter up
        kept = len(state) == len(params) and all(map(is_, state.values(), self.states))
        if not kept and not all(
            state.get(p) is old for p, old in zip(params, self.states, strict=True)
        ):
            return False
        now = chain.from_iterable(
            (p, *fields.values()) for p, fields in zip(params, self.states, strict=True)
        )
        return (
            all(map(is_, now, self._tensors))
            and list(map(Tensor.data_ptr, self._tensors)) == self._addresses
        )

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
            bad += [
                self.places[i][1]
                for i, size in zip(share.members, sizes, strict=True)
                if not size <= limit
            ]
        return sorted(bad)

    @property
    def device(self) -> torch.device:
        """Where sums over all shares are made."""
        device: torch.device = self.shares[0].kernel.device
        return device

    def sums(self, earlier: Sums) -> Tensor:
        """The next round's sums over all shares, ``(1, columns)``, on the first one's device."""
        home = self.device
        totals = []
        for share in self.shares:
            sums = share.kernel.sums(share.batch, _on(share.kernel.device, earlier)).to(home)
            totals.append(sums if share.weight == 1 else share.weight * sums)
        return totals[0] if len(totals) == 1 else torch.stack(totals).sum(0)

    def shared_sums(self, earlier: Sums, ranks: Ranks, bad: bool) -> Tensor:
        """The same over all ranks, and how many matrices they have; not finite if one of them found
        a gradient ``bad``."""
        sums = self.sums(earlier)
        # all ranks of a device mesh have the same matrices, others have their own
        count = torch.full_like(sums[:, :1], self._own_matrices / ranks.size)
        told = torch.cat([sums, count], dim=1)
        agreed = ranks.add(torch.full_like(told, torch.nan) if bad else told)
        if self.shares[0].kernel.rule.depth and agreed.isfinite().all():
            self.matrices = round(agreed[0, -1].item())
        return agreed[:, :-1]

    def steps(self) -> list[int]:
        """The number of the step that each parameter is about to take, from 1."""
        return [count[0] + 1 for count in self._counts]

    def motions(
        self, rule: UpdateRule[Any], groups: Sequence[dict[str, Any]], rounded: bool
    ) -> list[Motion]:
        """How each parameter moves in this step; a ``rounded`` state needs seeds."""
        rates = [
            (float(group["lr"]), float(group["weight_decay"]), group["total_steps"])
            for group in groups
        ]
        alike: dict[tuple[int, int], Motion] = {}
        motions = []
        for step, (group, position) in zip(self.steps(), self.places, strict=True):
            motion = alike.get((step, group))
            if motion is None:
                lr, decay, total = rates[group]
                lr *= rule.pace(step, total, self.matrices)
                motion = alike[step, group] = Motion(lr, decay, step=step, total=total or 0)
            if rounded:
                # odd factors spread steps and parameters over 31 bits: tensors round
                # differently, a resumed run the same
                seed = (step * 0x9E3779B1 + position * 0x85EBCA77) & 0x7FFFFFFF
                motion = motion._replace(seed=seed)
            motions.append(motion)
        return motions

    def step_(self, sums: Sums, motions: Sequence[Motion], add: Add | None = None) -> None:
        """Move all parameters, and count the step.

        ``add`` adds up over ranks what a rule with norms per tensor has seen of its shards."""
        for count in self._counts:
            count[0] += 1
        self.fresh = []
        seen = []
        for share in self.shares:
            if share.members:
                kernel, batch = share.kernel, share.batch
                mine = motions if len(self.shares) == 1 else [motions[i] for i in share.members]
                if add is None:
                    kernel.step_(batch, _on(kernel.device, sums), mine)
                else:
                    turned = self._turned(share)
                    seen.append(kernel.move(batch, mine, turned).mul_(share.weight))
            for w, moved in share.staged:
                w.copy_(moved)
        if add is not None:
            self._remember(seen, add)

    def _turned(self, share: Share) -> Callable[[int, Tensor], Tensor]:
        """How a share's kernel gets its part of the direction of a matrix that ranks have split."""

        def gather(number: int, mixture: Tensor) -> Tensor:
            p = self.params[share.members[number]]
            return turned_shard(p, mixture, share.kernel)

        return gather

    def _remember(self, seen: list[Tensor], add: Add) -> None:
        """Add up what ranks have seen of each tensor, and keep it in its memory."""
        shares = [share for share in self.shares if share.members]
        places = [[self.places[i][1] for i in share.members] for share in shares]
        # a row for every parameter: on another rank it may be the turn of others
        size = self._number, 1, self.shares[0].kernel.rule.memory - 1
        totals = torch.zeros(size, dtype=torch.float64, device=self.device)
        for here, sums in zip(places, seen, strict=True):
            totals[here] = sums.to(totals.device)
        add(totals)
        for share, here in zip(shares, places, strict=True):
            share.kernel.remember(share.batch, totals[here])


def _on(device: torch.device, sums: Sums) -> Sums:
    return tuple(x.to(device) for x in sums)
