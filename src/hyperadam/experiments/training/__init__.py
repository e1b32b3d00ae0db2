"""Training a task with an optimizer from many seeds at once, cell by cell, with its learning
rate."""

from hyperadam.experiments.training.session import made_with, train

__all__ = ["made_with", "train"]
