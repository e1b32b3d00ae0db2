"""The meta-trainer by back-propagation: rollouts advanced a period at a time, one meta-update for each round of them."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyperadam import tasks
from hyperadam.data import draws
from hyperadam.kernels import make_tape
from hyperadam.meta.estimators import BPTT, Position, StepSize, step_size
from hyperadam.meta.learner import Learner
from hyperadam.meta.training import MetaTrainer
from hyperadam.meta.validation import final_losses

#: How many norms of a period's meta-gradients the median is taken over.
MEMORY = 50
#: A rollout whose loss exceeds this many times its first one has diverged, and is begun anew.
DIVERGED = 10.0


@dataclass
class Rollout:
    """One training of a learner, in slot ``slot`` of the trainer; ``number`` counts those of the slot."""

    slot: int
    number: int
    learner: Learner
    length: int
    first_loss: float
    size: StepSize
    position: Position


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
    """Mean final losses of the averaged rule on fresh runs of the first task, plain and under Random Scaling."""

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


class Trainer(MetaTrainer):
    """Meta-trains by truncated back-propagation through time.

    Each slot has its own stream of rollouts; under ``torch.distributed`` the slots are spread over the ranks. Random numbers
    come from the seed and the numbers of slot and rollout.
    """

    Judgement = Validation

    def prepare(self) -> None:
        self.tape = make_tape(self.rule)
        self.tasks = {name: tasks.get(name) for name in dict.fromkeys(self.settings.tasks)}
        self.norms: dict[int, deque[float]] = {}
        self.rollouts = [self._begin(slot, 0, stagger=True) for slot in self.slots()]

    # One meta-update ------------------------------------------------------------------------------------------------

    def step(self) -> MetaUpdate:
        """Advance every rollout by a period and update the rule once."""
        settings, began = self.settings, time.perf_counter()
        exact = settings.exact_from is not None and self.update >= settings.exact_from
        estimator = BPTT(exact, settings.last, settings.relative)
        total = [torch.zeros_like(x) for x in self.rule.parameters()]
        seen: list[tuple[float, ...]] = []  # slot, period index, loss, norm, diverged, nonfinite
        for i, rollout in enumerate(self.rollouts):
            index = rollout.position.step // settings.period
            period = estimator(
                self.tape, rollout.learner, rollout.position, settings.period, rollout.size
            )
            loss = period.losses.mean().item()
            norm = math.sqrt(sum(x.double().square().sum().item() for x in period.gradients))
            finite = math.isfinite(norm)
            diverged = not loss < DIVERGED * rollout.first_loss
            if finite and not diverged:
                factor = self._clip(index, norm) / settings.rollouts
                for x, gradient in zip(total, period.gradients, strict=True):
                    x.add_(gradient, alpha=factor)
            seen.append((rollout.slot, index, loss, norm, diverged, not finite))
            rollout.position = period.end
            if diverged or not finite or period.end.step >= rollout.length:
                self.rollouts[i] = self._begin(rollout.slot, rollout.number + 1)
        seen = self.share(total, seen)
        self.apply(total)
        self.seconds += time.perf_counter() - began
        return self._tally(seen, total)

    def _clip(self, index: int, norm: float) -> float:
        """The factor that brings a meta-gradient to at most ``clip`` times the median of its period index. A mean would be
        led astray by the very outliers that are to be clipped."""
        recent = self.norms.get(index)
        if not recent:
            return 1 / max(norm, 1e-12)
        median = statistics.median(recent)
        return min(1.0, self.settings.clip * median / max(norm, 1e-12)) / max(median, 1e-12)

    def _tally(self, seen: list[tuple[float, ...]], total: list[Tensor]) -> MetaUpdate:
        losses: dict[int, list[float]] = {}
        diverged = nonfinite = 0
        for _, index, loss, norm, bad, undefined in seen:
            if math.isfinite(norm) and not bad:
                self.norms.setdefault(int(index), deque(maxlen=MEMORY)).append(norm)
                losses.setdefault(int(index), []).append(loss)
            diverged += int(bad)
            nonfinite += int(undefined)
        self.diverged += diverged
        self.nonfinite += nonfinite
        norm = math.sqrt(sum(x.double().square().sum().item() for x in total))
        mean = {index: statistics.fmean(values) for index, values in sorted(losses.items())}
        return MetaUpdate(self.update, mean, norm, self.lr(), diverged, nonfinite)

    # Rollouts ---------------------------------------------------------------------------------------------------------

    def _begin(self, slot: int, number: int, stagger: bool = False) -> Rollout:
        """A fresh rollout. At the very start slots are staggered: each has a shorter first rollout than the one before, so
        that a meta-update sees early and late periods alike."""
        s = self.settings
        seed = self._seed(slot, number)
        pick = int(draws.integers(draws.keys([seed], "meta length"), len(s.lengths))[0])
        periods = max(s.lengths) // s.period if len(s.lengths) == 1 else s.lengths[pick] // s.period
        length = s.period * (1 + (periods - 1 - slot) % periods if stagger else periods)
        learner = Learner(
            self.tasks[s.tasks[(slot + number) % len(s.tasks)]], seed, s.scaling, s.convex
        )
        params = learner.init()
        state = self.rule.init_state(params)
        loss, grad, _ = learner.loss_and_grad(params, 0)
        return Rollout(
            slot,
            number,
            learner,
            length,
            loss.item(),
            self._size(learner, length),
            Position(params, tuple(state), 0, loss, grad),
        )

    def _size(self, learner: Learner, length: int) -> StepSize:
        return step_size(self.rule, learner, length if self.settings.horizon else None)

    def _seed(self, slot: int, number: int) -> int:
        return int(draws.keys([self.settings.seed], f"rollout {slot}", number)[0])

    # Validation and files ---------------------------------------------------------------------------------------------

    def judge(self) -> Validation:
        """Final losses on fresh runs of the first task, as it is and, if rollouts are, under Random Scaling."""
        s, task = self.settings, self.tasks[self.settings.tasks[0]]

        def mean(scaled: bool) -> float:
            return float(
                final_losses(
                    self.average,
                    task,
                    s.validation_runs,
                    s.validation_steps,
                    scaled,
                    horizon=s.horizon,
                ).mean()
            )

        plain = mean(scaled=False)
        return Validation(self.update, plain, mean(scaled=True) if s.scaling else plain)

    def taught_by(self) -> str:
        return ", ".join(dict.fromkeys(self.settings.tasks))

    def datasets(self) -> set[str]:
        return {task.dataset for task in self.tasks.values() if hasattr(task, "dataset")}

    def extras(self) -> dict[str, Any]:
        rollouts = [
            (
                r.slot,
                r.number,
                r.length,
                r.first_loss,
                (*r.position[:1], list(r.position.state), *r.position[2:]),
            )
            for r in self.rollouts
        ]
        return {
            "norms": {index: list(values) for index, values in self.norms.items()},
            "rollouts": rollouts,
        }

    def restore(self, content: dict[str, Any]) -> None:
        self.norms = {
            index: deque(values, maxlen=MEMORY) for index, values in content["norms"].items()
        }
        self.rollouts = []
        for slot, number, length, first_loss, (params, state, step, loss, grad) in content[
            "rollouts"
        ]:
            name = self.settings.tasks[(slot + number) % len(self.settings.tasks)]
            learner = Learner(
                self.tasks[name],
                self._seed(slot, number),
                self.settings.scaling,
                self.settings.convex,
            )
            position = Position(params, tuple(state), step, loss, grad)
            size = self._size(learner, length)
            self.rollouts.append(Rollout(slot, number, learner, length, first_loss, size, position))
