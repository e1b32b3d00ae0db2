"""Tensors stepped by a rule alone, without optimizer or kernel: what an optimizer must give."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyperadam import UpdateRule
from hyperadam.rules.hyperadam2 import Stage
from hyperadam.rules.pace import tensor_scale


class Followed(NamedTuple):
    """A tensor's values, flat; its shape, learning rate, state and, if there is one, memory."""

    w: Tensor
    shape: torch.Size
    lr: float
    state: Any
    memory: Tensor | None
    step: int


class Reference:
    """All tensors as one vector, or each alone if the rule looks at one tensor at a time.

    It computes in the rule's dtype."""

    def __init__(self, rule: UpdateRule[Any], params: list[Tensor], lr: float = 0.01) -> None:
        self.rule, self.dtype = rule, next(rule.parameters()).dtype
        self.tensors: list[Followed] = []
        self.add(params, lr)

    def add(self, params: list[Tensor], lr: float = 0.01) -> None:
        """Tensors that join now, with a state from before the first step."""
        for p in params:
            w = p.detach().to(self.dtype).reshape(-1).clone()
            rms = w.double().square().mean().sqrt().float()
            memory = self.rule.init_memory(rms) if self.rule.memory else None
            self.tensors.append(Followed(w, p.shape, lr, self.rule.init_state(w), memory, 0))

    @torch.no_grad()
    def step(self, grads: list[Tensor], total: int | None = None) -> None:
        """One step on all tensors, given a gradient for each, of a total if that is known."""
        flats = [grad.to(self.dtype).reshape(-1) for grad in grads]
        step = self._each if self.rule.per_tensor else self._together
        self.tensors = step(flats, total)

    def _each(self, grads: list[Tensor], total: int | None) -> list[Followed]:
        rule, moved = self.rule, []
        for x, grad in zip(self.tensors, grads, strict=True):
            assert x.memory is not None
            stage = Stage(x.step + 1, total or 0, x.shape)
            control = rule.control(x.memory.to(self.dtype), stage)
            mixture, state = rule(grad, x.state, control)
            update = rule.direction(mixture.unsqueeze(0), x.shape).squeeze(0)
            w = x.w - x.lr * rule.pace(x.step + 1, total) * control.size * update
            sums = torch.cat([w.double().square().sum()[None], rule.column_sums(grad, state, ())])
            memory = torch.cat([x.memory[:1], (sums / max(1, w.numel())).float()])
            moved.append(x._replace(w=w, state=state, memory=memory, step=x.step + 1))
        return moved

    def _together(self, grads: list[Tensor], total: int | None) -> list[Followed]:
        old = zip(*(x.state for x in self.tensors), strict=True)
        joint = self.rule.State(*(torch.cat(pieces, -1) for pieces in old))
        update, new = self.rule(torch.cat(grads), joint)
        sizes = [len(grad) for grad in grads]
        states = zip(*(x.split(sizes, -1) for x in new), strict=True)
        moved = []
        for x, d, state in zip(self.tensors, update.split(sizes), states, strict=True):
            scale = 1.0 if x.memory is None else tensor_scale(x.memory[0].double(), x.shape).item()
            w = x.w - x.lr * self.rule.pace(x.step + 1, total) * scale * d
            moved.append(x._replace(w=w, state=self.rule.State(*state), step=x.step + 1))
        return moved

    @property
    def values(self) -> Tensor:
        """All tensors as one vector."""
        return torch.cat([x.w for x in self.tensors])
