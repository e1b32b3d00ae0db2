"""A period of steps recorded and gone back through: truncated back-propagation by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hyperadam.kernels.base import Part
from hyperadam.kernels.native.hyperadam import NativeKernel
from hyperadam.kernels.native.table import TableBatch
from hyperadam.kernels.packing import unpack
from hyperadam.rules.base import Sums, UpdateRule
from hyperadam.rules.hyperadam import HyperAdamState


class Tape:
    """Records the steps of a rule over a period and returns adjoints step by step, last first.

    ::

        tape.start(state)
        update = tape.step(grad)              # forwards, once for each step
        d_grad = tape.step_back(d_update)     # backwards, once for each step
        tape.gradients()                      # of the rule's parameters, summed over the period

    What happens between the steps, that is the learner, is the caller's affair: no graph of it is
    kept. This one serves every rule by autograd over single steps, of the rule itself or of a
    ``forward`` in its stead.
    """

    def __init__(self, rule: UpdateRule[Any], forward: Callable[..., Any] | None = None) -> None:
        self.rule = rule
        self._forward = forward or rule
        self._steps: list[tuple[Tensor, Any, Tensor, Any]] = []
        self._d_state: list[Tensor | None] = []
        self._gradients: list[Tensor] = []
        self._state: Any = None

    @property
    def state(self) -> Any:
        """The state after the last step. Valid until the next period: copy what must stay."""
        return self._state

    def start(self, state: Any) -> None:
        """Begin a period at ``state``, each ``(..., rows, p)``; earlier steps are forgotten."""
        self._state = self.rule.State(*(x.detach() for x in state))
        self._steps.clear()
        self._d_state = [None] * len(self._state)
        self._gradients = [torch.zeros_like(x) for x in self.rule.parameters()]

    def step(self, grad: Tensor) -> Tensor:
        """One step of the rule: ``grad (..., p)`` to the update ``(..., p)``, without a graph."""
        with torch.enable_grad():
            g = grad.detach().requires_grad_()
            old = self.rule.State(*(x.detach().requires_grad_() for x in self._state))
            update, new = self._forward(g, old)
        self._steps.append((g, old, update, new))
        self._state = self.rule.State(*(x.detach() for x in new))
        return update.detach()

    def step_back(self, d_update: Tensor) -> Tensor:
        """Undo the last step: the adjoint of its update to the adjoint of its gradient."""
        g, old, update, new = self._steps.pop()
        outputs = zip((update, *new), (d_update, *self._d_state), strict=True)
        known = {y: d for y, d in outputs if d is not None and y.requires_grad}
        inputs = [g, *old, *self.rule.parameters()]
        adjoints = torch.autograd.grad(list(known), inputs, list(known.values()), allow_unused=True)
        self._d_state = list(adjoints[1 : 1 + len(old)])
        for total, d in zip(self._gradients, adjoints[1 + len(old) :], strict=True):
            if d is not None:
                total += d
        d_grad = adjoints[0]
        return torch.zeros_like(g) if d_grad is None else d_grad

    def gradients(self) -> list[Tensor]:
        """Gradients of ``rule.parameters()``, summed over the steps gone back."""
        return self._gradients


class NativeTape(Tape):
    """The tape of HyperAdam's kernel in C++, on memory that is kept for the next period."""

    def __init__(self, kernel: NativeKernel) -> None:
        super().__init__(kernel.rule)
        self.kernel = kernel
        self._states: list[HyperAdamState] = []
        self._adjoints: list[HyperAdamState] = []
        self._record: list[tuple[Tensor, TableBatch, Sums]] = []

    def start(self, state: HyperAdamState) -> None:
        kinds = [(x.shape, x.dtype) for x in state]
        if not self._states or kinds != [(x.shape, x.dtype) for x in self._states[0]]:
            # a step back may overwrite the adjoints that it reads, unless it must read them twice
            self._states, adjoint = [_like(state)], _like(state)
            self._adjoints = [
                adjoint,
                _like(state) if self.kernel.rule.normalize_state else adjoint,
            ]
        for target, value in zip(self._states[0], state, strict=True):
            target.copy_(value.detach())
        for x in self._adjoints[0]:
            x.zero_()
        self._record.clear()
        self._gradients = [torch.zeros_like(x) for x in self.rule.parameters()]

    @property
    def state(self) -> HyperAdamState:
        return self._states[len(self._record)]

    @torch.no_grad()
    def step(self, grad: Tensor) -> Tensor:
        g, old = grad.detach().contiguous(), self.state
        if len(self._record) + 1 == len(self._states):
            self._states.append(_like(old))
        batch = self._admit(old, g, g)
        sums = self.rule.total_sums(lambda earlier: self.kernel.sums(batch, earlier))
        self._record.append((g, batch, sums))
        update = torch.empty_like(g)
        self.kernel.step(batch, sums, self._admit(self.state, update, g))
        return update

    @torch.no_grad()
    def step_back(self, d_update: Tensor) -> Tensor:
        g, batch, sums = self._record.pop()
        d_new, d_old = self._adjoints
        d_grad = torch.empty_like(g)
        d_update = d_update.detach().contiguous()
        d_weights = self.kernel.step_back(
            batch, sums, self._admit(d_new, d_update, d_update), self._admit(d_old, d_grad, g)
        )
        for total, d in zip(self._gradients, unpack(self.kernel.rule, d_weights), strict=True):
            total += d
        self._adjoints.reverse()
        return d_grad

    def _admit(self, state: HyperAdamState, param: Tensor, grad: Tensor) -> TableBatch:
        batch = self.kernel.read([Part(param, state)], runs=grad.shape[:-1].numel())
        self.kernel.take(batch, [grad])
        return batch


def _like(state: HyperAdamState) -> HyperAdamState:
    return HyperAdamState(
        *(torch.empty_like(x, memory_format=torch.contiguous_format) for x in state)
    )
