"""HyperAdam's step in C++, forward and backward: every tensor of a step goes down in one table of addresses."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyperadam.kernels.base import Kernel, Part
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


class Batch(NamedTuple):
    """Parts as C reads them: its struct ``Part`` is a row of the table, its ``Motion`` a pair of the motions."""

    parts: Sequence[Part]  # keeps the tensors behind the addresses alive
    runs: int
    coordinates: int
    table: array[int]
    motions: array[float]


class NativeKernel(Kernel):
    """The C++ backends of HyperAdam: a float32 rule on the CPU, bfloat16 state, gradients and parameters too."""

    rule: HyperAdamRule
    dtypes = (torch.float32, torch.bfloat16)

    def __init__(self, rule: HyperAdamRule, name: str, state_dtype: torch.dtype | None = None) -> None:
        super().__init__(rule, state_dtype)
        self.name = name
        self._functions = load_functions(name, ("largest", *GRAIN))
        self._parameters = tuple(rule.parameters())
        self._key: tuple[Any, ...] | None = None
        self._flat: Tensor
        self._rule: _Rule

    def admit(self, parts: Iterable[Part], runs: int = 1) -> Batch:
        parts, coordinates, table, motions = list(parts), 0, array("q"), array("d")
        state_bfloat16, rows = BFLOAT16[self.state_dtype], self._rows
        for part in parts:
            grad, state, param, lr, decay, seed = part
            size = grad.numel()
            n = size // runs
            addresses = [x.data_ptr() for x in state]
            # the quick look; what it does not like is looked at again, and named
            if not (
                param.numel() == size
                and all(x.numel() == size * r and x.is_contiguous() for x, r in zip(state, rows, strict=True))
                and all(x.dtype is self.state_dtype and x.is_cpu for x in state)
                and grad.is_contiguous()
                and param.is_contiguous()
                and grad.is_cpu
                and param.is_cpu
                and grad.dtype in BFLOAT16
                and param.dtype in BFLOAT16
            ):
                self._check(part, runs)
            table.extend((n, grad.data_ptr(), BFLOAT16[grad.dtype], n, param.data_ptr(), BFLOAT16[param.dtype]))
            table.extend(addresses)
            table.extend((state_bfloat16, seed))
            motions.extend((lr, decay))
            coordinates += size
        return Batch(parts, runs, coordinates, table, motions)

    def largest(self, grads: Sequence[Tensor]) -> list[float]:
        table = array("q")
        for grad in grads:
            if not (grad.is_cpu and grad.is_contiguous() and grad.dtype in BFLOAT16):
                return super().largest(grads)
            table.extend((grad.numel(), grad.data_ptr(), BFLOAT16[grad.dtype]))
        out = array("f", bytes(4 * len(grads)))
        self._functions["largest"](ctypes.c_int64(len(grads)), _address(table), _address(out))
        return out.tolist()

    def sums(self, batch: Batch, earlier: Sums) -> Tensor:
        columns = self.rule.state_size if earlier else 1 + self.rule.candidates
        out = torch.empty(batch.runs, columns, dtype=torch.float64)
        self._call("sums", batch, *_sums(earlier, 1), _tensor(out))
        return out

    def step_(self, batch: Batch, sums: Sums) -> None:
        self._call("step", batch, *_sums(sums, 2), _address(batch.motions), None)

    # For the tape: the state is kept, and gone back through ---------------------------------------------------------

    def step(self, batch: Batch, sums: Sums, new: Batch) -> None:
        """One step that keeps the old state: the new one goes to the part ``new``, and the update to its ``param``."""
        self._call("step", batch, *_sums(sums, 2), _address(batch.motions), _address(new.table))

    def step_back(self, batch: Batch, sums: Sums, d_new: Batch, d_old: Batch) -> Weights:
        """From the adjoints of the new state and of the update, which is ``d_new.grad``: fills those of the old state and of
        the gradient, which is ``d_old.param``; returns those of the weights."""
        weights = self._weights()
        d_flat = torch.zeros(sum(x.numel() for x in weights), dtype=torch.float64)
        if batch.coordinates:
            self._call("step_back", batch, *_sums(sums, 2), _address(d_new.table), _address(d_old.table), _tensor(d_flat))
        pieces = d_flat.float().split([x.numel() for x in weights])
        return Weights(*(d.view(x.shape) for d, x in zip(pieces, weights, strict=True)))

    def _call(self, function: str, batch: Batch, *arguments: Any) -> None:
        self._weights()
        count = () if function == "step_back" else (ctypes.c_int64(len(batch.parts)),)
        self._functions[function](
            ctypes.byref(self._rule),
            ctypes.c_int32(threads(batch.coordinates, GRAIN[function])),
            ctypes.c_int64(batch.runs),
            *count,
            _address(batch.table),
            *arguments,
        )

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
