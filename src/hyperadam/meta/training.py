"""What every meta-trainer does, whatever its estimator: updates, validation, files,
resuming, ranks."""

from __future__ import annotations

import json
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch.distributed as dist
from torch import Tensor

from hyperadam.data import catalog
from hyperadam.files import Damaged
from hyperadam.meta.checkpoint import Checkpoints
from hyperadam.meta.ranks import alone_in
from hyperadam.meta.resume import Change, changed, newest
from hyperadam.meta.settings import Settings
from hyperadam.meta.update import MetaOptimizer


class Outcome(Protocol):
    """What one meta-update saw; a NamedTuple of plain types."""

    @property
    def update(self) -> int:
        """How many updates there have been."""

    @property
    def norm(self) -> float:
        """Of the meta-gradient."""

    def values(self) -> dict[str, float]:
        """Losses by the names of what they are of."""

    def describe(self) -> str:
        """In a few words, for a line of progress."""

    def _asdict(self) -> dict[str, Any]: ...


class Judgement(Protocol):
    """What a validation found; a NamedTuple, first the update, then numbers that are better if
    lower."""

    @property
    def update(self) -> int:
        """After how many updates."""

    @property
    def score(self) -> float:
        """What decides."""

    def describe(self) -> str:
        """In a few words."""

    def _asdict(self) -> dict[str, Any]: ...


Report = Callable[[Any, Any], None]


class MetaTrainer(ABC):
    """Meta-trains one rule into the directory ``out``, where it also finds the checkpoint to resume
    from.

    Under ``torch.distributed`` each rank has its share of an update's rollouts and meta-gradients
    are added up, so that N ranks do what one does alone. Random numbers come from the seed and from
    numbers of what they are for: a resumed run repeats an uninterrupted one."""

    #: Makes what :meth:`judge` returns, a NamedTuple, from its values.
    Judgement: ClassVar[Callable[..., Any]]

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
        self.optimizer = MetaOptimizer(self.rule, self.average, settings)
        self.update, self.diverged, self.nonfinite, self.seconds = 0, 0, 0, 0.0
        self.best = math.inf
        self.curve: list[Any] = []
        self.changes: list[Change] = []
        name = f"checkpoint-{self.rank}.pt" if self.ranks > 1 else "checkpoint.pt"
        self.checkpoints = Checkpoints(out / name)
        self.prepare()
        self._resume()

    # What an estimator adds -----------------------------------------------------------------------

    @abstractmethod
    def prepare(self) -> None:
        """Set up what the estimator needs; a checkpoint may be laid over it afterwards."""

    @abstractmethod
    def step(self) -> Any:
        """One meta-update; returns an :class:`Outcome`."""

    @abstractmethod
    def judge(self) -> Any:
        """How the averaged rule does on what is kept for validation; returns a
        :class:`Judgement`."""

    @abstractmethod
    def datasets(self) -> set[str]:
        """The names of the datasets that it learns from; generated data have none."""

    @abstractmethod
    def taught_by(self) -> str:
        """What it is meta-trained on, in a few words."""

    @abstractmethod
    def extras(self) -> dict[str, Any]:
        """What else a checkpoint must hold."""

    @abstractmethod
    def restore(self, content: dict[str, Any]) -> None:
        """Take over :meth:`extras` from a checkpoint."""

    # One meta-update ------------------------------------------------------------------------------

    def apply(self, gradients: Sequence[Tensor]) -> None:
        """Move the rule against the meta-gradient, and its running average after it."""
        self.optimizer.apply(gradients, self.update)
        self.update += 1

    def lr(self) -> float:
        """The step size of the next meta-update."""
        return self.optimizer.lr(self.update)

    def share(self, total: list[Tensor], seen: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Add up the ranks' meta-gradients; every rank learns what all rollouts saw, in the order
        of their slots."""
        if self.ranks > 1:
            for x in total:
                dist.all_reduce(x)
            gathered: list[Any] = [None] * self.ranks
            dist.all_gather_object(gathered, seen)
            seen = [entry for part in gathered for entry in part]
        return sorted(seen)

    def slots(self) -> range:
        """This rank's share of the rollouts of an update."""
        return range(self.rank, self.settings.rollouts, self.ranks)

    # Validation and files -------------------------------------------------------------------------

    def validate(self) -> Any:
        """Judge the averaged rule; the best so far is kept in ``best.safetensors``."""
        result = self.judge()
        self.curve.append(result)
        if result.score < self.best:
            self.best = result.score
            if self.rank == 0:
                self.average.provenance = self.provenance()
                self.average.save(self.out / "best.safetensors")
        return result

    def _what(self) -> str:
        how = f"on {self.taught_by()}, seed {self.settings.seed}"
        return f"meta-trained {how}" if self.update else f"untrained: before meta-training {how}"

    def provenance(self) -> dict[str, Any]:
        """What made the weights: goes into their file."""
        return {
            "made_by": "hyperadam meta-train",
            "what": self._what(),
            "preset": self.settings.preset,
            "settings": self.settings.as_dict(),
            **({"changes": [list(change) for change in self.changes]} if self.changes else {}),
            "data": {name: catalog.find(name).sha256 for name in sorted(self.datasets())},
            "updates": self.update,
            "validation": [
                [update, *(round(value, 5) for value in values)] for update, *values in self.curve
            ],
            "diverged": self.diverged,
            "nonfinite": self.nonfinite,
            "seconds": round(self.seconds),
        }

    def save(self) -> None:
        """Checkpoint this rank; the others save their own."""
        content = {
            "settings": json.dumps(self.settings.as_dict(), sort_keys=True),
            "ranks": self.ranks,
            "update": self.update,
            **self.optimizer.content(),
            "counts": (self.diverged, self.nonfinite, self.seconds),
            "best": self.best,
            "curve": [tuple(result) for result in self.curve],
            "changes": [tuple(change) for change in self.changes],
        }
        self.checkpoints.save(content | self.extras())

    def _resume(self) -> None:
        """Go on from the newest checkpoint that all ranks have, if there is one."""
        contents, faults = self.checkpoints.load()
        update, remark = newest(contents, faults, self.out, self.ranks)
        for fault in faults:
            self._say(f"{fault}; going on from update {update}")
        if remark:
            self._say(remark)
        self.checkpoints.go_on_from(update)
        content = next((content for content in contents if content["update"] == update), None)
        if content is None:
            return
        path = self.checkpoints.path
        changes = changed(self.settings, content.get("settings"), update)
        if changes is None or content.get("ranks") != self.ranks:
            raise ValueError(
                f"{path} belongs to other settings or another number of ranks: "
                "choose another directory"
            )
        try:
            self._take_over(content)
            self.changes += changes
            for _, name, before, after in changes:
                self._say(f"{path}: from update {update} on, {name} is {after}, no longer {before}")
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            raise Damaged(f"{path} is not a checkpoint of this version ({why})") from error

    def _take_over(self, content: dict[str, Any]) -> None:
        self.optimizer.restore(content)
        self.update, self.best = content["update"], content["best"]
        self.curve = [self.Judgement(*result) for result in content["curve"]]
        self.diverged, self.nonfinite, self.seconds = content["counts"]
        self.changes = [Change(*change) for change in content.get("changes", [])]
        self.restore(content)

    def _say(self, line: str) -> None:
        print(f"hyperadam: {line}", file=sys.stderr, flush=True)

    def run(self, report: Report, stop: Callable[[], bool], save_every: float = 60.0) -> None:
        """Train to the last update, or until ``stop`` says so; ``report`` gets every outcome, and
        each validation's result. Another process that is at work in the same directory is an
        ``InUse`` error."""
        with alone_in(self.out):
            self._run(report, stop, save_every)

    def _run(self, report: Report, stop: Callable[[], bool], save_every: float) -> None:
        saved = time.monotonic()
        while self.update < self.settings.updates and not stop():
            outcome = self.step()
            due = (
                self.update % self.settings.validate_every == 0
                or self.update == self.settings.updates
            )
            report(outcome, self.validate() if due else None)
            # ranks keep their clocks apart, and must save at the same update: they do so when they
            # validate
            if due or (self.ranks == 1 and time.monotonic() - saved > save_every):
                self.save()
                saved = time.monotonic()
        self.save()
