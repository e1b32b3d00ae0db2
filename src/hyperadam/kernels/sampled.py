"""A tape that goes back through a sample of the coordinates: noisier, and much cheaper."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hyperadam.kernels.base import Part
from hyperadam.kernels.tape import NativeTape
from hyperadam.rules.hyperadam import HyperAdamState


class Sample(NamedTuple):
    """Two kinds of coordinates, by their ascending numbers: those that are seen on the way back,
    and the rest."""

    seen: Tensor
    rest: Tensor

    @property
    def whole(self) -> float:
        """How many times as many coordinates as those that are seen there are."""
        return (len(self.seen) + len(self.rest)) / len(self.seen)

    def order(self) -> Tensor:
        """Where each coordinate lies if the rest comes behind those that are seen."""
        order = torch.empty(len(self.seen) + len(self.rest), dtype=torch.int64)
        order[torch.cat(self)] = torch.arange(len(order))
        return order


class SampledTape(NativeTape):
    """Steps all coordinates, and goes back through a sample of them.

    ::

        tape.start(state, sample)
        update = tape.step(grad)     # of all coordinates
        tape.step_back(d_update)     # of all coordinates, too; only those of the sample are read
        tape.gradients()             # of all, as the sample lets expect it

    Every coordinate is one term of the meta-gradient, and a sample's terms times ``whole`` have its
    mean. But norms are of the whole vector: on the way forward they are exact, and what goes back
    through them is a sum over coordinates again, estimated likewise. The product of two estimates
    from one sample makes a bias, which falls with the sample's size.

    The states of the rest are not kept: they are overwritten at every step.
    """

    _sample: Sample
    _order: Tensor
    _first: HyperAdamState | None = None
    _rest: HyperAdamState | None = None

    def start(self, state: HyperAdamState, sample: Sample | None = None) -> None:
        if sample is None:
            raise ValueError("sample is None, expected one: the whole vector has a NativeTape")
        self._sample, self.whole, self._order = sample, sample.whole, sample.order()
        rest = _chosen(state, sample.rest, self._rest)
        if rest is not self._rest:
            self._rest, self._states = rest, []  # what was made for the other memory goes
        self._first = _chosen(state, sample.seen, self._first)
        super().start(self._first)

    @property
    def state(self) -> HyperAdamState:
        """The state of all coordinates after the last step, a copy."""
        assert self._rest is not None
        pairs = zip(super().state, self._rest, strict=True)
        return HyperAdamState(*(self._join(list(pair)) for pair in pairs))

    def copy_state(self) -> tuple[Tensor, ...]:
        return self.state

    def step_back(self, d_update: Tensor) -> Tensor:
        """Undo the last step, for the sample's coordinates: the adjoint of its update, of which
        only these are read, to the adjoint of their gradient."""
        return super().step_back(d_update.index_select(-1, self._sample.seen))

    def gradients(self) -> list[Tensor]:
        return [self.whole * x for x in super().gradients()]

    def _split(self, x: Tensor) -> list[Tensor]:
        return [x.index_select(-1, some) for some in self._sample]

    def _join(self, parts: list[Tensor]) -> Tensor:
        return _take(torch.cat(parts, dim=-1), self._order)

    def _parts(self, state: HyperAdamState, like: list[Tensor]) -> list[Part]:
        assert self._rest is not None
        return [Part(like[0], state), Part(like[1], self._rest)]


def _chosen(
    state: HyperAdamState, some: Tensor, memory: HyperAdamState | None = None
) -> HyperAdamState:
    """The state of some coordinates, in ``memory`` if it has that size."""
    shapes = [(*x.shape[:-1], len(some)) for x in state]
    if memory is None or [x.shape for x in memory] != shapes:
        memory = HyperAdamState(*(x.new_empty(s) for x, s in zip(state, shapes, strict=True)))
    for x, target in zip(state, memory, strict=True):
        _take(x.detach(), some, target)
    return memory


def _take(x: Tensor, some: Tensor, out: Tensor | None = None) -> Tensor:
    """Some coordinates of ``x (..., p)``; several times as fast as torch takes them."""
    if out is None:
        out = x.new_empty(*x.shape[:-1], len(some))
    # "clip" goes without a buffer, and no number is outside
    np.take(x.numpy(), some.numpy(), axis=-1, out=out.numpy(), mode="clip")
    return out
