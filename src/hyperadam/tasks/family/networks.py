"""Feed-forward learners: weights have a dimension of runs, the batch is shared by all runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, elu, gelu, layer_norm, max_pool2d

from hyperadam.tasks.family.tensors import Slot, dense, norm


def tanh(x: Tensor) -> Tensor:
    """``torch.tanh`` to within rounding of 1; that takes six times as long as a sigmoid."""
    return torch.sigmoid(2 * x) * 2 - 1


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": tanh,
    "sigmoid": torch.sigmoid,
    "gelu": gelu,
    "elu": elu,
}


#: What it costs to make, activate and go back through a number, in operations of matrix products.
TOUCH = 60.0


class Network(Protocol):
    """A learner of many runs that see the same examples."""

    def slots(self) -> list[Slot]:
        """Its tensors, without runs."""

    def work(self) -> float:
        """What one example costs a run, forward: the operations of its matrix products, and
        :data:`TOUCH` for each number that lies between them."""

    def calls(self) -> int:
        """How many torch functions a forward pass calls, about."""

    def __call__(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        """``weights`` each ``(runs, *shape)``, ``x (n, ...)`` shared; ``(runs, m, outputs)``.

        ``m`` is ``n``, or ``n`` times the length for networks that answer at every place.
        """


@dataclass(frozen=True)
class MLP:
    """Layers of ``sizes`` (inputs, hidden …, outputs), with layer normalisation or without."""

    sizes: tuple[int, ...]
    activation: str = "relu"
    normalised: bool = False

    def __str__(self) -> str:
        extra = ", layer norm" * self.normalised
        return f"MLP {'-'.join(map(str, self.sizes))} {self.activation}{extra}"

    def slots(self) -> list[Slot]:
        slots: list[Slot] = []
        for k, (i, o) in enumerate(pairwise(self.sizes)):
            last = k == len(self.sizes) - 2
            slots += dense(i, o) + (norm(o) if self.normalised and not last else [])
        return slots

    def work(self) -> float:
        units = sum(self.sizes[1:]) * (3 if self.normalised else 1)
        return 2.0 * sum(i * o for i, o in pairwise(self.sizes)) + TOUCH * units

    def calls(self) -> int:
        return (len(self.sizes) - 1) * (5 if self.normalised else 3)

    def __call__(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        rest = iter(weights)
        h = shared_linear(*pair(rest), x.flatten(1))
        for _ in self.sizes[2:]:
            if self.normalised:
                h = normalise(h, *pair(rest))
            h = ACTIVATIONS[self.activation](h)
            h = linear(*pair(rest), h)
        return h


@dataclass(frozen=True)
class CNN:
    """3×3 convolutions, each with an activation and 2×2 pooling, then one linear layer, or two with
    ``hidden`` units between them.

    ``pool`` is ``"max"``, ``"mean"`` or ``"stride"`` (none: convolutions move by two). With
    ``averaged`` the linear layer sees each channel's mean over all places.
    """

    image: tuple[int, int, int]
    channels: tuple[int, ...]
    activation: str = "relu"
    pool: str = "max"
    averaged: bool = False
    classes: int = 10
    hidden: int = 0

    def __str__(self) -> str:
        extra = ", averaged" * self.averaged + f", {self.hidden} hidden" * bool(self.hidden)
        return f"CNN {'-'.join(map(str, self.channels))} {self.activation} {self.pool}{extra}"

    def _sides(self) -> list[int]:
        """The side of the image before each convolution, and after the last."""
        sides = [self.image[1]]
        for _ in self.channels:
            sides.append((sides[-1] + 1) // 2 if self.pool == "stride" else sides[-1] // 2)
        return sides

    def slots(self) -> list[Slot]:
        channels = (self.image[0], *self.channels)
        places = 1 if self.averaged else self._sides()[-1] ** 2
        slots = [slot for i, o in pairwise(channels) for slot in dense(i, o, kernel=3)]
        ends = [channels[-1] * places, *[self.hidden] * bool(self.hidden), self.classes]
        return slots + [slot for i, o in pairwise(ends) for slot in dense(i, o)]

    def work(self) -> float:
        channels, sides = (self.image[0], *self.channels), self._sides()
        outer = sides[1:] if self.pool == "stride" else sides[:-1]
        convolutions = sum(
            i * o * 9 * side**2 for (i, o), side in zip(pairwise(channels), outer, strict=True)
        )
        numbers = sum(c * side**2 for c, side in zip(self.channels, outer, strict=True))
        places = 1 if self.averaged else sides[-1] ** 2
        products = convolutions + channels[-1] * places * (self.hidden or self.classes)
        return 2.0 * products + TOUCH * numbers

    def calls(self) -> int:
        return 5 * len(self.channels) + 5

    def __call__(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        # all runs in one grouped convolution: measured, two to four times as fast as matrix products
        # over patches, and but for the largest batches faster than one run after the other
        runs, rest = len(weights[0]), iter(weights)
        h, stride = x, 2 if self.pool == "stride" else 1
        for k in range(len(self.channels)):
            w, b = pair(rest)
            groups = runs if k else 1
            h = conv2d(h, w.flatten(0, 1), b.flatten(), stride, padding=1, groups=groups)
            if not k:  # channels innermost: pooling and the next convolutions take half the time
                h = h.contiguous(memory_format=torch.channels_last)
            if (
                self.pool == "max"
            ):  # before the activation, which is monotonic: a quarter of the work
                h = max_pool2d(h, 2)
            h = ACTIVATIONS[self.activation](h)
            if self.pool == "mean":
                h = avg_pool2d(h, 2)
        if self.averaged:
            h = h.mean((2, 3), keepdim=True)
        h = h.reshape(len(x), runs, -1).transpose(0, 1)
        if self.hidden:
            h = ACTIVATIONS[self.activation](linear(*pair(rest), h))
        return linear(*pair(rest), h)


def linear(w: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """``h (runs, m, i)`` times ``w (runs, o, i)`` plus ``b (runs, o)``: ``(runs, m, o)``."""
    # examples before units: with small batches the other way takes up to four times as long
    return torch.baddbmm(b.unsqueeze(1), h, w.transpose(1, 2))


def shared_linear(w: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """The same for a shared ``x (m, i)``: one large product for all runs."""
    runs, o, _ = w.shape
    product = torch.addmm(b.reshape(-1, 1), w.flatten(0, 1), x.T)
    return product.view(runs, o, len(x)).transpose(1, 2)


def normalise(h: Tensor, gain: Tensor, offset: Tensor) -> Tensor:
    """``h (runs, m, units)`` brought to mean 0 and variance 1 over its units, then gain and offset."""
    return torch.addcmul(offset.unsqueeze(1), layer_norm(h, h.shape[2:]), gain.unsqueeze(1))


def pair(weights: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
    """The next two of the weights: a weight and its bias, or a gain and its offset."""
    return next(weights), next(weights)
