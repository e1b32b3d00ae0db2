"""``torch.optim.Optimizer`` front ends over the learned rules."""

from hyperadam.optim.learned import LearnedOptimizer
from hyperadam.optim.optimizers import DMOptimizer, HyperAdam, RNNprop

__all__ = ["DMOptimizer", "HyperAdam", "LearnedOptimizer", "RNNprop"]
