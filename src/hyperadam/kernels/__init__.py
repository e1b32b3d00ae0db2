"""How a rule is stepped: one contract, the rule itself in tiles, and faster backends."""

from hyperadam.kernels.base import Batch, Kernel, Motion, Part
from hyperadam.kernels.choice import available, make_kernel, make_sampled_tape, make_tape
from hyperadam.kernels.sampled import Sample, SampledTape
from hyperadam.kernels.stepper import RuleStepper, TensorStepper
from hyperadam.kernels.tape import Tape

__all__ = [
    "Batch",
    "Kernel",
    "Motion",
    "Part",
    "RuleStepper",
    "Sample",
    "SampledTape",
    "Tape",
    "TensorStepper",
    "available",
    "make_kernel",
    "make_sampled_tape",
    "make_tape",
]
