"""HyperAdam's step in C++, forward and backward, through a plain C interface."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from hyperadam.kernels.fused import FusedKernel
from hyperadam.kernels.native.library import Rows, load_functions, rows, threads
from hyperadam.kernels.packing import Weights
from hyperadam.rules.base import Sums
from hyperadam.rules.hyperadam import HyperAdamRule, HyperAdamState

#: Coordinates that are worth a thread of their own: waking it costs as much as a fraction of these.
GRAIN = {"column_sums": 262_144, "forward": 4096, "backward": 2048}


class _Rule(ctypes.Structure):
    _fields_ = (
        ("J", ctypes.c_int32),
        ("preprocess", ctypes.c_int32),
        ("lstm", ctypes.c_int32),
        ("normalize_state", ctypes.c_int32),
        ("decay_bound", ctypes.c_float),
        ("threads", ctypes.c_int32),
        ("weights", ctypes.c_void_p),
    )


class _State(ctypes.Structure):
    _fields_ = tuple((name, Rows) for name in HyperAdamState._fields)


class _Sums(ctypes.Structure):
    _fields_ = (("first", ctypes.c_void_p), ("second", ctypes.c_void_p))


class NativeKernel(FusedKernel):
    """The C++ backends of HyperAdam: float32 on the CPU; anything else is left to torch."""

    def __init__(self, rule: HyperAdamRule, instruction_set: str) -> None:
        super().__init__(rule)
        self.name = instruction_set
        self._functions = load_functions(instruction_set, GRAIN)
        self._flattened: Weights | None = None
        self._flat: Tensor

    def supports(self, grad: Tensor, state: HyperAdamState) -> bool:
        return all(x.device.type == "cpu" and x.dtype == torch.float32 for x in (grad, *state))

    def sums(self, weights: Weights, grad: Tensor, state: HyperAdamState, sums: Sums) -> Tensor:
        columns = self.rule.state_size if sums else 1 + self.rule.candidates
        out = torch.empty(grad.shape[0], columns, dtype=torch.float64)
        self._call("column_sums", weights, grad, rows(grad), _state(state), _sums(sums), ctypes.c_void_p(out.data_ptr()))
        return out

    def forward(
        self, weights: Weights, grad: Tensor, state: HyperAdamState, sums: Sums, new: HyperAdamState, update: Tensor
    ) -> None:
        self._call("forward", weights, grad, rows(grad), _state(state), _sums(sums), _state(new), rows(update))

    def backward(
        self,
        weights: Weights,
        grad: Tensor,
        state: HyperAdamState,
        sums: Sums,
        d_update: Tensor,
        d_new: HyperAdamState,
        d_grad: Tensor,
        d_old: HyperAdamState,
    ) -> Weights:
        d_flat = torch.empty(sum(x.numel() for x in weights), dtype=torch.float64)
        out = ctypes.c_void_p(d_flat.data_ptr())
        self._call(
            "backward",
            *(weights, grad, rows(grad), _state(state), _sums(sums)),
            *(rows(d_update), _state(d_new), rows(d_grad), _state(d_old), out),
        )
        pieces = d_flat.float().split([x.numel() for x in weights])
        return Weights(*(d.view(x.shape) for d, x in zip(pieces, weights, strict=True)))

    def _call(self, function: str, weights: Weights, grad: Tensor, *arguments: ctypes.Structure | ctypes.c_void_p) -> None:
        if weights is not self._flattened:
            self._flattened, self._flat = weights, torch.cat([x.reshape(-1) for x in weights])
        rule, (runs, n) = self.rule, grad.shape
        options = _Rule(
            rule.candidates,
            rule.preprocess,
            rule.lstm is not None,
            rule.normalize_state,
            rule.decay_bound or 0.0,
            threads(runs * n, GRAIN[function]),
            self._flat.data_ptr(),
        )
        if grad.numel() == 0:
            return
        references = [a if isinstance(a, ctypes.c_void_p) else ctypes.byref(a) for a in arguments]
        self._functions[function](ctypes.byref(options), ctypes.c_int64(runs), ctypes.c_int64(n), *references)


def _state(state: HyperAdamState) -> _State:
    return _State(*(rows(x) for x in state))


def _sums(sums: Sums) -> _Sums:
    return _Sums(*(x.data_ptr() for x in sums))
