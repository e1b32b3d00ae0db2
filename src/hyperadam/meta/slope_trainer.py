"""The meta-trainer by slopes: tasks are trained under many rules near the present one, and the rule
moves to where they ended lowest."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hyperadam.data import draws
from hyperadam.meta import episodes
from hyperadam.meta.directions import directions, moved, prepared
from hyperadam.meta.episodes import Episode
from hyperadam.meta.family_trainer import FamilyTrainer
from hyperadam.meta.slopes import Trial, fit, lowest
from hyperadam.rules.hyperadam2 import HyperAdam2Rule

#: How far the rule moves before new trials are made, in units.
RADIUS = 2.0


class Round(NamedTuple):
    """What one meta-update saw: of each trial the task's kind, its steps, and the deviation of the
    final losses over its runs, in logarithms; how many runs diverged, how far the rule moved, and
    the loss that is expected there, in the mean over tasks, beside the untrained start's."""

    update: int
    trials: list[tuple[Any, ...]]
    diverged: int
    norm: float
    expected: float | None

    def values(self) -> dict[str, float]:
        return {} if self.expected is None else {"expected": self.expected}

    def describe(self) -> str:
        kind, steps, deviation = self.trials[-1]
        return f"{kind}, {steps} steps: rules differ by {deviation:.3f}"


class SlopeTrainer(FamilyTrainer):
    """Meta-trains HyperAdam2 along some named directions.

    An update draws tasks of the family. Each is trained under rules about the present one, in
    antithetic pairs, all of them runs of one computation. Before each validation a quadratic
    surface is laid through all trials so far, and the rule moves towards its lowest point.

    An estimate by evolution forgets what it has seen with every update. Here every training counts
    until the end, and what one direction does is told apart from what the others do."""

    def prepare(self) -> None:
        super().prepare()
        start = self.settings.make_rule()
        assert isinstance(start, HyperAdam2Rule)  # super() saw to it
        self.start = prepared(start)
        self.along = directions(self.start)
        self.place = torch.zeros(len(self.along), dtype=torch.float64)
        self.trials: list[Trial] = []

    def step(self) -> Round:
        """Make this update's trials, and move the rule if that is due."""
        began, s = time.perf_counter(), self.settings
        mine = []
        for slot in self.slots():
            seed = int(draws.keys([s.seed], f"trial {slot}", self.update)[0])
            episode = episodes.draw(seed, 2 * s.pairs + 1, s.horizons, s.hidden, s.budget)
            found, lost = self.trial(episode, seed)
            about = (episode.task.kind, episode.steps, round(float(found.final.std()), 4))
            mine.append((slot, about, lost, found))
        seen = self.share([], mine)
        self.trials += [found for *_, found in seen]
        lost = sum(lost for _, _, lost, _ in seen)
        self.diverged += lost
        self.update += 1
        due = self.update % s.validate_every == 0 or self.update == s.updates
        far, expected = self._move() if due else (0.0, None)
        self.seconds += time.perf_counter() - began
        return Round(self.update, [about for _, about, _, _ in seen], lost, far, expected)

    def trial(self, episode: Episode, seed: int) -> tuple[Trial, int]:
        """The task of an episode under the present rule and those about it; how many diverged."""
        s = self.settings
        noise = s.sigma * draws.normal(draws.keys([seed], "places"), s.pairs, len(self.along))[0]
        places = self.place + torch.cat([torch.zeros(1, len(self.along)), noise, -noise])
        rule = episodes.with_weights(self.rule, moved(self.start, self.along, places))
        training = episodes.train(rule, episode, len(places))
        return Trial(places, episodes.final_log(training)), episodes.diverged(training)

    def _move(self) -> tuple[float, float]:
        """Move the rule to where all trials so far say that it is lowest; how far that is, and the
        loss that is expected there."""
        surface = fit(self.trials)
        place = lowest(surface, self.place, RADIUS)
        if self.ranks > 1:  # each has found the same, but for rounding
            dist.broadcast(place, 0)
        far, self.place = float((place - self.place).norm()), place
        self._settle()
        return far, surface.at(place)

    @torch.no_grad()
    def _settle(self) -> None:
        """Make the rule, and its average, the one at the present place."""
        for rule in (self.rule, self.average):
            for x, value in zip(
                rule.parameters(), moved(self.start, self.along, self.place), strict=True
            ):
                x.copy_(value)

    def provenance(self) -> dict[str, Any]:
        """With the place, by the names of directions."""
        named = zip(self.along, self.place.tolist(), strict=True)
        place = {direction.name: round(value, 4) for direction, value in named}
        return super().provenance() | {"place": place}

    def extras(self) -> dict[str, Any]:
        trials = [tuple(x) for x in self.trials]
        return super().extras() | {"trials": trials, "place": self.place}

    def restore(self, content: dict[str, Any]) -> None:
        super().restore(content)
        self.trials, self.place = [Trial(*x) for x in content["trials"]], content["place"]
