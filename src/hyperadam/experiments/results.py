"""The result of training a task with an optimizer from many seeds, and the two files it is kept in."""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hyperadam.experiments.atomic import atomic_write, write_text
from hyperadam.tasks import Metrics

FORMAT = "hyperadam-result/1"


def settings_key(settings: dict[str, Any]) -> str:
    """The address of a result: a hash of all that it depends on."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Result:
    """What came of training. A run that diverged has the final loss ∞, and losses ∞ from where it stopped.

    Attributes:
        settings: all that the numbers depend on: task, optimizer with its hyper-parameters, rate and weights' hash, steps,
            seeds, and how many of its batches a run's final loss is the mean over.
        label: what to call the optimizer in tables, and ``lr_source`` where its learning rate comes from.
        losses: per run and step, before the step, ``(runs, steps)``.
        final_loss: of each run by the protocol, ``(runs,)``: the mean at its final parameters over the batches that it saw.
        diverged_at: the step at which a run's loss, gradient or parameters ceased to be finite; ``None`` if they did not.
        test: on the test set, if asked for; undefined for a run that diverged.
        made_with: versions of what computed it.
        measures: what else was measured, by name, a number a run; not kept in the result's own files.
    """

    settings: dict[str, Any]
    label: str
    lr_source: str
    losses: Tensor
    final_loss: Tensor
    diverged_at: tuple[int | None, ...]
    test: Metrics | None
    made_with: dict[str, str]
    measures: Mapping[str, Tensor] = field(default_factory=dict)

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
        return len(self.final_loss)

    @property
    def diverged(self) -> int:
        """How many runs diverged."""
        return sum(at is not None for at in self.diverged_at)

    @property
    def key(self) -> str:
        """The address of the result, a hash of its settings."""
        return settings_key(self.settings)

    def save(self, path: Path) -> None:
        """Write ``path``, JSON, and beside it the losses as a compressed ``.npz``; each whole or not at all."""
        curves = path.with_suffix(".npz")
        with atomic_write(curves) as file:
            np.savez_compressed(file, losses=self.losses.numpy())
        # last: where the JSON is, the curves are
        record = {
            "format": FORMAT,
            "key": self.key,
            "label": self.label,
            "lr_source": self.lr_source,
            "settings": self.settings,
            "final_loss": _numbers(self.final_loss),
            "diverged_at": list(self.diverged_at),
            "test": self.test
            and {name: _numbers(value) for name, value in self.test._asdict().items()},
            "losses": curves.name,
            "made_with": self.made_with,
        }
        write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Result:
        """Read what :meth:`save` wrote; a file that is no result is refused with a message that names it."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["format"] != FORMAT:
                raise ValueError(f"its format is {record['format']!r}, expected {FORMAT!r}")
            with np.load(path.with_name(record["losses"]), allow_pickle=False) as arrays:
                losses = torch.from_numpy(arrays["losses"])
            test = record["test"] and Metrics(
                *(_tensor(record["test"][name], math.nan) for name in Metrics._fields)
            )
            settings = record["settings"]
            if losses.shape != (len(settings["seeds"]), settings["steps"]):
                raise ValueError(f"its losses are {tuple(losses.shape)}")
            return cls(
                settings,
                record["label"],
                record["lr_source"],
                losses,
                _tensor(record["final_loss"], math.inf),
                tuple(record["diverged_at"]),
                test,
                record["made_with"],
            )
        except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{path} is not a result that can be read ({error}): delete it and run again"
            ) from error


def merge(results: Sequence[Result]) -> Result:
    """One result of several that differ in their seeds alone."""
    first = results[0]
    if len(results) == 1:
        return first
    settings = first.settings | {
        "seeds": [seed for result in results for seed in result.settings["seeds"]]
    }
    if any(result.settings | {"seeds": 0} != first.settings | {"seeds": 0} for result in results):
        raise ValueError("results can be merged if they differ in their seeds alone")
    tests = [result.test for result in results if result.test is not None]
    return Result(
        settings,
        first.label,
        first.lr_source,
        torch.cat([result.losses for result in results]),
        torch.cat([result.final_loss for result in results]),
        tuple(at for result in results for at in result.diverged_at),
        Metrics(*(torch.cat(parts) for parts in zip(*tests, strict=True))) if tests else None,
        first.made_with,
    )


def _numbers(values: Tensor) -> list[float | None]:
    """Numbers for JSON, exact in float32; what is not finite has no place there."""
    return [float(f"{x:.9g}") if math.isfinite(x) else None for x in values.tolist()]


def _tensor(numbers: list[float | None], missing: float) -> Tensor:
    return torch.tensor([missing if x is None else x for x in numbers], dtype=torch.float32)
