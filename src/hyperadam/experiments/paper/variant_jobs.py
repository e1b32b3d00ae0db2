"""Meta-training the variants of the ablations, as jobs that resume."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from hyperadam.experiments.jobs import Interrupted, Job
from hyperadam.experiments.paper.variants import Variant
from hyperadam.files import write_atomically
from hyperadam.meta import Trainer
from hyperadam.meta.trainer import MetaUpdate, Validation
from hyperadam.results import settings_key
from hyperadam.weights.loader import SUFFIX, WeightsError, load_rule

#: Seconds for a meta-update, roughly, for each candidate: with detached gradients and through them.
UPDATE = 0.02


@dataclass(frozen=True)
class VariantJob(Job):
    """Meta-train a variant; the best weights by validation become a file in ``folder`` that says
    what made it."""

    variant: Variant
    folder: Path

    @property
    def label(self) -> str:
        return f"meta-train {self.variant.file}"

    @property
    def work(self) -> float:
        settings = self.variant.settings
        return (
            UPDATE
            * settings.updates
            * settings.rollouts
            * float(settings.config.get("candidates", 20))
        )

    @property
    def key(self) -> str:
        """The address of the weights: a hash of all that meta-training depends on."""
        return settings_key(self.variant.settings.as_dict())

    @property
    def path(self) -> Path:
        return self.folder / f"{self.variant.file}{SUFFIX}"

    @property
    def done(self) -> bool:
        """Whether weights made with these very settings are there."""
        try:
            return bool(
                self.path.is_file() and load_rule(str(self.path)).provenance.get("key") == self.key
            )
        except WeightsError:
            return False

    def compute(self, folder: Path, progress: Callable[[float], None]) -> bytes:
        out = folder / "ablations" / f"{self.variant.file}.{self.key}"
        torch.set_flush_denormal(
            True
        )  # vanishing gradients leave subnormal moments, which are slow
        try:
            trainer = Trainer(self.variant.settings, out)
            if trainer.update == 0:
                trainer.validate()

            def report(outcome: MetaUpdate, validation: Validation | None) -> None:
                progress(outcome.update / self.variant.settings.updates)

            try:
                trainer.run(report, lambda: False)
            except (Interrupted, KeyboardInterrupt):
                trainer.save()
                raise
        finally:
            torch.set_flush_denormal(False)
        best = out / f"best{SUFFIX}"
        rule = load_rule(str(best))
        rule.provenance |= {
            "made_by": "hyperadam reproduce",
            "key": self.key,
            "seconds": round(trainer.seconds),
        }
        rule.save(best)
        return best.read_bytes()

    def keep(self, value: bytes) -> None:
        write_atomically(self.path, value)
        shutil.rmtree(self.folder / f"{self.variant.file}.{self.key}", ignore_errors=True)
