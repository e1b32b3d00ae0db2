"""A rule at work on many runs as one computation, without a way back."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from hyperadam.kernels.base import Motion, Part
from hyperadam.kernels.choice import make_kernel
from hyperadam.kernels.tensors import TensorKernel
from hyperadam.rules.base import UpdateRule
from hyperadam.rules.hyperadam2 import HyperAdam2Rule
from hyperadam.rules.pace import count_matrices, root_mean_square

Shape = tuple[int, ...]


class RuleStepper:
    """Steps ``params (runs, p)`` in place. A run's numbers are the same, to the bit, in any company
    (but for the rounding of a bfloat16 state, which depends on a run's place).

    Args:
        params: what is moved.
        lr: the step size.
        rule: the rule, of which a copy is taken.
        state_dtype: of the state, if it is not to be the rule's own.
        shapes: of the tensors that a run's vector is made of, in their order. A rule that keeps
            something of each tensor needs them, others do not look.
        total: how many steps there will be, if that is known.
        start: what the sizes of the tensors are taken from, if it is not ``params``.
    """

    def __init__(
        self,
        params: Tensor,
        lr: float,
        rule: UpdateRule[Any],
        state_dtype: torch.dtype | None = None,
        shapes: Sequence[Sequence[int]] | None = None,
        total: int | None = None,
        start: Tensor | None = None,
    ) -> None:
        self.params, self.lr, self.rule = params, lr, copy.deepcopy(rule).requires_grad_(False)
        self.rule.pace(1, total)  # refuses a total that is none
        self.total = total
        self.kernel = make_kernel(self.rule, state_dtype=state_dtype)
        if self.rule.memory:
            self._shapes = _checked(shapes, self.rule, params)
            vectors = params
        else:
            # a rule without norms knows no vectors, only coordinates: all runs are then one long
            # vector
            vectors = params if self.rule.rounds else params.view(1, -1)
            self._shapes = [tuple(vectors.shape[1:])]
        self._matrices = count_matrices(self._shapes)
        # each tensor's place in the vectors; it is stepped there if its runs lie together
        self._places = self._split(vectors)
        sized = self._split(vectors if start is None else start) if self.rule.memory else ()
        self._memory = [self._remember(w) for w in sized]
        self._parts = self._make_parts()
        self._batch = self.kernel.admit(self._parts, runs=len(vectors))
        self._steps = 0

    @property
    def backend(self) -> str:
        """What computes the step, one of :func:`hyperadam.kernels.available`."""
        return self.kernel.name

    @torch.no_grad()
    def step(self, grad: Tensor) -> None:
        """Move ``params``, given their gradient ``(runs, p)``."""
        self._steps += 1
        apart = [
            (place, part.param)
            for place, part in zip(self._places, self._parts, strict=True)
            if part.param is not place
        ]
        for place, moved in apart:
            moved.copy_(place)  # which somebody may have set
        grads = self._split(grad.reshape(self._batch.runs, -1))
        self.kernel.take(self._batch, [g.contiguous() for g in grads])
        sums = self.rule.total_sums(lambda earlier: self.kernel.sums(self._batch, earlier))
        self.kernel.step_(self._batch, sums, [self._motion(i) for i in range(len(grads))])
        for place, moved in apart:
            place.copy_(moved)

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` needs to go on here; loads with ``weights_only=True``."""
        state: dict[str, Any] = {"steps": self._steps}
        for name, pieces in self._fields():
            state[name] = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
        if self.rule.memory:
            state["memory"] = torch.stack(self._memory)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of a stepper of the same rule and size."""
        self._steps = state["steps"]
        for name, pieces in self._fields():
            for mine, x in zip(pieces, self._split(state[name]), strict=True):
                mine.copy_(x)
        if self.rule.memory:
            for mine, x in zip(self._memory, state["memory"], strict=True):
                mine.copy_(x)
            # scales are taken from it at the door
            self._batch = self.kernel.admit(self._parts, runs=self._batch.runs)

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        """The tensors in vectors ``(..., p)``."""
        return x.split([math.prod(shape) for shape in self._shapes], dim=-1)

    def _remember(self, w: Tensor) -> Tensor:
        """What is kept of ``w (runs, n)``; one run at a time, or its company would change bits."""
        return self.rule.init_memory(torch.stack([root_mean_square(run) for run in w]))

    def _make_parts(self) -> list[Part]:
        """Each tensor with a state from before the first step."""
        parts = []
        for i, (place, shape) in enumerate(zip(self._places, self._shapes, strict=True)):
            w = place.contiguous()
            fields = (x.to(self.kernel.state_dtype) for x in self.rule.init_state(w))
            memory = self._memory[i] if self._memory else None
            parts.append(Part(w, self.rule.State(*fields), shape, memory))
        return parts

    def _motion(self, number: int) -> Motion:
        """How a tensor moves in this step. An odd factor spreads them over 31 bits: they are
        rounded differently."""
        step = self._steps
        lr = self.lr * self.rule.pace(step, self.total, self._matrices)
        seed = (step + number * 0x85EBCA77) & 0x7FFFFFFF
        return Motion(lr, seed=seed, step=step, total=self.total or 0)

    def _fields(self) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
        """Each field of the state, tensor by tensor."""
        return zip(
            self.rule.state_rows(), zip(*(x.state for x in self._parts), strict=True), strict=True
        )


def _checked(
    shapes: Sequence[Sequence[int]] | None, rule: UpdateRule[Any], params: Tensor
) -> list[Shape]:
    """The shapes of the tensors in ``params (runs, p)``, which ``rule`` needs."""
    if shapes is None:
        raise ValueError(
            f"shapes is None, expected those of the tensors in params: {rule.kind}"
            f"({rule.extra_repr()}) keeps something of each"
        )
    size = sum(math.prod(shape) for shape in shapes)
    if size != params.shape[1]:
        given = [tuple(shape) for shape in shapes]
        raise ValueError(f"shapes {given} have {size} entries, expected {params.shape[1]}")
    return [tuple(shape) for shape in shapes]


class TensorStepper:
    """Steps a list of tensors ``(runs, *shape)`` in place by a rule that looks at one at a time.

    The rule may hold weights of its own for each run. A total of 0 is not known to the rule.
    """

    def __init__(
        self, params: Sequence[Tensor], rule: HyperAdam2Rule, lr: float, total: int = 0
    ) -> None:
        self.params, self.rule, self.lr, self.total = list(params), rule, lr, total
        self.kernel = cast("TensorKernel", make_kernel(rule))
        runs, parts = len(self.params[0]), []
        for p in self.params:
            flat = p.view(runs, -1)
            memory = rule.init_memory(flat.double().square().mean(1).sqrt())
            parts.append(Part(p, rule.init_state(flat), p.shape[1:], memory))
        self.parts = parts
        self._batch = self.kernel.admit(parts, runs)
        self._steps = 0

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        """Move all tensors, given their gradients ``(runs, *shape)``."""
        self._steps += 1
        self.kernel.take(self._batch, [grad.contiguous() for grad in grads])
        lr = self.lr * self.rule.pace(self._steps, self.total or None)
        motion = Motion(lr, seed=self._steps, step=self._steps, total=self.total)
        self.kernel.step_(self._batch, (), [motion] * len(self.params))
