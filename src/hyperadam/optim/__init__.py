"""``torch.optim.Optimizer`` front ends over the learned rules."""

from hyperadam.optim.dm import DMOptimizer
from hyperadam.optim.hyperadam import HyperAdam
from hyperadam.optim.learned import LearnedOptimizer
from hyperadam.optim.rnnprop import RNNprop

__all__ = ["DMOptimizer", "HyperAdam", "LearnedOptimizer", "RNNprop"]
