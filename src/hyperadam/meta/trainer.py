"""The meta-trainer by back-propagation: rollouts advanced a period at a time, one meta-update for
each round of them."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyperadam import tasks
from hyperadam.kernels import make_sampled_tape, make_tape
from hyperadam.meta.estimators import BPTT
from hyperadam.meta.rollouts import Rollouts
from hyperadam.meta.training import MetaTrainer
from hyperadam.meta.update import Clipping
from hyperadam.meta.validation import final_losses
from hyperadam.tasks.base import Task

#: A rollout whose loss exceeds this many times its first one has diverged, and is begun anew.
DIVERGED = 10.0


class MetaUpdate(NamedTuple):
    """What one meta-update saw: mean loss by period index, counts of what went wrong."""

    update: int
    losses: dict[int, float]
    norm: float
    lr: float
    diverged: int
    nonfinite: int

    def values(self) -> dict[str, float]:
        return {f"period {index}": loss for index, loss in self.losses.items()}

    def describe(self) -> str:
        if not self.losses:
            return ""
        last = max(self.losses)
        return f"loss {self.losses[last]:.3f} in period {last + 1}"


class Validation(NamedTuple):
    """Mean final losses of the averaged rule on fresh runs of the first task, plain and under
    Random Scaling."""

    update: int
    plain: float
    scaled: float

    @property
    def score(self) -> float:
        """What decides: the two weigh the same."""
        return (self.plain + self.scaled) / 2

    def describe(self) -> str:
        scaled = "" if self.scaled == self.plain else f", under Random Scaling {self.scaled:.4f}"
        return f"{self.plain:.4f}{scaled}"


class BroadValidation(NamedTuple):
    """The same, and the geometric mean of final losses on further tasks."""

    update: int
    plain: float
    scaled: float
    others: float

    @property
    def score(self) -> float:
        """What decides, a mean logarithm: the first task weighs as much as all others."""
        first = (math.log(self.plain) + math.log(self.scaled)) / 2
        return (first + math.log(self.others)) / 2

    def describe(self) -> str:
        first = Validation(self.update, self.plain, self.scaled)
        return f"{first.describe()}, others {self.others:.4f}"


def judgement(*values: Any) -> Validation | BroadValidation:
    """What a validation found, from a checkpoint: of further tasks, too, if there were some."""
    return (Validation if len(values) == 3 else BroadValidation)(*values)


class Trainer(MetaTrainer):
    """Meta-trains by truncated back-propagation through time.

    Each slot has its own stream of rollouts; under ``torch.distributed`` the slots are spread over
    the ranks. Random numbers come from the seed and the numbers of slot and rollout."""

    Judgement = staticmethod(judgement)

    def prepare(self) -> None:
        self.others = [tasks.get(name) for name in self.settings.others]
        sampled = self.settings.backward < 1
        self.tape = make_sampled_tape(self.rule) if sampled else make_tape(self.rule)
        self.clipping = Clipping(self.settings.clip)
        self.rollouts = Rollouts(self.settings, self.rule, self.slots())

    # One meta-update ------------------------------------------------------------------------------

    def step(self) -> MetaUpdate:
        """Advance every rollout by a period and update the rule once."""
        settings, began = self.settings, time.perf_counter()
        exact = settings.exact_from is not None and self.update >= settings.exact_from
        estimator = BPTT(exact, settings.last, settings.relative, settings.backward)
        total = [torch.zeros_like(x) for x in self.rule.parameters()]
        seen: list[tuple[float, ...]] = []  # slot, period index, loss, norm, diverged, nonfinite
        for rollout in self.rollouts:
            index = rollout.position.step // settings.period
            period = estimator(
                self.tape, rollout.learner, rollout.position, settings.period, rollout.size
            )
            loss = period.losses.mean().item()
            norm = math.sqrt(sum(x.double().square().sum().item() for x in period.gradients))
            finite = math.isfinite(norm)
            diverged = not loss < DIVERGED * rollout.first_loss
            if finite and not diverged:
                factor = self.clipping.factor(index, norm) / settings.rollouts
                for x, gradient in zip(total, period.gradients, strict=True):
                    x.add_(gradient, alpha=factor)
            seen.append((rollout.slot, index, loss, norm, diverged, not finite))
            rollout.position = period.end
            if diverged or not finite or rollout.ended:
                self.rollouts.renew(rollout)
        seen = self.share(total, seen)
        self.apply(total)
        self.seconds += time.perf_counter() - began
        return self._tally(seen, total)

    def _tally(self, seen: list[tuple[float, ...]], total: list[Tensor]) -> MetaUpdate:
        losses: dict[int, list[float]] = {}
        diverged = nonfinite = 0
        for _, index, loss, norm, bad, undefined in seen:
            if math.isfinite(norm) and not bad:
                self.clipping.remember(int(index), norm)
                losses.setdefault(int(index), []).append(loss)
            diverged += int(bad)
            nonfinite += int(undefined)
        self.diverged += diverged
        self.nonfinite += nonfinite
        norm = math.sqrt(sum(x.double().square().sum().item() for x in total))
        mean = {index: statistics.fmean(values) for index, values in sorted(losses.items())}
        return MetaUpdate(self.update, mean, norm, self.lr(), diverged, nonfinite)

    # Validation and files -------------------------------------------------------------------------

    def judge(self) -> Validation | BroadValidation:
        """Final losses on fresh runs of the first task, as it is and, if rollouts are, under Random
        Scaling; then of the others."""
        s, task = self.settings, self.rollouts.tasks[self.settings.tasks[0]]

        def mean(task: Task[Any], scaled: bool = False) -> float:
            alone = task.runs_at_once == 1  # a large learner, and few runs tell enough
            runs = max(1, s.validation_runs // 4) if alone else s.validation_runs
            return float(
                final_losses(
                    self.average, task, runs, s.validation_steps, scaled, horizon=s.horizon
                ).mean()
            )

        plain = mean(task)
        scaled = mean(task, scaled=True) if s.scaling else plain
        if not self.others:
            return Validation(self.update, plain, scaled)
        others = math.exp(statistics.fmean(math.log(mean(other)) for other in self.others))
        return BroadValidation(self.update, plain, scaled, others)

    def taught_by(self) -> str:
        return ", ".join(dict.fromkeys(self.settings.tasks))

    def datasets(self) -> set[str]:
        return {task.dataset for task in self.rollouts.tasks.values() if hasattr(task, "dataset")}

    def extras(self) -> dict[str, Any]:
        return {"norms": self.clipping.content(), "rollouts": self.rollouts.content()}

    def restore(self, content: dict[str, Any]) -> None:
        self.clipping.restore(content["norms"])
        self.rollouts.restore(content["rollouts"])
