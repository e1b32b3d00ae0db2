"""The experiments of the paper, one small table each, with its claims in our words and its
numbers."""

from __future__ import annotations

from hyperadam.experiments.paper.experiment import Claim, Experiment, Figure
from hyperadam.experiments.paper.specs.ablations import ABLATIONS
from hyperadam.experiments.paper.specs.long import LONG
from hyperadam.experiments.paper.specs.short import SHORT
from hyperadam.experiments.paper.specs.times import TIMES
from hyperadam.unknown import unknown

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "Figure", "find_experiment"]

#: Every experiment by name.
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (*SHORT, *LONG, *ABLATIONS, *TIMES)
}


def find_experiment(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise ValueError(unknown("experiment", name, EXPERIMENTS))
    return EXPERIMENTS[name]
