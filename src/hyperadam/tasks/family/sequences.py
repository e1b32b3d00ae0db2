"""Learners of sequences: GRUs, LSTMs and transformers, all runs on one shared batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, scaled_dot_product_attention, unfold

from hyperadam.tasks.family.networks import TOUCH, linear, normalise, pair, shared_linear, tanh
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
    """Blocks, normalised first: attention, then a layer four times as wide.

    With ``symbols`` it reads ``(n, length)`` of them and answers at every place, looking back only.
    Without, it reads images cut into ``length`` squares of ``patch × patch`` pixels and
    ``channels``, and answers once.
    """

    symbols: int
    width: int
    length: int
    heads: int = 2
    depth: int = 1
    patch: int = 0
    channels: int = 1
    classes: int = 10

    def __str__(self) -> str:
        of = f"{self.symbols} symbols" if self.symbols else f"squares of {self.patch}"
        return f"transformer {self.depth} × {self.width}, {self.length} {of}"

    def slots(self) -> list[Slot]:
        d = self.width
        inputs = self.channels * self.patch**2
        first = dense(inputs, d) if self.patch else [Slot((self.symbols, d), "embedding")]
        block = [
            *norm(d),
            *dense(d, 3 * d),
            *dense(d, d),
            *norm(d),
            *dense(d, 4 * d),
            *dense(4 * d, d),
        ]
        last = dense(d, self.symbols or self.classes)
        return [*first, Slot((self.length, d), "embedding"), *block * self.depth, *norm(d), *last]

    def work(self) -> float:
        d, places = self.width, self.length
        block = 2.0 * (12 * d * d + 2 * places * d) + TOUCH * (20 * d + 2 * self.heads * places)
        ends = 2.0 * d * (self.symbols + self.channels * self.patch**2)
        # attention over short windows has matrices too small to be fast
        return places * (self.depth * block + ends)

    def calls(self) -> int:
        return 10 + 40 * self.depth

    def __call__(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        rest = iter(weights)
        runs, d, n = len(weights[0]), self.width, len(x)
        if self.patch:
            squares = unfold(x, self.patch, stride=self.patch).transpose(1, 2).flatten(0, 1)
            h = shared_linear(*pair(rest), squares)
        else:
            h = next(rest).index_select(1, x.flatten())
        h = h.view(runs, n, self.length, d) + next(rest).unsqueeze(1)
        h = h.flatten(1, 2)  # (runs, n * length, d)
        for _ in range(self.depth):
            h = self._block(h, rest, n)
        h = normalise(h, *pair(rest))
        if self.patch:
            h = h.view(runs, n, self.length, d).mean(2)
        return linear(*pair(rest), h)

    def _block(self, h: Tensor, rest: Iterator[Tensor], n: int) -> Tensor:
        """``h (runs, n * length, d)`` after attention and the wide layer."""
        runs = len(h)
        normed = normalise(h, *pair(rest))
        qkv = linear(*pair(rest), normed).view(runs * n, self.length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (runs * n, heads, length, size)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=not self.patch)
        h = h + linear(*pair(rest), mixed.transpose(1, 2).reshape(h.shape))
        normed = normalise(h, *pair(rest))
        inner = gelu(linear(*pair(rest), normed))
        return h + linear(*pair(rest), inner)
