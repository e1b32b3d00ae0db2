"""Steps of many runs as one computation: parameters ``(runs, p)``, moved in place, and no run ever
meets another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hyperadam.kernels import RuleStepper

__all__ = ["RuleStepper", "Stepper", "TorchStepper"]


class Stepper(Protocol):
    """An optimizer at work on ``params (runs, p)``. A run's numbers are the same, to the bit, in
    any company."""

    params: Tensor

    def step(self, grad: Tensor) -> None:
        """Move ``params`` in place, given their gradient ``(runs, p)``."""

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` needs to go on exactly here; loads with
        ``weights_only=True``."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of a stepper of the same kind and size."""


class TorchStepper:
    """An optimizer of ``torch.optim`` that treats each coordinate alone: to it, all runs are one
    tensor."""

    def __init__(
        self,
        params: Tensor,
        lr: float,
        kind: type[torch.optim.Optimizer],
        options: Mapping[str, Any],
    ) -> None:
        self.params = params
        self._parameter = nn.Parameter(params)  # the same memory
        # the plain loop over tensors: fused momentum gives a run other bits in other company, and
        # the gradient costs far more
        self._optimizer = kind([self._parameter], lr=lr, foreach=False, **options)  # type: ignore[call-arg]

    def step(self, grad: Tensor) -> None:
        self._parameter.grad = grad
        self._optimizer.step()
        self._parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state)
