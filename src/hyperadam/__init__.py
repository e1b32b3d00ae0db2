"""Learned optimizers for PyTorch: many Adams side by side, and small networks that mix them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from hyperadam import kernels
    from hyperadam.inside import inspect
    from hyperadam.optim import DMOptimizer, HyperAdam, HyperAdam2, LearnedOptimizer, RNNprop
    from hyperadam.rules import DMRule, HyperAdam2Rule, HyperAdamRule, RNNpropRule, UpdateRule
    from hyperadam.weights import WeightsError, list_weights, load_rule

__all__ = [
    "DMOptimizer",
    "DMRule",
    "HyperAdam",
    "HyperAdam2",
    "HyperAdam2Rule",
    "HyperAdamRule",
    "LearnedOptimizer",
    "RNNprop",
    "RNNpropRule",
    "UpdateRule",
    "WeightsError",
    "__version__",
    "inspect",
    "kernels",
    "list_weights",
    "load_rule",
]

#: What each room has for users. A room is imported when something of it is asked for: the command
#: line's help needs no torch.
_ROOMS = {
    "inside": ("inspect",),
    "kernels": (),
    "optim": ("DMOptimizer", "HyperAdam", "HyperAdam2", "LearnedOptimizer", "RNNprop"),
    "rules": ("DMRule", "HyperAdam2Rule", "HyperAdamRule", "RNNpropRule", "UpdateRule"),
    "weights": ("WeightsError", "list_weights", "load_rule"),
}


def __getattr__(name: str) -> Any:
    for room, things in _ROOMS.items():
        if name == room or name in things:
            module = importlib.import_module(f"hyperadam.{room}")
            return globals().setdefault(name, module if name == room else getattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, *__all__})
