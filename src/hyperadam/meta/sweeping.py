"""The meta-trainer by sweeps: which step sizes tasks like is found out, then learned."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hyperadam.data import draws
from hyperadam.meta import episodes
from hyperadam.meta.evolution import DIVERGED
from hyperadam.meta.family_trainer import FamilyTrainer
from hyperadam.meta.fitting import fit
from hyperadam.meta.sweeps import Sweep, sweep
from hyperadam.rules.hyperadam2 import HyperAdam2Rule


class Round(NamedTuple):
    """What one meta-update saw: of each sweep the task's kind, its steps, the log step size that
    was best there beside the rule's own, and what that would have gained; how far a fit moved the
    weights, and what the fitted rule should cost beside each task's best step size."""

    update: int
    sweeps: list[tuple[Any, ...]]
    diverged: int
    norm: float
    cost: float | None

    @property
    def gain(self) -> float:
        """What a step size of its own would have gained a task, in the mean."""
        return float(sum(gain for *_, gain in self.sweeps) / len(self.sweeps))

    def values(self) -> dict[str, float]:
        return {"gain": self.gain} | ({} if self.cost is None else {"cost": self.cost})

    def describe(self) -> str:
        return f"own step sizes would gain {self.gain:.3f}"


class SweepTrainer(FamilyTrainer):
    """Meta-trains the step size of HyperAdam2's TensorCell.

    An update draws tasks of the family and trains each with several multiples of the rule's steps,
    all of them runs of one computation. Before each validation the TensorCell is fitted to all
    sweeps so far: from what it sees of a training it is to say the step size that was best there.
    Later updates sweep around what the new rule does, so that it learns from trainings as it makes
    them.

    An estimate from whole trainings credits a weight by chance with all that others did. A sweep
    moves one thing, and tells of each task by how much that should be moved."""

    def prepare(self) -> None:
        super().prepare()
        s = self.settings
        self.offsets = s.sigma * torch.arange(-s.pairs, s.pairs + 1)
        self.sweeps: list[Sweep] = []

    def step(self) -> Round:
        """Sweep this update's tasks, and fit the rule if that is due."""
        began, mine = time.perf_counter(), []
        for slot in self.slots():
            s = self.settings
            seed = int(draws.keys([s.seed], f"sweep {slot}", self.update)[0])
            episode = episodes.draw(seed, len(self.offsets), s.horizons, s.hidden, s.budget)
            found, losses = sweep(self.rule, episode, self.offsets)
            lost = int((~(losses[-1] < DIVERGED * losses[0])).sum())
            best = int(found.final.argmin())
            gain = round(float(found.final[s.pairs] - found.final[best]), 4)
            about = (episode.task.kind, episode.steps, round(float(self.offsets[best]), 2), gain)
            mine.append((slot, about, lost, found))
        seen = self._gather(mine)
        self.sweeps += [found for *_, found in seen]
        lost = sum(lost for _, _, lost, _ in seen)
        self.diverged += lost
        self.update += 1
        due = self.update % self.settings.validate_every == 0
        last = self.update == self.settings.updates
        fitted = self._learn() if due or last else (0.0, None)
        self.seconds += time.perf_counter() - began
        return Round(self.update, [about for _, about, _, _ in seen], lost, *fitted)

    def _learn(self) -> tuple[float, float]:
        """Fit the rule to all sweeps so far; how far its weights moved, and what it should cost."""
        start = self.settings.make_rule()
        assert isinstance(start, HyperAdam2Rule)  # prepare() saw to it
        fitted, cost = fit(start, self.sweeps)
        if self.ranks > 1:  # each has fitted the same, but for rounding
            for x in fitted.parameters():
                dist.broadcast(x.data, 0)
        moved = 0.0
        with torch.no_grad():
            trio = zip(
                fitted.parameters(),
                self.rule.parameters(),
                self.average.parameters(),
                strict=True,
            )
            for new, now, kept in trio:
                moved += float((new - now).square().sum())
                now.copy_(new)
                kept.copy_(new)
        return moved**0.5, cost

    def _gather(self, mine: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """What all ranks have found, in the order of slots."""
        gathered: list[Any] = [mine]
        if self.ranks > 1:
            gathered = [None] * self.ranks
            dist.all_gather_object(gathered, mine)
        return sorted((x for part in gathered for x in part), key=lambda x: int(x[0]))

    def extras(self) -> dict[str, Any]:
        return super().extras() | {"sweeps": [tuple(x) for x in self.sweeps]}

    def restore(self, content: dict[str, Any]) -> None:
        super().restore(content)
        self.sweeps = [Sweep(*x) for x in content["sweeps"]]
