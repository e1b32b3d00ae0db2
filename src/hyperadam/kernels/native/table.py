"""The tensors of a step as C reads them: one table of addresses, a row for each."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from hyperadam.kernels.base import Batch, Kernel, Part
from hyperadam.kernels.native.library import load_functions
from hyperadam.rules.base import UpdateRule

BFLOAT16 = {torch.float32: 0, torch.bfloat16: 1}
#: Where a row has its gradient and its parameter. It begins with these, two C structs
#: ``Numbers``: how many, where, and whether they are bfloat16.
GRAD, GRAD_BFLOAT16, PARAM = 1, 2, 4

_version_of = attrgetter("_version")


class TableBatch(Batch):
    """Parts with a row of the table each."""

    def __init__(self, parts: list[Part], runs: int, rows: Iterable[Sequence[int]]) -> None:
        super().__init__(parts, runs)
        self.table = array("q", chain.from_iterable(rows))
        #: How it goes down: the runs, the parts, the table.
        self.arguments = self.span(0, len(parts), 0)

    def span(
        self, first: int, last: int, row: int
    ) -> tuple[ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]:
        """The same for some parts, whose rows have so many numbers each."""
        counts = ctypes.c_int64(self.runs), ctypes.c_int64(last - first)
        begin = self.table.buffer_info()[0] + first * row * self.table.itemsize
        return *counts, ctypes.c_void_p(begin)


class TableKernel(Kernel):
    """What C++ backends have in common: float32 on the CPU; tensors may be bfloat16, too."""

    dtypes = (torch.float32, torch.bfloat16)
    #: Numbers in a row of the table, which is a C struct.
    row: ClassVar[int]
    #: The function that finds the largest gradients.
    largest_function: ClassVar[str]

    def __init__(
        self,
        rule: UpdateRule[Any],
        name: str,
        state_dtype: torch.dtype | None,
        functions: Iterable[str],
    ) -> None:
        super().__init__(rule, state_dtype)
        self.name = name
        self._functions = load_functions(name, (self.largest_function, *functions))
        self._parameters = tuple(rule.parameters())
        #: Of what version the meta-parameters were read last.
        self._version_read: tuple[Any, ...] | None = None

    def take(self, batch: TableBatch, grads: Sequence[Tensor]) -> None:
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
        batch.table[GRAD :: self.row] = array("q", [grad.data_ptr() for grad in grads])
        batch.table[GRAD_BFLOAT16 :: self.row] = array("q", [BFLOAT16[g.dtype] for g in grads])

    def place(self, batch: TableBatch, params: Sequence[Tensor]) -> None:
        """Lay in other parameters, contiguous and of the sizes and dtypes of those before."""
        batch.table[PARAM :: self.row] = array("q", [param.data_ptr() for param in params])

    def largest(self, batch: TableBatch) -> list[float]:
        out = array("f", bytes(4 * len(batch.parts)))
        self._functions[self.largest_function](*batch.arguments, address(out))
        return out.tolist()

    def _begin_row(self, part: Part, runs: int) -> list[int]:
        """Gradient, parameter and state of a part, which is looked at here."""
        n = self._check(part.param, part.state, runs)
        numbers = [n, 0, 0, n, part.param.data_ptr(), BFLOAT16[part.param.dtype]]
        state = [x.data_ptr() for x in part.state]
        return [*numbers, *state, BFLOAT16[self.state_dtype]]

    def _version(self) -> tuple[Any, ...]:
        """What changes with the rule's meta-parameters."""
        parameters = self._parameters
        return *map(Tensor.data_ptr, parameters), *map(_version_of, parameters)


def address(x: array[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.buffer_info()[0])


def tensor_address(x: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())
