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
        sizes = torch.empty(here.last - here.first, batch.runs, dtype=torch.float64)
        self._call("step2", batch, motions, here, here.mixtures, sizes, totals)
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
        self._call("turn2", batch, motions, here, directions, sizes, totals)

    def _call(
        self,
        function: str,
        batch: Any,
        motions: Sequence[Motion],
        here: Round,
        matrices: Sequence[Tensor | None],
        sizes: Tensor,
        totals: Tensor,
    ) -> None:
        """Call C with the parts of a round; ``matrices`` are mixtures or directions."""
        table = array("d", chain.from_iterable(motions[here.first : here.last]))
        pointers = array("q", [0 if x is None else x.data_ptr() for x in matrices])
        count = ctypes.c_int32(threads(batch.coordinates, GRAIN))
        rule = (ctypes.byref(self._rule),) if function == "step2" else ()
        self._functions[function](
            *rule,
            count,
            *batch.span(here.first, here.last, self.row),
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
