"""Tasks by name: the paper's, any other width or depth of theirs, and the user's own."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from hyperadam.tasks.base import Task
from hyperadam.tasks.images import Classification, image_shape
from hyperadam.tasks.learners import ACTIVATIONS, CNN, LSTM, MLP
from hyperadam.tasks.sine import SinePrediction
from hyperadam.unknown import unknown

Factory = Callable[[], Task[Any]]

#: Datasets as they appear in names, with how much their images are shrunk.
_VIEWS = {"mnist": ("mnist", 1), "mnist14": ("mnist", 2), "cifar10": ("cifar10", 1)}
#: Blocks of convolutions, and hidden units, of the paper's CNNs.
_LAYERS: dict[str, tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]] = {
    "cnn1": (((16, 16),), ()),
    "cnn2": (((16, 16), (32, 32)), (64,)),
}

_MLP = re.compile(
    rf"({'|'.join(_VIEWS)})-mlp(?:-([1-9]\d*)x([1-9]\d*))?(?:-({'|'.join(ACTIVATIONS)}))?"
)
_CNN = re.compile(rf"({'|'.join(_VIEWS)})-(cnn1|cnn2)(-bn)?(-dropout)?")
_SINE = re.compile(r"sine-lstm(?:-([1-9]\d*))?(-small-noise)?")

#: What names may be like: one of those in braces; what stands in brackets may be left out.
FORMS = (
    f"{{{','.join(_VIEWS)}}}-mlp[-DEPTHxWIDTH][-{{{','.join(ACTIVATIONS)}}}]",
    f"{{{','.join(_VIEWS)}}}-{{{','.join(_LAYERS)}}}[-bn][-dropout]",
    "sine-lstm[-LAYERS][-small-noise]",
)

_PAPER = (
    "mnist-mlp",
    *(f"mnist-mlp-{activation}" for activation in ACTIVATIONS if activation != "sigmoid"),
    *(f"mnist-mlp-{depth}x20" for depth in range(2, 11)),
    *(
        f"{data}-{cnn}{extra}"
        for data in ("mnist", "cifar10")
        for cnn in _LAYERS
        for extra in ("", "-bn", "-dropout")
    ),
    "sine-lstm",
    "sine-lstm-small-noise",
    "sine-lstm-2",
    "mnist14-mlp",
)
_REGISTERED: dict[str, Factory] = {}


def names() -> tuple[str, ...]:
    """The names of the paper's tasks, then of those registered. :func:`get` understands more of the same kind:
    ``mnist-mlp-2x50-tanh``, ``mnist14-cnn1``, ``cifar10-mlp``, ``sine-lstm-3-small-noise``."""
    return (*_PAPER, *_REGISTERED)


def get(name: str) -> Task[Any]:
    """The task of that name."""
    task = _REGISTERED[name]() if name in _REGISTERED else _build(name)
    if task is None:
        forms = f"and others of the forms {', '.join(FORMS)}"
        raise ValueError(unknown("task", name, names(), forms))
    return task


def register(name: str, factory: Factory) -> None:
    """Give a task of your own a name. ``factory`` is called without arguments: a subclass of :class:`Task`, or a function."""
    if name in names() or _build(name):
        raise ValueError(f"a task is already called {name!r}")
    _REGISTERED[name] = factory


def _build(name: str) -> Task[Any] | None:
    if match := _MLP.fullmatch(name):
        view, depth, width, activation = match.groups()
        dataset, shrink = _VIEWS[view]
        sizes = (
            math.prod(image_shape(dataset, shrink)),
            *int(depth or 1) * (int(width or 20),),
            10,
        )
        return Classification(dataset, MLP(sizes, activation or "sigmoid"), shrink)
    if match := _CNN.fullmatch(name):
        view, kind, batch_norm, dropout = match.groups()
        dataset, shrink = _VIEWS[view]
        network = CNN(
            image_shape(dataset, shrink),
            *_LAYERS[kind],
            batch_norm=bool(batch_norm),
            dropout=bool(dropout),
        )
        return Classification(dataset, network, shrink)
    if match := _SINE.fullmatch(name):
        layers, small_noise = match.groups()
        return SinePrediction(LSTM(layers=int(layers or 1)), noise=0.01 if small_noise else 0.1)
    return None
