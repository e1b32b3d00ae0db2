"""A random family of small tasks for meta-training by evolution strategies: ``family.draw(seed)``."""

from hyperadam.tasks.family.drawing import KINDS, draw, usual
from hyperadam.tasks.family.task import FamilyTask

__all__ = ["KINDS", "FamilyTask", "draw", "usual"]
