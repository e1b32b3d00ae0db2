"""HyperAdam: a learned optimizer for PyTorch that runs twenty Adams side by side and learns how to mix them."""

from hyperadam import kernels
from hyperadam.optim import DMOptimizer, HyperAdam, HyperAdam2, LearnedOptimizer, RNNprop
from hyperadam.rules import DMRule, HyperAdam2Rule, HyperAdamRule, RNNpropRule, UpdateRule
from hyperadam.weights import WeightsError, list_weights, load_rule

__version__ = "0.1.0"

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
    "kernels",
    "list_weights",
    "load_rule",
]
