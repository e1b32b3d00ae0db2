"""The contract of a step for rules that look at one tensor at a time; here in tiles of torch."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hyperadam.kernels.base import Batch, Kernel, Motion, Part, store
from hyperadam.rules.base import Sums
from hyperadam.rules.hyperadam2 import Control, HyperAdam2Rule, Stage

#: Adds up the sums of a tensor's pieces over ranks.
Share = Callable[[Tensor], Tensor]


class TensorKernel(Kernel):
    """HyperAdam2's step. It needs no sums beforehand: what the TensorCell sees of gradients is what
    the last step left in each tensor's memory. ::

        batch = kernel.admit(parts)
        kernel.take(batch, grads)
        kernel.step_(batch, (), motions)

    The memories lie on the kernel's device, as all else does, and the TensorCell is computed there,
    for all tensors at once and in float64. Nothing of a step is read back.
    """

    rule: HyperAdam2Rule

    def __init__(self, rule: HyperAdam2Rule, state_dtype: torch.dtype | None = None) -> None:
        super().__init__(rule, state_dtype)
        self._exact_key: object = None
        self._exact: HyperAdam2Rule

    def admit(self, parts: Iterable[Part], runs: int = 1) -> Any:
        batch = super().admit(parts, runs)
        self._check_shapes(batch)
        return batch

    def step_(
        self, batch: Any, sums: Sums, motions: Sequence[Motion], share: Share | None = None
    ) -> None:
        totals = self.move(batch, motions)
        self.remember(batch, totals if share is None else share(totals))

    @torch.no_grad()
    def move(self, batch: Any, motions: Sequence[Motion]) -> Tensor:
        """Move the parameters and their state, and return sums over the coordinates of each part,
        ``(parts, runs, columns)`` in float64: those of w², g², each m², each v."""
        controls = self._controls(batch, motions)
        size = len(batch.parts), batch.runs, self.rule.memory - 1
        totals = torch.zeros(size, dtype=torch.float64, device=self.device)
        for number, here, part, g, tile in self._tiles(batch):
            motion = motions[number]
            control = Control(*(x[number].to(self.dtype) for x in controls))
            with self.full_precision():
                update, new = self.rule(g, tile, control)
            for field, (old, value) in enumerate(zip(part.state, new, strict=True)):
                store(old[..., here], value, motion.seed + 31 * field + 1009 * here.start)
            w = part.param[:, here]
            update = update * control.size.unsqueeze(-1)
            if motion.decay:
                update = update.add(w, alpha=motion.decay)
            w.add_(update, alpha=-motion.lr)
            w2 = w.double().square().sum(-1, keepdim=True)
            totals[number] += torch.cat([w2, self.rule.column_sums(g, new, ())], -1)
        batch.grads = ()
        return totals

    @torch.no_grad()
    def remember(self, batch: Any, totals: Tensor) -> None:
        """Keep the means, given the sums over whole tensors."""
        sizes = [[float(max(math.prod(part.shape), 1))] for part in batch.parts]
        means = totals.to(self.device) / send(sizes, totals.dtype, self.device).unsqueeze(1)
        means.clamp_(max=3e38)  # what overflows stays finite
        torch._foreach_copy_([part.memory[:, 1:] for part in batch.parts], list(means.float()))

    def _controls(self, batch: Any, motions: Sequence[Motion]) -> Control:
        """What the TensorCell says to each part and run, ``(parts, runs, ...)`` in float64."""
        stages = (
            Stage(m.step, m.total, x.shape) for x, m in zip(batch.parts, motions, strict=True)
        )
        facts = send([self.rule.facts(stage) for stage in stages], torch.float64, self.device)
        memory = torch.stack([part.memory for part in batch.parts]).double()
        return self._exact_rule().steer(memory, facts.unsqueeze(1))

    def _exact_rule(self) -> HyperAdam2Rule:
        """The rule in float64, which no autocast and no fast product of matrices reaches; made
        again when its meta-parameters have changed."""
        key = [(x.data_ptr(), x._version) for x in self.rule.parameters()]
        if key != self._exact_key:
            self._exact_key, self._exact = key, copy.deepcopy(self.rule)
            for name, x in self.rule.named_parameters():
                setattr(self._exact, name, nn.Parameter(x.detach().double(), requires_grad=False))
        return self._exact

    def _scale(self, batch: Batch) -> None:
        """None: the TensorCell's size of a step contains it. What it reads is looked at here."""
        for part in batch.parts:
            self._check_memory(part.memory, batch.runs)

    @staticmethod
    def _check_shapes(batch: Batch) -> None:
        for part in batch.parts:
            if math.prod(part.shape) * batch.runs < part.param.numel():
                raise ValueError(
                    f"shape {tuple(part.shape)} has fewer entries than param, {part.param.numel()}"
                )


def send(numbers: Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A matrix of ``numbers`` on ``device``; to a GPU from pinned memory, so that nobody waits."""
    here = torch.tensor(numbers, dtype=dtype, pin_memory=device.type == "cuda")
    return here.to(device, non_blocking=True)
