"""The result of training a task with an optimizer from some seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

#: What is measured on a test set, each a number a run.
TEST = ("loss", "top1", "top2")


def settings_key(settings: Mapping[str, Any]) -> str:
    """A short name for settings: a hash of them."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Result:
    """What came of training.

    A run that diverged has the final loss ∞, and losses ∞ from where it stopped.

    Attributes:
        settings: all that a run's numbers depend on but for its seed: the task, the optimizer with
            its hyper-parameters, rate and weights' hash, the number of steps. An option that is at
            its default has no entry: a new option changes no settings from before it.
        seeds: one a run.
        losses: per run and step, before the step, ``(runs, steps)``.
        final_loss: of each run by the protocol, ``(runs,)``: the mean at its final parameters over
            batches that it saw.
        diverged_at: the step at which a run's loss, gradient or parameters ceased to be finite;
            ``None`` if they did not.
        test: on the test set, by the names in :data:`TEST`, ``(runs,)`` each, undefined for a run
            that diverged; ``None`` if it was not asked for.
        made_with: versions of what computed it.
        label: what to call the optimizer in tables.
        lr_source: where its learning rate comes from, in words.
        measures: what else was measured, by name; not kept in the result's file.
        pooled: of how many runs each row is the mean, where rows are meta-seeds (:func:`pool`).
    """

    settings: dict[str, Any]
    seeds: tuple[int, ...]
    losses: Tensor
    final_loss: Tensor
    diverged_at: tuple[int | None, ...]
    test: Mapping[str, Tensor] | None
    made_with: dict[str, str]
    label: str
    lr_source: str = ""
    measures: Mapping[str, Tensor] = field(default_factory=dict)
    pooled: int = 0

    @property
    def task(self) -> str:
        return str(self.settings["task"])

    @property
    def optimizer(self) -> str:
        return str(self.settings["optimizer"])

    @property
    def lr(self) -> float:
        return float(self.settings["lr"])

    @property
    def steps(self) -> int:
        return int(self.settings["steps"])

    @property
    def runs(self) -> int:
        return len(self.seeds)

    @property
    def one(self) -> str:
        """What a row is."""
        return "meta-seed" if self.pooled else "run"

    @property
    def diverged(self) -> int:
        """How many runs diverged."""
        return sum(at is not None for at in self.diverged_at)

    @property
    def key(self) -> str:
        """A hash of all that the numbers depend on, seeds included."""
        return settings_key(self.settings | {"seeds": list(self.seeds)})

    def take(self, rows: Sequence[int]) -> Result:
        """Some of the runs, by their places."""
        if list(rows) == list(range(self.runs)):
            return self
        index = torch.tensor(list(rows), dtype=torch.long)
        test = self.test and {name: values[index] for name, values in self.test.items()}
        return replace(
            self,
            seeds=tuple(self.seeds[row] for row in rows),
            losses=self.losses[index],
            final_loss=self.final_loss[index],
            diverged_at=tuple(self.diverged_at[row] for row in rows),
            test=test,
        )


def merge(results: Sequence[Result]) -> Result:
    """One result of several that differ in their seeds alone; versions are those of the first."""
    first = results[0]
    if len(results) == 1:
        return first
    if any(result.settings != first.settings for result in results):
        raise ValueError("results can be merged if they differ in their seeds alone")
    test = None
    if first.test is not None:
        test = {
            name: torch.cat([result.test[name] for result in results if result.test])
            for name in first.test
        }
    return replace(
        first,
        seeds=tuple(seed for result in results for seed in result.seeds),
        losses=torch.cat([result.losses for result in results]),
        final_loss=torch.cat([result.final_loss for result in results]),
        diverged_at=tuple(at for result in results for at in result.diverged_at),
        test=test,
    )


def pool(by_meta_seed: Mapping[int, Result]) -> Result:
    """One result of a rule that was meta-trained from several seeds: a row for each, the mean over
    its runs, and ``seeds`` that are the meta-seeds.

    What is said of it is then said of the rule, not of one start of its meta-training. Each row has
    the same runs: a meta-seed that has fewer than another is left out until it has them all.
    """
    most = max((result.seeds for result in by_meta_seed.values()), key=len)
    chosen = {seed: r for seed, r in sorted(by_meta_seed.items()) if r.seeds == most}
    results = list(chosen.values())
    first = results[0]
    weights = " ".join(str(result.settings.get("weights", "")) for result in results)
    test = None
    if first.test is not None:
        test = {
            name: torch.stack(
                [result.test[name].double().mean() for result in results if result.test]
            )
            for name in first.test
        }
    return replace(
        first,
        settings=first.settings | {"weights": weights},
        seeds=tuple(chosen),
        losses=torch.stack([result.losses.double().mean(0) for result in results]),
        final_loss=torch.stack([result.final_loss.double().mean() for result in results]),
        diverged_at=tuple(
            min((at for at in result.diverged_at if at is not None), default=None)
            for result in results
        ),
        test=test,
        pooled=first.runs,
    )
