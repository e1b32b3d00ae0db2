"""Meta-training: rollouts of learners, estimators of the meta-gradient, the trainers and their
checkpoints."""

from pathlib import Path

from hyperadam.meta.evolution import EvolutionTrainer
from hyperadam.meta.settings import PRESETS, Settings, preset
from hyperadam.meta.slope_trainer import SlopeTrainer
from hyperadam.meta.trainer import Trainer
from hyperadam.meta.training import MetaTrainer

__all__ = [
    "PRESETS",
    "EvolutionTrainer",
    "MetaTrainer",
    "Settings",
    "SlopeTrainer",
    "Trainer",
    "make_trainer",
    "preset",
]

#: The trainers by the estimators they use.
TRAINERS: dict[str, type[MetaTrainer]] = {
    "bptt": Trainer,
    "es": EvolutionTrainer,
    "slopes": SlopeTrainer,
}


def make_trainer(settings: Settings, out: Path) -> MetaTrainer:
    """The trainer for the settings' estimator, resumed if ``out`` has its checkpoint."""
    return TRAINERS[settings.estimator](settings, out)
