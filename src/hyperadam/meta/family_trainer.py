"""What trainers on the family share: the rule they train, and how it is judged."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hyperadam.meta import episodes
from hyperadam.meta.training import MetaTrainer
from hyperadam.meta.validation import validation_episodes
from hyperadam.rules.base import UpdateRule
from hyperadam.rules.hyperadam2 import HyperAdam2Rule

#: In validation a task counts for at most this logarithm of a ratio, either way: where a learner is
#: fitted to a thousandth of its first loss, chance moves it by far more. And a rule is to help most
#: tasks, not one by far.
CHANCE = 0.2


class Comparison(NamedTuple):
    """The mean logarithm of final losses over those of the untrained start, after few steps (100,
    unless the settings say otherwise) and after ten times as many: below zero is better."""

    update: int
    short: float
    long: float

    @property
    def score(self) -> float:
        """What decides: the two weigh the same."""
        return (self.short + self.long) / 2

    def describe(self) -> str:
        return (
            f"{self.score:+.4f} ({self.short:+.4f} after 100 steps, {self.long:+.4f} after 1,000)"
        )


class FamilyTrainer(MetaTrainer):
    """Meta-trains HyperAdam2 on tasks of the family, and judges it on others of them."""

    Judgement = Comparison
    rule: HyperAdam2Rule
    average: HyperAdam2Rule

    def prepare(self) -> None:
        if not isinstance(self.rule, HyperAdam2Rule):
            raise ValueError(f"{type(self).__name__} is HyperAdam2's alone, not {self.rule.kind}'s")
        self._begun: list[float] | None = None  # final losses of the untrained start

    # Validation -----------------------------------------------------------------------------------

    def judge(self) -> Comparison:
        """The averaged rule beside the untrained start, on tasks that are kept for it."""
        if self._begun is None:
            self._begun = self._finals(self.settings.make_rule().requires_grad_(False))
        finals = self._finals(self.average) if self.update else self._begun
        ratio = (torch.tensor(finals) - torch.tensor(self._begun)).clamp(-CHANCE, CHANCE)
        return Comparison(self.update, *ratio.view(2, -1).mean(1).tolist())

    def _finals(self, rule: UpdateRule[Any]) -> list[float]:
        """The logarithms of the final losses of all validation episodes, spread over the ranks."""
        assert isinstance(rule, HyperAdam2Rule)  # prepare() saw to it
        every = validation_episodes(self.settings.validation_runs, self.settings.validation_steps)
        mine = {
            k: float(episodes.final_log(episodes.train(rule, every[k], 1)))
            for k in range(self.rank, len(every), self.ranks)
        }
        if self.ranks > 1:
            gathered: list[Any] = [None] * self.ranks
            dist.all_gather_object(gathered, mine)
            mine = {k: value for part in gathered for k, value in part.items()}
        return [mine[k] for k in range(len(every))]

    def datasets(self) -> set[str]:
        return {"mnist"}

    def taught_by(self) -> str:
        return "the task family"

    def extras(self) -> dict[str, Any]:
        return {"begun": self._begun}

    def restore(self, content: dict[str, Any]) -> None:
        self._begun = content["begun"]
