"""HyperAdam2's step in C++: every tensor of a step goes down in one table of addresses."""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hyperadam.kernels.base import Motion, Part
from hyperadam.kernels.native.library import threads
from hyperadam.kernels.native.table import TableBatch, TableKernel, address, tensor_address
from hyperadam.kernels.rounds import Round
from hyperadam.kernels.tensors import TensorKernel
from hyperadam.rules.hyperadam2 import HyperAdam2Rule
from hyperadam.rules.pace import fan_in

#: Coordinates that are worth a thread of their own.
GRAIN = 65_536


class _Rule(ctypes.Structure):
    _fields_ = (
        ("betas", ctypes.c_double * 3),
        ("gammas", ctypes.c_double * 2),
        ("weights", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
    )


class NativeTensorKernel(TableKernel, TensorKernel):
    """The C++ backends of HyperAdam2. A row of the table is the C struct ``Part2``."""

    rule: HyperAdam2Rule
    row, largest_function = 13, "largest2"

    def __init__(
        self, rule: HyperAdam2Rule, name: str, state_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(rule, name, state_dtype, ("step2", "turn2", "direction2", "remember2"))
        self._flat: Tensor
        self._rule: _Rule

    @staticmethod
    def fits(rule: HyperAdam2Rule) -> bool:
        """Whether the kernel is built for a rule of these sizes."""
        sizes = len(rule.slow), len(rule.betas), len(rule.gammas)
        return (*sizes, rule.config["hidden"], rule.config["units"]) == (3, 4, 2, 24, 8)

    def admit(self, parts: Iterable[Part], runs: int = 1) -> TableBatch:
        parts = list(parts)
        batch = TableBatch(parts, runs, [self._row(part, runs) for part in parts])
        self._check_shapes(batch)
        self._lay_out(batch)
        return batch

    def _row(self, part: Part, runs: int) -> list[int]:
        memory, shape = self._check_memory(part.memory, runs), part.shape
        whole = math.prod(shape), fan_in(shape), len(shape)
        return [*self._begin_row(part, runs), memory.data_ptr(), *whole]

    def _lay_out(self, batch: Any) -> None:
        super()._lay_out(batch)
        # C turns whole matrices as it steps: torch has none to turn
        batch.rounds = [here._replace(whole=[]) for here in batch.rounds]
        #: By a round's first part, what goes down at every step: its parts, where their mixtures
        #: go, and where C puts the sizes of their steps.
        batch.calls = {
            here.first: (
                batch.span(here.first, here.last, self.row),
                _pointers(here.mixtures),
                torch.empty(here.last - here.first, batch.runs, dtype=torch.float64),
            )
            for here in batch.rounds
        }

    def direction(self, mixture: Tensor, shape: Sequence[int]) -> Tensor:
        if not self.rule.turns(shape):
            return mixture
        mixture = mixture.contiguous()
        made = torch.empty_like(mixture)
        sizes = mixture.shape[0], shape[0], fan_in(shape)
        self._functions["direction2"](
            *map(ctypes.c_int64, sizes), tensor_address(mixture), tensor_address(made)
        )
        return made

    def mix(self, batch: Any, motions: Sequence[Motion], here: Round, totals: Tensor) -> Tensor:
        self._pack(batch.runs)
        span, mixtures, sizes = batch.calls[here.first]
        table = _table(motions, here)
        self._functions["step2"](
            ctypes.byref(self._rule),
            ctypes.c_int32(threads(batch.coordinates, GRAIN)),
            *span,
            address(table),
            address(mixtures),
            tensor_address(sizes),
            tensor_address(totals[here.first :] if here.first else totals),
        )
        return sizes

    def turn(
        self,
        batch: Any,
        motions: Sequence[Motion],
        here: Round,
        directions: Sequence[Tensor | None],
        sizes: Tensor,
        totals: Tensor,
    ) -> None:
        table, pointers = _table(motions, here), _pointers(directions)
        self._functions["turn2"](
            ctypes.c_int32(threads(batch.coordinates, GRAIN)),
            *batch.calls[here.first][0],
            address(table),
            address(pointers),
            tensor_address(sizes),
            tensor_address(totals[here.first :]),
        )

    def remember(self, batch: Any, totals: Tensor) -> None:
        totals = totals.cpu().contiguous()
        self._functions["remember2"](*batch.arguments, tensor_address(totals))

    def _pack(self, runs: int) -> None:
        """The meta-parameters as C reads them, read anew when they have changed."""
        version = self._version()
        if version != self._version_read:
            slow = (ctypes.c_double * 3)(*self.rule.slow)
            gammas = (ctypes.c_double * 2)(*self.rule.gammas)
            pieces = [x.detach().flatten(-2) for x in self._parameters]
            self._flat, self._version_read = torch.cat(pieces, dim=-1).contiguous(), version
            stride = self._flat.shape[-1] if self._flat.dim() > 1 else 0
            self._rule = _Rule(slow, gammas, self._flat.data_ptr(), stride)
        if self._rule.stride and len(self._flat) != runs:
            raise ValueError(f"the rule has weights for {len(self._flat)} runs, expected {runs}")


def _table(motions: Sequence[Motion], here: Round) -> array[float]:
    """The motions of a round's parts as C reads them."""
    return array("d", chain.from_iterable(motions[here.first : here.last]))


def _pointers(tensors: Sequence[Tensor | None]) -> array[int]:
    """Addresses, 0 where there is nothing."""
    return array("q", [0 if x is None else x.data_ptr() for x in tensors])
