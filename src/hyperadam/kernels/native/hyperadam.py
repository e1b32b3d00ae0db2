"""HyperAdam's step in C++: every tensor of a step goes down in one table of addresses."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hyperadam.kernels.base import Batch, Kernel, Motion, Part
from hyperadam.kernels.native.library import load_functions, threads
from hyperadam.kernels.packing import Weights, pack
from hyperadam.rules.base import Sums
from hyperadam.rules.hyperadam import HyperAdamRule

#: Coordinates that are worth a thread of their own: waking it costs as much as a fraction of these.
GRAIN = {"sums": 262_144, "step": 4096, "step_back": 2048}

BFLOAT16 = {torch.float32: 0, torch.bfloat16: 1}


class _Rule(ctypes.Structure):
    _fields_ = (
        ("J", ctypes.c_int32),
        ("preprocess", ctypes.c_int32),
        ("lstm", ctypes.c_int32),
        ("normalize_state", ctypes.c_int32),
        ("decay_bound", ctypes.c_float),
        ("weights", ctypes.c_void_p),
    )


#: Numbers in a row of the table, which is the C struct ``Part``, and the gradient's place there.
ROW, GRAD, GRAD_BFLOAT16 = 13, 1, 2


class NativeBatch(Batch):
    """Parts as C reads them, a row of the table each."""

    table: array[int]


class NativeKernel(Kernel):
    """The C++ backends of HyperAdam: float32 on the CPU; tensors may be bfloat16, too."""

    rule: HyperAdamRule
    dtypes = (torch.float32, torch.bfloat16)

    def __init__(
        self, rule: HyperAdamRule, name: str, state_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(rule, state_dtype)
        self.name = name
        self._functions = load_functions(name, ("largest", *GRAIN))
        self._parameters = tuple(rule.parameters())
        self._key: tuple[Any, ...] | None = None
        self._flat: Tensor
        self._rule: _Rule

    def admit(self, parts: Iterable[Part], runs: int = 1) -> NativeBatch:
        batch, table = NativeBatch(list(parts), runs), array("q")
        for param, state in batch.parts:
            n = self._check(param, state, runs)
            table.extend((n, 0, 0, n, param.data_ptr(), BFLOAT16[param.dtype]))
            table.extend(x.data_ptr() for x in state)
            table.append(BFLOAT16[self.state_dtype])
        batch.table = table
        return batch

    def take(self, batch: NativeBatch, grads: Sequence[Tensor]) -> None:
        for part, grad in zip(batch.parts, grads, strict=True):
            # a quick look; what it does not like is looked at again, and named
            if not (
                grad.is_cpu
                and grad.dtype in BFLOAT16
                and grad.is_contiguous()
                and grad.numel() == part.param.numel()
            ):
                self._check_tensor("gradient", grad, part.param.numel())
        batch.grads = grads
        batch.table[GRAD::ROW] = array("q", [grad.data_ptr() for grad in grads])
        batch.table[GRAD_BFLOAT16::ROW] = array("q", [BFLOAT16[grad.dtype] for grad in grads])

    def largest(self, batch: NativeBatch) -> list[float]:
        out = array("f", bytes(4 * len(batch.parts)))
        self._functions["largest"](*self._table(batch), _address(out))
        return out.tolist()

    def sums(self, batch: NativeBatch, earlier: Sums) -> Tensor:
        columns = self.rule.state_size if earlier else 1 + self.rule.candidates
        out = torch.empty(batch.runs, columns, dtype=torch.float64)
        self._call("sums", batch, *_sums(earlier, 1), _tensor(out))
        return out

    def step_(self, batch: NativeBatch, sums: Sums, motions: Sequence[Motion]) -> None:
        table = array("d", chain.from_iterable(motions))
        self._call("step", batch, *_sums(sums, 2), _address(table), None)
        batch.grads = ()

    # For the tape: the state is kept, and gone back through ---------------------------------

    def step(self, batch: NativeBatch, sums: Sums, new: NativeBatch) -> None:
        """One step that keeps the old state: the new one goes to ``new``, the update to its
        param."""
        self._call("step", batch, *_sums(sums, 2), None, _address(new.table))

    def step_back(
        self, batch: NativeBatch, sums: Sums, d_new: NativeBatch, d_old: NativeBatch
    ) -> Weights:
        """From the adjoints of the new state and of the update (``d_new``'s gradient): fills those
        of the old state and of the gradient (``d_old``'s param), returns those of the weights."""
        weights = self._weights()
        d_flat = torch.zeros(sum(x.numel() for x in weights), dtype=torch.float64)
        if batch.coordinates:
            self._call(
                "step_back",
                batch,
                *_sums(sums, 2),
                _address(d_new.table),
                _address(d_old.table),
                _tensor(d_flat),
            )
        pieces = d_flat.float().split([x.numel() for x in weights])
        return Weights(*(d.view(x.shape) for d, x in zip(pieces, weights, strict=True)))

    def _call(self, function: str, batch: NativeBatch, *arguments: Any) -> None:
        self._weights()
        count = ctypes.c_int32(threads(batch.coordinates, GRAIN[function]))
        self._functions[function](ctypes.byref(self._rule), count, *self._table(batch), *arguments)

    @staticmethod
    def _table(batch: NativeBatch) -> tuple[ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]:
        return ctypes.c_int64(batch.runs), ctypes.c_int64(len(batch.parts)), _address(batch.table)

    def _weights(self) -> Weights:
        """The rule's meta-parameters as C reads them, packed anew when they have changed."""
        key = tuple((x.data_ptr(), x._version) for x in self._parameters)
        if key != self._key:
            rule, self._packed = self.rule, Weights(*(x.detach() for x in pack(self.rule)))
            self._key, self._flat = key, torch.cat([x.reshape(-1) for x in self._packed])
            options = rule.candidates, rule.preprocess, rule.lstm is not None, rule.normalize_state
            self._rule = _Rule(*options, rule.decay_bound or 0.0, self._flat.data_ptr())
        return self._packed


def _address(x: array[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.buffer_info()[0])


def _tensor(x: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


def _sums(sums: Sums, rounds: int) -> list[ctypes.c_void_p | None]:
    """The totals of each round, or nothing for a round that has none yet."""
    return [_tensor(sums[i]) if i < len(sums) else None for i in range(rounds)]
