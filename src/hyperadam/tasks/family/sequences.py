"""Learners of sequences: GRUs, LSTMs and a one-layer transformer, all runs on one shared batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, scaled_dot_product_attention

from hyperadam.tasks.family.networks import TOUCH, linear, normalise, pair, tanh
from hyperadam.tasks.family.tensors import Slot, dense, norm


@dataclass(frozen=True)
class Recurrent:
    """A GRU or an LSTM with the gates and biases of ``torch.nn``, and a linear read-out.

    Without ``symbols`` it reads numbers ``(n, length)`` and answers once, at the end. With them it
    reads symbols ``(n, length)``, each through an embedding of size ``embedding``, and answers at
    every place.
    """

    cell: str
    units: int
    length: int
    symbols: int = 0
    embedding: int = 0

    def __str__(self) -> str:
        of = f"{self.symbols} symbols" if self.symbols else "numbers"
        return f"{self.cell.upper()} {self.units}, {self.length} {of}"

    def _gates(self) -> int:
        return {"gru": 3, "lstm": 4}[self.cell] * self.units

    def slots(self) -> list[Slot]:
        u, gates, inputs = self.units, self._gates(), self.embedding or 1
        fans = (u, u)  # torch.nn starts all of a recurrent layer by its units alone
        cell = [
            Slot((gates, inputs), "weight", *fans),
            Slot((gates, u), "weight", *fans),
            Slot((gates,), "bias", *fans),
            Slot((gates,), "bias", *fans),
        ]
        table = [Slot((self.symbols, self.embedding), "embedding")] if self.symbols else []
        return [*table, *cell, *dense(u, self.symbols or 1)]

    def work(self) -> float:
        u, outputs = self.units, self.symbols or 1
        answers = self.length if self.symbols else 1
        products = self.length * self._gates() * (u + 1) + answers * u * outputs
        return 2.0 * products + TOUCH * (2 * self.length * self._gates() + answers * outputs)

    def calls(self) -> int:
        return 5 + self.length * 12

    def __call__(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        rest = iter(weights)
        table = next(rest) if self.symbols else None
        (w_x, w_h), (b_x, b_h) = pair(rest), pair(rest)
        if table is None:
            w, b = w_x.transpose(1, 2), b_x.unsqueeze(1)
            inputs = [torch.addcmul(b, x_t, w) for x_t in x.T.unsqueeze(-1)]
        else:  # what each symbol does to the gates is computed once, then looked up
            effects = linear(w_x, b_x, table)
            inputs = [effects.index_select(1, x_t) for x_t in x.T]
        step = self._gru if self.cell == "gru" else self._lstm
        h = w_h.new_zeros(len(w_h), len(x), self.units)
        states, c = [], h
        for gates in inputs:
            h, c = step(gates, linear(w_h, b_h, h), h, c)
            states.append(h)
        if self.symbols:
            h = torch.stack(states, dim=2).flatten(1, 2)
        return linear(*pair(rest), h)

    def _gru(self, x: Tensor, r: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        u = self.units
        reset, update = torch.sigmoid(x[..., : 2 * u] + r[..., : 2 * u]).chunk(2, dim=-1)
        new = tanh(torch.addcmul(x[..., 2 * u :], reset, r[..., 2 * u :]))
        return torch.lerp(new, h, update), c

    def _lstm(self, x: Tensor, r: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, z, o = (x + r).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * tanh(z)
        return torch.sigmoid(o) * tanh(c), c


@dataclass(frozen=True)
class Transformer:
    """One block, normalised first: causal attention with two heads, then a layer four times as wide.

    Reads symbols ``(n, length)`` and answers at every place.
    """

    symbols: int
    width: int
    length: int
    heads: int = 2

    def __str__(self) -> str:
        return f"transformer {self.width}, {self.length} of {self.symbols} symbols"

    def slots(self) -> list[Slot]:
        d = self.width
        return [
            Slot((self.symbols, d), "embedding"),
            Slot((self.length, d), "embedding"),
            *norm(d),
            *dense(d, 3 * d),
            *dense(d, d),
            *norm(d),
            *dense(d, 4 * d),
            *dense(4 * d, d),
            *norm(d),
            *dense(d, self.symbols),
        ]

    def work(self) -> float:
        d, places = self.width, self.length
        products = 12 * d * d + 2 * places * d + d * self.symbols
        # attention over short windows has matrices too small to be fast
        return places * (2.0 * products + TOUCH * (20 * d + 2 * self.heads * places))

    def calls(self) -> int:
        return 50

    def __call__(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        rest = iter(weights)
        (runs, _, d), (n, length) = weights[0].shape, x.shape
        h = next(rest).index_select(1, x.flatten()).view(runs, n, length, d)
        h = (h + next(rest).unsqueeze(1)).flatten(1, 2)  # (runs, n * length, d)

        normed = normalise(h, *pair(rest))
        qkv = linear(*pair(rest), normed).view(runs * n, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (runs * n, heads, length, size)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + linear(*pair(rest), mixed.transpose(1, 2).reshape(runs, n * length, d))

        normed = normalise(h, *pair(rest))
        inner = gelu(linear(*pair(rest), normed))
        h = h + linear(*pair(rest), inner)
        normed = normalise(h, *pair(rest))
        return linear(*pair(rest), normed)
