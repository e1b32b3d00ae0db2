"""Fit the TensorCell's step size to sweeps: what each task would have liked, from what was seen."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from hyperadam.meta.sweeps import Sweep, log_steps
from hyperadam.rules.hyperadam2 import HyperAdam2Rule

#: The parameters that are fitted: all that the step size depends on.
FITTED = ("theta_1", "b_1", "theta_a", "log_step")
#: A loss this far above the task's best, in logarithms, is lost: what lies beyond counts little.
LOST, BEYOND = 2.0, 0.15
#: How far answers will be off, as shares of the neighbouring offsets: a step size beside a cliff is
#: as bad as the cliff.
BLUR = (0.06, 0.24, 0.4, 0.24, 0.06)
#: What moving the weights costs, and what step sizes that differ within a training do.
PULL, SPREAD = 0.0005, 0.1
#: Steps of Adam, and the rate that falls to zero over them.
STEPS, RATE = 250, 0.02


class Sweeps:
    """All sweeps as one, rows of every task behind each other."""

    def __init__(self, sweeps: Sequence[Sweep]) -> None:
        self.count = len(sweeps)
        self.offsets = torch.stack([x.offsets for x in sweeps])
        self.costs = torch.stack([costs(x.final) for x in sweeps])
        self.features = torch.cat([x.features for x in sweeps]).float()
        self.said = torch.cat([x.said for x in sweeps])
        self.weights = torch.cat([x.weights for x in sweeps]).unsqueeze(1)
        rows = torch.tensor([len(x.weights) for x in sweeps])
        self.task = torch.repeat_interleave(torch.arange(self.count), rows)

    def mean(self, values: Tensor) -> Tensor:
        """Over each task's rows ``(rows, runs)``, by their weights: ``(tasks, runs)``."""
        return torch.zeros_like(self.offsets).index_add(0, self.task, values * self.weights)

    def expected(self, rule: HyperAdam2Rule) -> tuple[Tensor, Tensor]:
        """What ``rule`` would cost on each task, if only the mean of its log step sizes counts
        ``(tasks,)``; and the variance of those within a training.

        The rule is asked in every run of a sweep alike. A run's features may tell which offset it
        had, so where all are asked alike that says nothing of the offset that the task likes.
        """
        answers = log_steps(rule, self.features)
        move = self.mean(answers - self.said)
        apart = (answers - self.mean(answers)[self.task]).square()
        spread = (apart * self.weights).sum() / apart.shape[1] / self.count
        return interpolate(self.costs, self.offsets, move).mean(1), spread


def costs(final: Tensor) -> Tensor:
    """What each offset of a sweep costs ``(runs,)``, beside the best one: the final loss, in
    logarithms, as it is to be expected of an answer near it."""
    above = final - final.min()
    above = torch.where(above > LOST, LOST + BEYOND * (above - LOST), above)
    # beyond the ends on the line of the last two
    reach = torch.arange(1.0, len(BLUR) // 2 + 1)
    first = above[0] + reach.flip(0) * (above[0] - above[1])
    last = above[-1] + reach * (above[-1] - above[-2])
    blurred = torch.cat([first, above, last]).unfold(0, len(BLUR), 1) @ torch.tensor(BLUR)
    return blurred - blurred.min()


def interpolate(values: Tensor, places: Tensor, at: Tensor) -> Tensor:
    """``values (tasks, runs)`` at equally spaced ``places`` (the same shape), read between them
    ``at (tasks, n)``; beyond the ends on the line of the last two."""
    where = (at - places[:, :1]) / (places[:, 1:2] - places[:, :1])
    left = where.detach().floor().clamp(0, places.shape[1] - 2)
    low, high = values.gather(1, left.long()), values.gather(1, left.long() + 1)
    return low + (where - left) * (high - low)


def fit(start: HyperAdam2Rule, sweeps: Sequence[Sweep]) -> tuple[HyperAdam2Rule, float]:
    """The rule with the step sizes that should cost least on all these tasks, not far from
    ``start``; and what it should cost, in the mean over tasks."""
    every, rule = Sweeps(sweeps), copy.deepcopy(start).requires_grad_(False)
    fitted = [getattr(rule, name).requires_grad_() for name in FITTED]
    begun = [x.detach().clone() for x in fitted]
    adam = torch.optim.Adam(fitted, lr=RATE)
    with torch.enable_grad():
        for step in range(STEPS):
            adam.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
            cost, spread = every.expected(rule)
            moved = [x - x0 for x, x0 in zip(fitted, begun, strict=True)]
            pull = torch.cat([x.flatten() for x in moved]).square().sum()
            adam.zero_grad()
            (cost.mean() + SPREAD * spread + PULL * pull).backward()
            adam.step()
    return rule.requires_grad_(False), float(cost.detach().mean())
