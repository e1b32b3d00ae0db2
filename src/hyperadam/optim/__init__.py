"""``torch.optim.Optimizer`` front ends over the learned rules."""

from hyperadam.optim.learned import LearnedOptimizer
from hyperadam.optim.optimizers import DMOptimizer, HyperAdam, HyperAdam2, RNNprop

__all__ = ["DMOptimizer", "HyperAdam", "HyperAdam2", "LearnedOptimizer", "RNNprop"]
