"""Sequence prediction: an LSTM reads ten noisy samples of a sine wave and foretells the next, mean squared error."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from hyperadam.data.draws import Seeds, Steps
from hyperadam.data.sine import sine_sequences
from hyperadam.tasks.base import Task
from hyperadam.tasks.learners import LSTM, size, unflatten


class SineBatch(NamedTuple):
    """Noisy inputs ``(runs, length, n)`` and clean targets ``(runs, n)``, float64."""

    inputs: Tensor
    targets: Tensor


class SinePrediction(Task[SineBatch]):
    """An LSTM trained on sine sequences, fresh at every step.

    Args:
        learner: the network.
        noise: standard deviation of the noise on the inputs.
        batch_size: sequences a batch.
    """

    def __init__(self, learner: LSTM, noise: float = 0.1, batch_size: int = 128) -> None:
        super().__init__(size(learner.shapes()), learner.shapes())
        self.learner, self.noise, self.batch_size = learner, noise, batch_size
        self.title = f"sine waves with noise {noise:g}, {learner}"

    def batch(self, seeds: Seeds, step: Steps) -> SineBatch:
        return SineBatch(*sine_sequences(seeds, step, self.batch_size, self.noise))

    def losses(self, params: Tensor, batch: SineBatch) -> Tensor:
        weights = unflatten(params, self.learner.shapes())
        predictions = self.learner(weights, batch.inputs.to(params.dtype))
        return (predictions - batch.targets.to(params.dtype)).square().mean(1)
