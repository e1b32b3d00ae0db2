"""What an experiment is: tasks, optimizers and horizons as a small table, what the paper claims of
them, and its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from hyperadam.experiments.paper import variants
from hyperadam.experiments.training import optimizers
from hyperadam.experiments.training.cells import Cell
from hyperadam.experiments.training.optimizers import OptimizerSpec
from hyperadam.experiments.training.rates import TUNING, Kind, Rate
from hyperadam.weights.loader import SUFFIX, WeightsError

#: The untrained start, at the rate that meta-training really starts from: the rule's own times the
#: sum of the weights there.
UNTRAINED, UNTRAINED_LR = "adam-init", 0.02
#: Where variants of HyperAdam made for ablations are kept.
VARIANTS = Path("results/ablations")


class Claim(NamedTuple):
    """Something that the paper says: one optimizer is better than others, on some tasks, at some
    horizon, by some measure."""

    text: str
    better: str
    worse: tuple[str, ...]
    tasks: tuple[str, ...] = ()
    steps: int | None = None
    measure: str = "final_loss"


class Figure(NamedTuple):
    """Curves that the paper draws."""

    title: str
    task: str
    steps: int


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper.

    Attributes:
        name: what ``hyperadam reproduce`` calls it.
        paper: where it is in the paper (empty: nowhere), and ``about`` what is done.
        tasks, optimizers, steps: every task is trained by every optimizer (by its label) for every
        number of steps.
        runs: of each cell, from the seeds 0, 1, …; ``more_runs``: of the cells that have more, by
        task, optimizer and steps.
        final_batches: the final loss is over so many of a run's batches; ``None``: over all.
        test: whether runs are also measured on the test set.
        published: the paper's numbers by task, optimizer, steps and measure; accuracies are shares.
        quick_runs, quick_steps: those of the coarse version.
        meta_seeds: from which its variants of HyperAdam, if it has any, are meta-trained.
        timed: tasks on which the time of an update is measured.
    """

    name: str
    title: str
    paper: str
    about: str
    tasks: tuple[str, ...]
    optimizers: tuple[str, ...]
    steps: tuple[int, ...] = (100,)
    runs: int = 100
    more_runs: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    final_batches: int | None = None
    test: bool = False
    figures: tuple[Figure, ...] = ()
    claims: tuple[Claim, ...] = ()
    published: Mapping[tuple[str, str, int, str], float] = field(default_factory=dict)
    quick_runs: int = 2
    quick_steps: tuple[int, ...] = (100,)
    timed: tuple[str, ...] = ()
    meta_seeds: tuple[int, ...] = variants.META_SEEDS

    def runs_of(self, task: str, label: str, steps: int) -> int:
        """How many runs a cell has."""
        return self.more_runs.get((task, label, steps), self.runs)

    def with_runs(self, runs: int) -> Experiment:
        """The same with so many runs of every cell."""
        return replace(self, runs=runs, more_runs={})

    def coarse(self) -> Experiment:
        """The quick version: fewer runs and steps, so no numbers of the paper to stand beside."""
        steps = dict(zip(self.steps, self.quick_steps, strict=True))
        return replace(
            self.with_runs(min(self.runs, self.quick_runs)),
            meta_seeds=self.meta_seeds[:1],
            steps=self.quick_steps,
            figures=tuple(figure._replace(steps=steps[figure.steps]) for figure in self.figures),
            claims=tuple(
                claim._replace(steps=claim.steps and steps.get(claim.steps, claim.steps))
                for claim in self.claims
            ),
            published={
                key: value
                for key, value in self.published.items()
                if steps.get(key[2], key[2]) == key[2]
            },
            # evaluation on a whole test set takes longer than a few steps
            test=self.test and any(claim.measure.startswith("test") for claim in self.claims),
        )

    def cells(
        self,
        quick: bool = False,
        runs: int | None = None,
        tuning: Path | None = TUNING,
        weights: Path = VARIANTS,
    ) -> list[Cell]:
        """The cells of every optimizer whose weights are there (:meth:`unavailable` has the
        others), task by task.

        Args:
            quick: the coarse version.
            runs: in place of the experiment's own number.
            tuning: a folder of tuned rates to look into first.
            weights: the folder of the ablations' variants.
        """
        if quick:
            return self.coarse().cells(False, runs, tuning, weights)
        if runs:
            return self.with_runs(runs).cells(False, None, tuning, weights)
        absent = self.unavailable(weights)
        there = [
            (label, meta_seed)
            for label in self.optimizers
            if label not in absent
            for meta_seed in self.meta_seeds_of(label, weights)
        ]
        return [
            Cell(
                task,
                resolve(label, task, steps, tuning, weights, meta_seed),
                tuple(range(self.runs_of(task, label, steps))),
                steps,
                self.final_batches,
                self.test,
            )
            for task in self.tasks
            for steps in self.steps
            for label, meta_seed in there
        ]

    def meta_seeds_of(self, label: str, weights: Path = VARIANTS) -> list[int]:
        """The meta-seeds whose weights of a variant are there; what is no variant has one, 0."""
        if label not in variants.VARIANTS:
            return [0]
        made = variants.VARIANTS[label]
        return [n for n in self.meta_seeds if (weights / f"{made.at(n).file}{SUFFIX}").is_file()]

    def unavailable(self, weights: Path = VARIANTS) -> dict[str, str]:
        """The optimizers that cannot be had, and why, in a line."""
        reasons = {}
        for label in self.optimizers:
            try:
                resolve(
                    label, weights=weights, meta_seed=(self.meta_seeds_of(label, weights) or [0])[0]
                )
            except (WeightsError, FileNotFoundError, ValueError) as error:
                reasons[label] = str(error)
        return reasons


def resolve(
    label: str,
    task: str = "",
    steps: int = 100,
    tuning: Path | None = None,
    weights: Path = VARIANTS,
    meta_seed: int = 0,
) -> OptimizerSpec:
    """The optimizer that an experiment calls ``label``; a variant as it came from a meta-seed."""
    if label == UNTRAINED:
        spec = optimizers.find(label).at(UNTRAINED_LR)
        return replace(spec, label=label, rate=Rate(UNTRAINED_LR, Kind.START))
    if label in variants.VARIANTS:
        path = weights / f"{variants.VARIANTS[label].at(meta_seed).file}{SUFFIX}"
        if not path.is_file():
            raise WeightsError(f"the variant {label!r} is not meta-trained yet: there is no {path}")
        return replace(optimizers.find(str(path)), label=label)
    return optimizers.find(label, task, steps, tuning)


def labels(experiments: Sequence[Experiment]) -> list[str]:
    """All optimizers of some experiments, each once."""
    return list(
        dict.fromkeys(label for experiment in experiments for label in experiment.optimizers)
    )
