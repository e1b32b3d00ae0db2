"""The meta-trainer: rollouts advanced a period at a time, one meta-update for each round of them, nothing lost in a crash."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hyperadam import tasks
from hyperadam.data import catalog, draws
from hyperadam.kernels import make_tape
from hyperadam.meta import checkpoint
from hyperadam.meta.estimators import BPTT, Position
from hyperadam.meta.learner import Learner
from hyperadam.meta.settings import Settings
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
    position: Position


class Round(NamedTuple):
    """What one meta-update saw: mean loss by period index, counts of what went wrong."""

    update: int
    losses: dict[int, float]
    norm: float
    lr: float
    diverged: int
    nonfinite: int


class Validation(NamedTuple):
    """Mean final losses of the averaged rule on fresh runs of the first task, plain and under Random Scaling."""

    update: int
    plain: float
    scaled: float

    @property
    def score(self) -> float:
        """What decides: the two weigh the same."""
        return (self.plain + self.scaled) / 2


class Trainer:
    """Meta-trains a rule as ``settings`` say, in the directory ``out``.

    Slots of rollouts are dealt out over the ranks of ``torch.distributed``, if it is on: N ranks do together what one does
    alone. Random numbers come from the seed and the numbers of slot and rollout: a resumed run repeats an uninterrupted one.
    """

    def __init__(self, settings: Settings, out: Path) -> None:
        self.settings, self.out = settings, out
        out.mkdir(parents=True, exist_ok=True)
        self.rank, self.ranks = (
            (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        )
        if settings.rollouts % self.ranks:
            raise ValueError(
                f"rollouts must be a multiple of the {self.ranks} ranks, got {settings.rollouts}"
            )
        self.rule = settings.make_rule()
        self.average = settings.make_rule().requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.rule.parameters(), lr=settings.lr)
        self.tape = make_tape(self.rule)
        self.tasks = {name: tasks.get(name) for name in dict.fromkeys(settings.tasks)}
        self.update, self.diverged, self.nonfinite, self.seconds = 0, 0, 0, 0.0
        self.norms: dict[int, deque[float]] = {}
        self.best = math.inf
        self.curve: list[Validation] = []
        slots = range(self.rank, settings.rollouts, self.ranks)
        self.rollouts = [self._begin(slot, 0, stagger=True) for slot in slots]
        self._resume()

    # One meta-update ------------------------------------------------------------------------------------------------

    def step(self) -> Round:
        """Advance every rollout by a period and update the rule once."""
        settings, began = self.settings, time.perf_counter()
        exact = settings.exact_from is not None and self.update >= settings.exact_from
        estimator = BPTT(exact, settings.last, settings.relative)
        total = [torch.zeros_like(x) for x in self.rule.parameters()]
        seen: list[tuple[float, ...]] = []  # slot, period index, loss, norm, diverged, nonfinite
        for i, rollout in enumerate(self.rollouts):
            index = rollout.position.step // settings.period
            period = estimator(
                self.tape, rollout.learner, rollout.position, settings.period, self.rule.step_size
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
        seen = self._share(total, seen)

        for group in self.optimizer.param_groups:
            group["lr"] = self._lr()
        for parameter, gradient in zip(self.rule.parameters(), total, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        with torch.no_grad():
            for average, parameter in zip(
                self.average.parameters(), self.rule.parameters(), strict=True
            ):
                average.lerp_(
                    parameter, 1 - min(settings.average, (1 + self.update) / (10 + self.update))
                )
        self.update += 1
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

    def _share(self, total: list[Tensor], seen: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
        """Add up the ranks' meta-gradients; every rank learns what all rollouts saw, in the order of their slots."""
        if self.ranks > 1:
            for x in total:
                dist.all_reduce(x)
            gathered: list[Any] = [None] * self.ranks
            dist.all_gather_object(gathered, seen)
            seen = [entry for part in gathered for entry in part]
        return sorted(seen)

    def _tally(self, seen: list[tuple[float, ...]], total: list[Tensor]) -> Round:
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
        return Round(self.update, mean, norm, self._lr(), diverged, nonfinite)

    def _lr(self) -> float:
        """Linear warm-up, then a cosine from ``lr`` to ``final_lr``."""
        s = self.settings
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.update / max(1, s.updates))))
        return (s.final_lr + (s.lr - s.final_lr) * cosine) * min(
            1.0, (self.update + 1) / max(1, s.warmup)
        )

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
            Position(params, tuple(state), 0, loss, grad),
        )

    def _seed(self, slot: int, number: int) -> int:
        return int(draws.keys([self.settings.seed], f"rollout {slot}", number)[0])

    # Validation and files ---------------------------------------------------------------------------------------------

    def validate(self) -> Validation:
        """How the averaged rule does on fresh runs of the first task, as it is and, if rollouts are, under Random Scaling; the
        best by their mean is kept in ``best.safetensors``."""
        s, task = self.settings, self.tasks[self.settings.tasks[0]]

        def mean(scaled: bool) -> float:
            return float(
                final_losses(
                    self.average, task, s.validation_runs, s.validation_steps, scaled
                ).mean()
            )

        plain = mean(scaled=False)
        result = Validation(self.update, plain, mean(scaled=True) if s.scaling else plain)
        self.curve.append(result)
        if result.score < self.best:
            self.best = result.score
            if self.rank == 0:
                self.average.provenance = self.provenance()
                self.average.save(self.out / "best.safetensors")
        return result

    def provenance(self) -> dict[str, Any]:
        """What made the weights: goes into their file."""
        return {
            "made_by": "hyperadam meta-train",
            "what": f"meta-trained on {', '.join(dict.fromkeys(self.settings.tasks))}, seed {self.settings.seed}",
            "preset": self.settings.preset,
            "settings": self.settings.as_dict(),
            "data": {name: catalog.find(name).sha256 for name in sorted(self._datasets())},
            "updates": self.update,
            "validation": [
                [update, round(plain, 5), round(scaled, 5)] for update, plain, scaled in self.curve
            ],
            "diverged": self.diverged,
            "nonfinite": self.nonfinite,
            "seconds": round(self.seconds),
        }

    def _datasets(self) -> set[str]:
        """The datasets of the tasks; generated data have no name."""
        return {task.dataset for task in self.tasks.values() if hasattr(task, "dataset")}

    def save(self) -> None:
        """Checkpoint this rank; the others save their own rollouts."""
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
        content = {
            "settings": json.dumps(self.settings.as_dict(), sort_keys=True),
            "ranks": self.ranks,
            "update": self.update,
            "rule": self.rule.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "norms": {index: list(values) for index, values in self.norms.items()},
            "rollouts": rollouts,
            "counts": (self.diverged, self.nonfinite, self.seconds),
            "best": self.best,
            "curve": [tuple(result) for result in self.curve],
        }
        checkpoint.save(self._path(), content)

    def _resume(self) -> None:
        content = self._newest(checkpoint.load(self._path()))
        if content is None:
            return
        mine = json.dumps(self.settings.as_dict(), sort_keys=True)
        if content["settings"] != mine or content["ranks"] != self.ranks:
            raise ValueError(
                f"{self._path()} belongs to other settings or another number of ranks: choose another directory"
            )
        self.rule.load_state_dict(content["rule"])
        self.average.load_state_dict(content["average"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.update, self.best = content["update"], content["best"]
        self.curve = [Validation(*result) for result in content["curve"]]
        self.norms = {
            index: deque(values, maxlen=MEMORY) for index, values in content["norms"].items()
        }
        self.diverged, self.nonfinite, self.seconds = content["counts"]
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
            self.rollouts.append(Rollout(slot, number, learner, length, first_loss, position))

    def _newest(self, contents: list[dict[str, Any]]) -> dict[str, Any] | None:
        """The newest checkpoint that all ranks have: one that was killed may not have come to its last."""
        updates = [{content["update"] for content in contents}]
        if self.ranks > 1:
            gathered: list[Any] = [None] * self.ranks
            dist.all_gather_object(gathered, updates[0])
            updates = gathered
        common = set.intersection(*updates)
        if any(updates) and not common:
            raise ValueError(
                f"{self.out}: the ranks' checkpoints are of different updates, {updates}: remove them to start anew"
            )
        return next((content for content in contents if content["update"] == max(common)), None)

    def _path(self) -> Path:
        return self.out / (f"checkpoint-{self.rank}.pt" if self.ranks > 1 else "checkpoint.pt")

    def run(
        self,
        report: Callable[[Round, Validation | None], None],
        stop: Callable[[], bool],
        save_every: float = 60.0,
    ) -> None:
        """Train to the last update, or until ``stop`` says so; ``report`` gets every round, and each validation's result."""
        saved = time.monotonic()
        while self.update < self.settings.updates and not stop():
            outcome = self.step()
            due = (
                self.update % self.settings.validate_every == 0
                or self.update == self.settings.updates
            )
            report(outcome, self.validate() if due else None)
            # ranks keep their clocks apart, and must save at the same update: they do so when they validate
            if due or (self.ranks == 1 and time.monotonic() - saved > save_every):
                self.save()
                saved = time.monotonic()
        self.save()
