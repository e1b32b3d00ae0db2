"""The rollouts that meta-training by back-propagation goes on with, a slot for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hyperadam import tasks
from hyperadam.data import draws
from hyperadam.meta.estimators import Position, StepSize, step_size
from hyperadam.meta.learner import Learner
from hyperadam.meta.settings import Settings
from hyperadam.rules import UpdateRule


@dataclass
class Rollout:
    """One training of a learner, in slot ``slot``; ``number`` counts those of the slot."""

    slot: int
    number: int
    learner: Learner
    length: int
    first_loss: float
    size: StepSize
    position: Position

    @property
    def ended(self) -> bool:
        return self.position.step >= self.length


class Rollouts:
    """One rollout for each of some slots, under way. Random numbers come from the seed and the
    numbers of slot and rollout.

    At the very start slots are staggered: each has a shorter first rollout than the one before, so
    that a meta-update sees early and late periods alike.
    """

    def __init__(self, settings: Settings, rule: UpdateRule[Any], slots: Iterable[int]) -> None:
        self.settings, self.rule = settings, rule
        self.tasks = {name: tasks.get(name) for name in dict.fromkeys(settings.tasks)}
        self._current = {slot: self._begin(slot, 0, stagger=True) for slot in slots}

    def __iter__(self) -> Iterator[Rollout]:
        """Those under way, in the order of their slots; one may be renewed on the way."""
        return iter(list(self._current.values()))

    def renew(self, rollout: Rollout) -> None:
        """Begin the next rollout of its slot."""
        self._current[rollout.slot] = self._begin(rollout.slot, rollout.number + 1)

    def content(self) -> list[Any]:
        """What a checkpoint must hold of them."""
        return [
            (
                r.slot,
                r.number,
                r.length,
                r.first_loss,
                (*r.position[:1], list(r.position.state), *r.position[2:]),
            )
            for r in self
        ]

    def restore(self, content: Iterable[Any]) -> None:
        """Go on with those of a checkpoint."""
        self._current = {}
        for slot, number, length, first_loss, (params, state, step, loss, grad) in content:
            learner = self._learner(slot, number)
            position = Position(params, tuple(state), step, loss, grad)
            self._current[slot] = Rollout(
                slot, number, learner, length, first_loss, self._size(learner, length), position
            )

    def _begin(self, slot: int, number: int, stagger: bool = False) -> Rollout:
        s, learner = self.settings, self._learner(slot, number)
        pick = int(draws.integers(draws.keys(learner.seeds, "meta length"), len(s.lengths))[0])
        periods = max(s.lengths) // s.period if len(s.lengths) == 1 else s.lengths[pick] // s.period
        length = s.period * (1 + (periods - 1 - slot) % periods if stagger else periods)
        params = learner.init()
        state = self.rule.init_state(params)
        loss, grad, _ = learner.loss_and_grad(params, 0)
        position = Position(params, tuple(state), 0, loss, grad)
        size = self._size(learner, length)
        return Rollout(slot, number, learner, length, loss.item(), size, position)

    def _learner(self, slot: int, number: int) -> Learner:
        s = self.settings
        seed = int(draws.keys([s.seed], f"rollout {slot}", number)[0])
        task = self.tasks[s.tasks[(slot + number) % len(s.tasks)]]
        return Learner(task, seed, s.scaling, s.convex)

    def _size(self, learner: Learner, length: int) -> StepSize:
        s = self.settings
        return step_size(self.rule, learner, length if s.horizon else None, s.shorter)
