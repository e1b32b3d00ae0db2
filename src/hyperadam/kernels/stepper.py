"""A rule at work on many runs as one computation, without a way back."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from hyperadam.kernels.base import Motion, Part
from hyperadam.kernels.choice import make_kernel
from hyperadam.rules.base import UpdateRule


class RuleStepper:
    """Steps ``params (runs, p)`` in place. A run's numbers are the same, to the bit, in any company
    (but for the rounding of a bfloat16 state, which depends on a run's place)."""

    def __init__(
        self,
        params: Tensor,
        lr: float,
        rule: UpdateRule[Any],
        state_dtype: torch.dtype | None = None,
    ) -> None:
        self.params, self.lr, self.rule = params, lr, copy.deepcopy(rule).requires_grad_(False)
        self.kernel = make_kernel(self.rule, state_dtype=state_dtype)
        # a rule without norms knows no vectors, only coordinates: all runs are then one long vector
        self._vectors = params if self.rule.rounds else params.view(1, -1)
        fields = self.rule.init_state(self._vectors)
        self._state = self.rule.State(*(x.to(self.kernel.state_dtype) for x in fields))
        self._batch = self.kernel.admit([Part(self._vectors, self._state)], runs=len(self._vectors))
        self._steps = 0

    @property
    def backend(self) -> str:
        """What computes the step, one of :func:`hyperadam.kernels.available`."""
        return self.kernel.name

    @torch.no_grad()
    def step(self, grad: Tensor) -> None:
        """Move ``params``, given their gradient ``(runs, p)``."""
        self._steps += 1
        self.kernel.take(self._batch, [grad.contiguous()])
        sums = self.rule.total_sums(lambda earlier: self.kernel.sums(self._batch, earlier))
        self.kernel.step_(
            self._batch, sums, [Motion(self.lr * self.rule.pace(self._steps), seed=self._steps)]
        )

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` needs to go on here; loads with ``weights_only=True``."""
        return {"steps": self._steps} | dict(zip(self.rule.state_rows(), self._state, strict=True))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of a stepper of the same rule and size."""
        self._steps = state["steps"]
        for name, mine in zip(self.rule.state_rows(), self._state, strict=True):
            mine.copy_(state[name])
