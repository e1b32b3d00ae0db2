"""Learning rates found on a grid, one by one or all that the experiments need."""

from hyperadam.experiments.tuning.grid import FIRST_SEED, Tuning, score, tune

__all__ = ["FIRST_SEED", "Tuning", "score", "tune"]
