"""Tasks: learners with their losses and data, batched over runs, by short names such as ``mnist-mlp`` or ``sine-lstm-2``."""

from hyperadam.tasks.base import Metrics, Task
from hyperadam.tasks.images import Classification, ImageBatch
from hyperadam.tasks.modules import ModuleTask, examples, windows
from hyperadam.tasks.registry import FORMS, get, names, register
from hyperadam.tasks.sine import SineBatch, SinePrediction

__all__ = [
    "FORMS",
    "Classification",
    "ImageBatch",
    "Metrics",
    "ModuleTask",
    "SineBatch",
    "SinePrediction",
    "Task",
    "examples",
    "get",
    "names",
    "register",
    "windows",
]
