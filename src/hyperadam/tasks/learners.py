"""The learners of the paper as plain functions of weights that carry a leading dimension of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import conv2d, elu, linear, max_pool2d, relu

from hyperadam.tasks.base import Shape

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "elu": elu,
    "tanh": torch.tanh,
}


class Classifier(Protocol):
    """A network from images to logits."""

    @property
    def dropout_units(self) -> int:
        """Units that dropout acts on; 0 means no dropout."""

    def shapes(self) -> list[Shape]:
        """The shapes of its weights, in the order of the flat vector."""

    def __call__(self, weights: Sequence[Tensor], x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``weights`` each ``(runs, *shape)``, ``x (runs, n, channels, height, width)``, and for dropout a ``mask`` of zeros
        and ones ``(runs, n, units)``; logits ``(runs, classes, n)``."""


def size(shapes: Sequence[Shape]) -> int:
    """How many numbers tensors of these shapes hold."""
    return sum(math.prod(shape) for shape in shapes)


def unflatten(params: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    """Views ``(runs, *shape)`` of a flat ``(runs, p)``, in the order ``torch.nn`` lists parameters: weight, then bias."""
    parts = torch.split(params, [math.prod(shape) for shape in shapes], dim=1)
    return [part.view(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]


@dataclass(frozen=True)
class MLP:
    """Fully connected layers of ``sizes`` (inputs, hidden …, classes), an activation between every two."""

    sizes: Shape
    activation: str = "sigmoid"
    dropout_units: int = 0

    def __str__(self) -> str:
        return f"MLP {'-'.join(map(str, self.sizes))} {self.activation}"

    def shapes(self) -> list[Shape]:
        return [shape for i, o in pairwise(self.sizes) for shape in ((o, i), (o,))]

    def __call__(self, weights: Sequence[Tensor], x: Tensor, mask: Tensor | None = None) -> Tensor:
        # units before examples: this side of the product is a third faster than x @ W.T
        h = x.flatten(2).transpose(1, 2)
        for k in range(0, len(weights), 2):
            if k:
                h = ACTIVATIONS[self.activation](h)
            h = torch.baddbmm(weights[k + 1].unsqueeze(-1), weights[k], h)
        return h


@dataclass(frozen=True)
class CNN:
    """Blocks of 3×3 convolutions with ReLU, 2×2 max-pooling after each block, then fully connected layers.

    ``batch_norm`` follows each ReLU: every position is normalised by its mean and variance over the batch, with no scale
    or offset. There are no running averages: a test batch is normalised by its own statistics. ``dropout`` drops half of
    the last layer's inputs.
    """

    image: Shape
    blocks: tuple[Shape, ...]
    hidden: Shape = ()
    classes: int = 10
    batch_norm: bool = False
    dropout: bool = False

    def __str__(self) -> str:
        layers = [f"{'-'.join(map(str, block))}-pool" for block in self.blocks]
        extras = ", batch norm" * self.batch_norm + ", dropout" * self.dropout
        return f"CNN {'-'.join([*layers, *map(str, self.hidden), str(self.classes)])}{extras}"

    @property
    def features(self) -> int:
        """Units that come out of the last pooling."""
        _, height, width = self.image
        halvings = len(self.blocks)
        return self.blocks[-1][-1] * (height >> halvings) * (width >> halvings)

    @property
    def dropout_units(self) -> int:
        return (self.features, *self.hidden)[-1] if self.dropout else 0

    def shapes(self) -> list[Shape]:
        channels = [self.image[0], *(c for block in self.blocks for c in block)]
        units = [self.features, *self.hidden, self.classes]
        kernels = [shape for i, o in pairwise(channels) for shape in ((o, i, 3, 3), (o,))]
        return kernels + [shape for i, o in pairwise(units) for shape in ((o, i), (o,))]

    def __call__(self, weights: Sequence[Tensor], x: Tensor, mask: Tensor | None = None) -> Tensor:
        # one run after the other: grouped convolutions over runs are a fifth slower and hold all activations at once
        runs = range(len(x))
        return torch.stack(
            [
                self.one_run(iter([w[r] for w in weights]), x[r], None if mask is None else mask[r])
                for r in runs
            ]
        )

    def one_run(self, weights: Iterator[Tensor], h: Tensor, mask: Tensor | None) -> Tensor:
        """``h (n, channels, height, width)`` to logits ``(classes, n)``."""
        h = channels_last(h)
        for block in self.blocks:
            for k in range(len(block)):
                h = conv2d(h, next(weights), next(weights), padding=1)
                if self.batch_norm:
                    h = batch_norm(relu(h))
                elif k < len(block) - 1:
                    h = relu(h)
            h = max_pool2d(h, 2)
            if not self.batch_norm:
                # the block's last ReLU: after pooling it has a quarter of the work and the same values and gradients
                h = relu(h)
        h = h.flatten(1)
        for _ in self.hidden:
            h = relu(linear(h, next(weights), next(weights)))
        if mask is not None:
            h = h * (2 * mask.to(h.dtype))
        return linear(h, next(weights), next(weights)).T


def channels_last(h: Tensor) -> Tensor:
    """The same ``h (n, channels, height, width)`` with channels innermost in memory, where convolutions and pooling are faster.
    ``contiguous(memory_format=...)`` would leave a single channel's strides as they are, and the next layers' with them."""
    return h.movedim(1, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 1)


def batch_norm(h: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Every position of ``h (n, ...)`` brought to mean 0 and variance 1 over the batch."""
    last = h.movedim(1, -1)
    return (
        functional.batch_norm(last.flatten(1), None, None, training=True, eps=epsilon)
        .view_as(last)
        .movedim(-1, 1)
    )


@dataclass(frozen=True)
class LSTM:
    """A stack of LSTM layers on a sequence of numbers, and a linear read-out of the last hidden state.

    Gates in the order input, forget, candidate, output, as in ``torch.nn.LSTM``, but with one bias a layer.
    """

    units: int = 20
    layers: int = 1

    def __str__(self) -> str:
        return f"LSTM {self.units}" + f", {self.layers} layers" * (self.layers > 1)

    def shapes(self) -> list[Shape]:
        u = self.units
        stack = [
            shape
            for k in range(self.layers)
            for shape in ((4 * u, u if k else 1), (4 * u, u), (4 * u,))
        ]
        return [*stack, (1, u), (1,)]

    def __call__(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        """``x (runs, length, n)`` to predictions ``(runs, n)``."""
        *stack, w_out, b_out = weights
        sequence = [step.unsqueeze(1) for step in x.unbind(1)]
        for k in range(0, len(stack), 3):
            sequence = self.layer(sequence, *stack[k : k + 3])
        return torch.baddbmm(b_out.unsqueeze(-1), w_out, sequence[-1]).squeeze(1)

    def layer(self, sequence: list[Tensor], w_x: Tensor, w_h: Tensor, b: Tensor) -> list[Tensor]:
        """The hidden states ``(runs, units, n)`` that follow inputs ``(runs, inputs, n)``."""
        states: list[Tensor] = []
        c: Tensor | None = None
        for x in sequence:
            # a single input is a product of numbers: as a matrix product its gradient would depend on the company of runs
            gates = (torch.baddbmm if x.shape[1] > 1 else torch.addcmul)(b.unsqueeze(-1), w_x, x)
            if states:
                gates = torch.baddbmm(gates, w_h, states[-1])
            i, f, z, o = gates.chunk(4, dim=1)
            new = torch.sigmoid(i) * torch.tanh(z)
            c = new if c is None else torch.sigmoid(f) * c + new
            states.append(torch.sigmoid(o) * torch.tanh(c))
        return states
