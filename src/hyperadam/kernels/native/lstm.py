"""LSTM layers in C++ in place of a rule's own: what RNNprop and DMoptimizer spend their time on."""

from __future__ import annotations

import copy
import ctypes
from typing import Any

import torch
from torch import Tensor, nn

from hyperadam.kernels.native.library import Rows, load_functions, rows, threads
from hyperadam.rules.base import UpdateRule
from hyperadam.rules.layers import LSTM

#: Coordinates that are worth a thread of their own.
GRAIN = {"lstm_forward": 4096, "lstm_backward": 2048}


class _Lstm(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("inputs", "units", "threads")),
        *((name, ctypes.c_void_p) for name in ("theta_x", "theta_s", "b")),
    )


def with_native_lstms(
    rule: UpdateRule[Any], instruction_set: str, in_place: bool = False
) -> UpdateRule[Any]:
    """A twin of ``rule`` with its meta-parameters and ``forward``, and LSTM layers in C++.

    ``in_place`` layers have no derivatives: they overwrite the ``s`` and ``c`` that they are given.
    """
    twin = copy.copy(rule)
    twin._modules = dict(rule._modules)  # the shallow copy shares the rule's own
    for name, layer in rule.named_children():
        if isinstance(layer, LSTM):
            setattr(twin, name, NativeLSTM(layer, instruction_set, in_place))
    return twin


class NativeLSTM(nn.Module):
    """The layer's ``forward`` for float32 on the CPU; anything else is left to the layer."""

    def __init__(self, layer: LSTM, instruction_set: str, in_place: bool = False) -> None:
        super().__init__()
        self.layer, self.in_place = layer, in_place
        self._functions = load_functions(instruction_set, GRAIN)

    def forward(self, x: Tensor, s: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.layer.theta_x.contiguous(), self.layer.theta_s.contiguous(), self.layer.b
        if any(t.device.type != "cpu" or t.dtype != torch.float32 for t in (x, s, c, *weights)):
            return self.layer(x, s, c)
        if not self.in_place or s.stride(-1) != 1 or c.stride(-1) != 1:  # C would overwrite a copy
            return _Layer.apply(self, x, s, c, *weights)
        self.call("lstm_forward", weights, *(_runs(t) for t in (x, s, c, s, c)))
        return s, c

    def call(
        self,
        function: str,
        weights: tuple[Tensor, ...],
        x: Tensor,
        *rest: Tensor,
        d_weights: tuple[Tensor, ...] = (),
    ) -> None:
        """Call C on ``(runs, rows, p)`` tensors with contiguous coordinates."""
        if x.numel() == 0:
            for d in d_weights:
                d.zero_()
            return
        runs, _, n = x.shape
        layers = [
            self._layer(w, threads(runs * n, GRAIN[function])) for w in (weights, d_weights) if w
        ]
        tensors: list[Rows | _Lstm] = [rows(t) for t in (x, *rest)]
        arguments = [ctypes.byref(a) for a in (*tensors, *layers[1:])]
        self._functions[function](
            ctypes.byref(layers[0]), ctypes.c_int64(runs), ctypes.c_int64(n), *arguments
        )

    @staticmethod
    def _layer(weights: tuple[Tensor, ...], threads: int) -> _Lstm:
        theta_x, theta_s, _ = weights
        return _Lstm(theta_x.shape[1], theta_s.shape[1], threads, *(w.data_ptr() for w in weights))


class _Layer(torch.autograd.Function):
    """One step as an operation of autograd. It keeps its inputs alone, and computes again."""

    @staticmethod
    def forward(
        ctx: Any, lstm: NativeLSTM, x: Tensor, s: Tensor, c: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        new_s, new_c = (torch.empty(t.shape) for t in (s, c))
        lstm.call("lstm_forward", weights, *(_runs(t) for t in (x, s, c, new_s, new_c)))
        ctx.lstm = lstm
        ctx.save_for_backward(x, s, c, *weights)
        return new_s, new_c

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_new_s: Tensor, d_new_c: Tensor) -> tuple[Tensor | None, ...]:
        x, s, c, *weights = ctx.saved_tensors
        d_x, d_s, d_c, *d_weights = (torch.empty(t.shape) for t in ctx.saved_tensors)
        tensors = x, s, c, d_new_s, d_new_c, d_x, d_s, d_c
        ctx.lstm.call(
            "lstm_backward",
            tuple(weights),
            *(_runs(t) for t in tensors),
            d_weights=tuple(d_weights),
        )
        return None, d_x, d_s, d_c, *d_weights


def _runs(x: Tensor) -> Tensor:
    """Leading dimensions as one, coordinates contiguous."""
    x = x.reshape(x.shape[:-2].numel(), *x.shape[-2:])
    return x if x.stride(-1) == 1 else x.contiguous()
