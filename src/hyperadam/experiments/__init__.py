"""Experiments: tasks trained by optimizers from many seeds at once, learning rates found on a grid,
results kept as files."""

from hyperadam.experiments.training.cells import Cell, find_result, grid, run_cell, run_cells
from hyperadam.experiments.training.optimizers import (
    BASELINES,
    OptimizerSpec,
    find,
    names,
    weights_sha256,
)
from hyperadam.experiments.training.rates import TUNING, Rate, default_rate, tuned_lr
from hyperadam.experiments.training.session import Progress, train
from hyperadam.experiments.tuning import FIRST_SEED, Tuning, score, tune
from hyperadam.results import Result, Store

__all__ = [
    "BASELINES",
    "FIRST_SEED",
    "TUNING",
    "Cell",
    "OptimizerSpec",
    "Progress",
    "Rate",
    "Result",
    "Store",
    "Tuning",
    "default_rate",
    "find",
    "find_result",
    "grid",
    "names",
    "run_cell",
    "run_cells",
    "score",
    "train",
    "tune",
    "tuned_lr",
    "weights_sha256",
]
