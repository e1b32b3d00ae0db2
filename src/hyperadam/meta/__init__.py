"""Meta-training: rollouts of learners, estimators of the meta-gradient, the trainer and its checkpoints."""

from hyperadam.meta.settings import PRESETS, Settings, preset
from hyperadam.meta.trainer import Trainer

__all__ = ["PRESETS", "Settings", "Trainer", "preset"]
