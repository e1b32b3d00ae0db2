"""A period of steps recorded and gone back through: truncated back-propagation by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hyperadam.kernels.base import Part
from hyperadam.kernels.matrices import from_matrices
from hyperadam.kernels.native.hyperadam import NativeKernel
from hyperadam.kernels.native.table import TableBatch
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

    def copy_state(self) -> tuple[Tensor, ...]:
        """The state after the last step, to keep."""
        return tuple(x.clone() for x in self.state)

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

    #: How many times as long as what is gone back through the vector is.
    whole = 1.0

    def __init__(self, kernel: NativeKernel) -> None:
        super().__init__(kernel.rule)
        self.kernel = kernel
        #: The states of a period, each with its batch. A batch's gradient is that of the step from
        #: its state, its param the update of the step to it.
        self._states: list[HyperAdamState] = []
        self._batches: list[TableBatch] = []
        self._adjoints: list[tuple[HyperAdamState, TableBatch]] = []
        self._sums: list[Sums] = []
        self._d_weights = torch.empty(0)

    def start(self, state: HyperAdamState) -> None:
        kinds = [(x.shape, x.dtype) for x in state]
        if not self._states or kinds != [(x.shape, x.dtype) for x in self._states[0]]:
            self._states, self._batches, self._adjoints = [_like(state)], [], []
        for target, value in zip(self._states[0], state, strict=True):
            target.copy_(value.detach())
        for adjoint, _ in self._adjoints[:1]:
            for x in adjoint:
                x.zero_()
        self._sums.clear()
        self._d_weights = torch.zeros(self.kernel.weights)

    @property
    def state(self) -> HyperAdamState:
        return self._states[len(self._sums)]

    @torch.no_grad()
    def step(self, grad: Tensor) -> Tensor:
        number, grads = len(self._sums), self._split(grad.detach())
        batch, new = (self._batch(k, grads) for k in (number, number + 1))
        self.kernel.take(batch, grads)
        sums = self.rule.total_sums(lambda earlier: self.kernel.sums(batch, earlier))
        self._sums.append(sums)
        updates = [torch.empty_like(g) for g in grads]
        self.kernel.place(new, updates)
        self.kernel.step(batch, sums, new)
        return self._join(updates)

    @torch.no_grad()
    def step_back(self, d_update: Tensor) -> Tensor:
        sums = self._sums.pop()
        d_update = d_update.detach().contiguous()
        d_grad = torch.empty_like(d_update)
        if not self._adjoints:
            self._adjoints = self._make_adjoints(d_update)
        (_, d_new), (_, d_old) = self._adjoints
        self.kernel.take(d_new, [d_update])
        self.kernel.place(d_old, [d_grad])
        batch = self._batches[len(self._sums)]
        self._d_weights += self.kernel.step_back(batch, sums, d_new, d_old, self.whole)
        self._adjoints.reverse()
        return d_grad

    def gradients(self) -> list[Tensor]:
        return from_matrices(self.kernel.rule, self.kernel.matrices(self._d_weights))

    def _split(self, x: Tensor) -> list[Tensor]:
        """The parts of a vector, of which the first is the one that is gone back through."""
        return [x.contiguous()]

    def _join(self, parts: list[Tensor]) -> Tensor:
        (whole,) = parts
        return whole

    def _parts(self, state: HyperAdamState, like: list[Tensor]) -> list[Part]:
        return [Part(like[0], state)]

    def _batch(self, number: int, like: list[Tensor]) -> TableBatch:
        """The batch of a state, made when it is first needed; parts have the sizes of ``like``."""
        while number >= len(self._batches):
            if len(self._states) == len(self._batches):
                self._states.append(_like(self._states[-1]))
            parts = self._parts(self._states[len(self._batches)], like)
            self._batches.append(self.kernel.read(parts, runs=like[0].shape[:-1].numel()))
        return self._batches[number]

    def _make_adjoints(self, like: Tensor) -> list[tuple[HyperAdamState, TableBatch]]:
        """Of the new state and of the old one; zeros, as they are behind the last step. A step back
        may overwrite what it reads, unless it must read that twice."""
        states = [_like(self._states[0]) for _ in range(1 + self.kernel.rule.normalize_state)]
        for x in states[0]:
            x.zero_()
        runs = like.shape[:-1].numel()
        return [
            (state, self.kernel.read([Part(like, state)], runs))
            for state in (states[0], states[-1])
        ]


def _like(state: HyperAdamState) -> HyperAdamState:
    return HyperAdamState(
        *(torch.empty_like(x, memory_format=torch.contiguous_format) for x in state)
    )
