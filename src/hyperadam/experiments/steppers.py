"""Steps of many runs as one computation: parameters ``(runs, p)``, moved in place, and no run ever meets another."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hyperadam.kernels import FusedKernel, make_kernel
from hyperadam.kernels.base import padded_rows
from hyperadam.rules import UpdateRule
from hyperadam.rules.base import Sums


class Stepper(ABC):
    """An optimizer at work on ``params (runs, p)``. A run's numbers are the same, to the bit, in any company."""

    def __init__(self, params: Tensor) -> None:
        self.params = params

    @abstractmethod
    def step(self, grad: Tensor) -> None:
        """Move ``params`` in place, given their gradient ``(runs, p)``."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` needs to go on exactly here; loads with ``weights_only=True``."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of a stepper of the same kind and size."""


class TorchStepper(Stepper):
    """An optimizer of ``torch.optim`` that treats each coordinate alone: to it, all runs are one tensor."""

    def __init__(self, params: Tensor, lr: float, kind: type[torch.optim.Optimizer], options: Mapping[str, Any]) -> None:
        super().__init__(params)
        self._parameter = nn.Parameter(params)  # the same memory
        # the plain loop over tensors: fused momentum gives a run other bits in other company, and the gradient costs far more
        self._optimizer = kind([self._parameter], lr=lr, foreach=False, **options)  # type: ignore[call-arg]

    def step(self, grad: Tensor) -> None:
        self._parameter.grad = grad
        self._optimizer.step()
        self._parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state)


class RuleStepper(Stepper):
    """A learned rule, on its fused kernel where it has one."""

    def __init__(self, params: Tensor, lr: float, rule: UpdateRule[Any]) -> None:
        super().__init__(params)
        self.lr, self.rule = lr, copy.deepcopy(rule).requires_grad_(False)
        self._kernel = make_kernel(self.rule)
        # a rule without norms knows no vectors, only coordinates: all runs are then one long vector, gone through in tiles
        self._vectors = params if self.rule.rounds else params.view(1, -1)
        rows = list(self.rule.state_rows().values())
        self._state = self.rule.State(*padded_rows(self._vectors.unsqueeze(1), rows))
        self._update = torch.empty_like(params)
        self._steps = 0
        self._weights = self._kernel.weights(params) if isinstance(self._kernel, FusedKernel) else None

    @property
    def backend(self) -> str:
        """What computes the step, one of :func:`hyperadam.kernels.available`."""
        return self._kernel.name

    @torch.no_grad()
    def step(self, grad: Tensor) -> None:
        self._steps += 1
        lr = self.lr * self.rule.pace(self._steps)
        if isinstance(self._kernel, FusedKernel) and self._weights is not None:
            sums: Sums = ()
            for _ in range(self.rule.rounds):
                sums += (self._kernel.sums(self._weights, grad, self._state, sums),)
            self._kernel.forward(self._weights, grad, self._state, sums, self._state, self._update)
            self.params.add_(self._update, alpha=-lr)
            return
        for number, (w, g) in enumerate(zip(self._vectors, grad.view_as(self._vectors), strict=True)):
            state = self.rule.State(*(x[number] for x in self._state))
            sums = ()
            for _ in range(self.rule.rounds):
                sums += (self._kernel.column_sums(g, state, sums),)
            w.add_(self._kernel.step_(g, state, sums), alpha=-lr)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps} | dict(zip(self.rule.state_rows(), self._state, strict=True))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]
        for name, mine in zip(self.rule.state_rows(), self._state, strict=True):
            mine.copy_(state[name])
