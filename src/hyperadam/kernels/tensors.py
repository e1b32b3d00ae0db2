"""The contract of a step for rules that look at one tensor at a time; here in tiles of torch."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hyperadam.kernels.base import Batch, Kernel, Motion, Part, store
from hyperadam.kernels.rounds import Round, lay_out
from hyperadam.rules.base import Sums
from hyperadam.rules.hyperadam2 import Control, HyperAdam2Rule, Stage

#: Adds up the sums of a tensor's pieces over ranks.
Share = Callable[[Tensor], Tensor]
#: From the number of a part that is a shard of a matrix and its mixture ``(1, n)`` to this rank's
#: share of the whole matrix's direction. All ranks call it in the same order.
Gather = Callable[[int, Tensor], Tensor]


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
        self._lay_out(batch)
        return batch

    def step_(
        self, batch: Any, sums: Sums, motions: Sequence[Motion], share: Share | None = None
    ) -> None:
        totals = self.move(batch, motions)
        self.remember(batch, totals if share is None else share(totals))

    def move(self, batch: Any, motions: Sequence[Motion], gather: Gather | None = None) -> Tensor:
        """Move the parameters and their state, and return sums over the coordinates of each part,
        ``(parts, runs, columns)`` in float64: those of w², g², each m², each v.

        A matrix moves in two passes: its mixture is made, turned as a whole, and then taken.
        """
        size = len(batch.parts), batch.runs, self.rule.memory - 1
        totals = torch.zeros(size, dtype=torch.float64, device=self.device)
        for here in batch.rounds:
            sizes = self.mix(batch, motions, here, totals)
            if here.whole or here.shards:
                directions = self._directions(batch, here, gather)
                self.turn(batch, motions, here, directions, sizes, totals)
        batch.grads = ()
        return totals

    @torch.no_grad()
    def mix(self, batch: Any, motions: Sequence[Motion], here: Round, totals: Tensor) -> Tensor:
        """The pass over all coordinates of a round. It moves what is not turned, leaves the rest in
        the round's mixtures, and fills ``totals``. Returns what directions are to be multiplied by,
        ``(parts of the round, runs)``."""
        controls = self._controls(batch, motions)
        for number, place, part, g, tile in self._tiles(batch):
            if not here.first <= number < here.last:
                continue
            motion, mixture = motions[number], here.mixtures[number - here.first]
            control = Control(*(x[number].to(self.dtype) for x in controls))
            with self.full_precision():
                update, new = self.rule(g, tile, control)
            for field, (old, value) in enumerate(zip(part.state, new, strict=True)):
                store(old[..., place], value, motion.seed + 31 * field + 1009 * place.start)
            totals[number, :, 1:] += self.rule.column_sums(g, new, ())
            if mixture is not None:
                mixture[:, place] = update
            else:
                step = motion.lr * control.size.unsqueeze(-1) * update
                totals[number, :, 0] += _moved(part.param[:, place], step, motion)
        lrs = send([[motion.lr] for motion in motions], torch.float64, self.device)
        sizes = lrs * controls.size.expand(len(motions), batch.runs)
        return sizes[here.first : here.last]

    @torch.no_grad()
    def turn(
        self,
        batch: Any,
        motions: Sequence[Motion],
        here: Round,
        directions: Sequence[Tensor | None],
        sizes: Tensor,
        totals: Tensor,
    ) -> None:
        """Move the parts of a round that have a direction ``(runs, n)``, and add their w² up."""
        for i, direction in enumerate(directions):
            if direction is not None:
                number = here.first + i
                step = sizes[i].to(self.dtype).unsqueeze(-1) * direction
                w = batch.parts[number].param
                totals[number, :, 0] += _moved(w, step, motions[number])

    @torch.no_grad()
    def _directions(self, batch: Any, here: Round, gather: Gather | None) -> list[Tensor | None]:
        """The directions of a round's matrices, from their mixtures."""
        directions: list[Tensor | None] = [None] * (here.last - here.first)
        with self.full_precision():
            for shape, numbers, mixture in here.whole:
                made = self.direction(mixture, shape).split(batch.runs)
                for number, direction in zip(numbers, made, strict=True):
                    directions[number - here.first] = direction
            for number in here.shards:
                if gather is None:
                    raise RuntimeError(
                        f"part {number} is a piece of a matrix of shape "
                        f"{tuple(batch.parts[number].shape)}, which is turned as a whole: "
                        "gather must say how to get it"
                    )
                own = here.mixtures[number - here.first]
                assert own is not None
                directions[number - here.first] = gather(number, own)
        return directions

    def direction(self, mixture: Tensor, shape: Sequence[int]) -> Tensor:
        """The rule's direction, from the mixtures ``(runs, n)`` of whole tensors of this shape."""
        return self.rule.direction(mixture, shape)

    def _lay_out(self, batch: Any) -> None:
        batch.rounds = lay_out(self.rule, batch.parts, batch.runs, self.dtype, self.device)

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


def _moved(w: Tensor, step: Tensor, motion: Motion) -> Tensor:
    """Move ``w (runs, n)`` by a step and its decay; returns the sum of its squares, ``(runs,)``."""
    if motion.decay:
        step = step.add(w, alpha=motion.lr * motion.decay)
    w.sub_(step)
    return w.double().square().sum(-1)


def send(numbers: Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A matrix of ``numbers`` on ``device``; to a GPU from pinned memory, so that nobody waits."""
    here = torch.tensor(numbers, dtype=dtype, pin_memory=device.type == "cuda")
    return here.to(device, non_blocking=True)
