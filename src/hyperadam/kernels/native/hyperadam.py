"""HyperAdam's step in C++: every tensor of a step goes down in one table of addresses."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hyperadam.kernels.base import Motion, Part
from hyperadam.kernels.matrices import Matrices, to_matrices
from hyperadam.kernels.native.library import threads
from hyperadam.kernels.native.table import TableBatch, TableKernel, address, tensor_address
from hyperadam.rules.base import Sums
from hyperadam.rules.hyperadam import HyperAdamRule

#: Coordinates that are worth a thread of their own: waking it costs as much as a fraction of these.
GRAIN = {"sums": 262_144, "step": 4096, "step_back": 2048}


class _Rule(ctypes.Structure):
    _fields_ = (
        ("J", ctypes.c_int32),
        ("preprocess", ctypes.c_int32),
        ("lstm", ctypes.c_int32),
        ("normalize_state", ctypes.c_int32),
        ("decay_bound", ctypes.c_float),
        ("weights", ctypes.c_void_p),
    )


class NativeKernel(TableKernel):
    """The C++ backends of HyperAdam. A row of the table is the C struct ``Part``."""

    rule: HyperAdamRule
    row, largest_function = 13, "largest"

    def __init__(
        self, rule: HyperAdamRule, name: str, state_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(rule, name, state_dtype, GRAIN)
        self._flat: Tensor
        self._rule: _Rule

    def admit(self, parts: Iterable[Part], runs: int = 1) -> TableBatch:
        batch = self.read(parts, runs)
        batch.scale = self._scale(batch)
        return batch

    def read(self, parts: Iterable[Part], runs: int = 1) -> TableBatch:
        """Parts for the tape, which moves none: they need no scale."""
        parts = list(parts)
        return TableBatch(parts, runs, [self._begin_row(part, runs) for part in parts])

    def sums(self, batch: TableBatch, earlier: Sums) -> Tensor:
        columns = self.rule.state_size if earlier else 1 + self.rule.candidates
        out = torch.empty(batch.runs, columns, dtype=torch.float64)
        self._call("sums", batch, *_sums(earlier, 1), tensor_address(out))
        return out

    def step_(self, batch: TableBatch, sums: Sums, motions: Sequence[Motion]) -> None:
        table = array("d", chain.from_iterable(motions))
        scale = None if batch.scale is None else tensor_address(batch.scale)
        self._call("step", batch, *_sums(sums, 2), address(table), scale, None)
        batch.grads = ()

    # For the tape: the state is kept, and gone back through ---------------------------------

    def step(self, batch: TableBatch, sums: Sums, new: TableBatch) -> None:
        """One step that keeps the old state: the new one goes to ``new``, the update to its
        param."""
        self._call("step", batch, *_sums(sums, 2), None, None, address(new.table))

    def step_back(
        self,
        batch: TableBatch,
        sums: Sums,
        d_new: TableBatch,
        d_old: TableBatch,
        whole: float = 1.0,
    ) -> Tensor:
        """From the adjoints of the new state and of the update (``d_new``'s gradient): fills those
        of the old state and of the gradient (``d_old``'s param), returns those of the weights,
        all in one vector.

        It goes back through the batch's first part alone. ``whole`` is how many times as long as
        this the vector is that the sums are of."""
        d_flat = torch.zeros(self.weights, dtype=torch.float64)
        if batch.coordinates:
            self._call(
                "step_back",
                batch,
                *_sums(sums, 2),
                ctypes.c_double(whole),
                address(d_new.table),
                address(d_old.table),
                tensor_address(d_flat),
            )
        return d_flat.float()

    @property
    def weights(self) -> int:
        """How many weights the rule has."""
        return sum(x.numel() for x in self._weights())

    def matrices(self, flat: Tensor) -> Matrices:
        """A vector of numbers, one for each weight, as the matrices they are of."""
        weights = self._weights()
        pieces = flat.split([x.numel() for x in weights])
        return Matrices(*(d.view(x.shape) for d, x in zip(pieces, weights, strict=True)))

    def _call(self, function: str, batch: TableBatch, *arguments: Any) -> None:
        self._weights()
        count = ctypes.c_int32(threads(batch.coordinates, GRAIN[function]))
        self._functions[function](ctypes.byref(self._rule), count, *batch.arguments, *arguments)

    def _weights(self) -> Matrices:
        """The rule's meta-parameters as C reads them, read anew when they have changed."""
        version = self._version()
        if version != self._version_read:
            rule = self.rule
            self._matrices = Matrices(*(x.detach() for x in to_matrices(rule)))
            self._flat = torch.cat([x.reshape(-1) for x in self._matrices])
            self._version_read = version
            options = rule.candidates, rule.preprocess, rule.lstm is not None, rule.normalize_state
            self._rule = _Rule(*options, rule.decay_bound or 0.0, self._flat.data_ptr())
        return self._matrices


def _sums(sums: Sums, rounds: int) -> list[ctypes.c_void_p | None]:
    """The totals of each round, or nothing for a round that has none yet."""
    return [tensor_address(sums[i]) if i < len(sums) else None for i in range(rounds)]
