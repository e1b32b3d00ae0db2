"""The contract of a step: sums, then the step, over the parts of a vector.

Here for every rule, in tiles of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hyperadam.rules.base import Sums, UpdateRule

#: Coordinates a tile, by type of device. On a CPU its temporaries, a few megabytes, stay in the
#: second-level cache. Elsewhere a tile must keep thousands of cores busy.
TILE = {"cpu": 4096}
DEVICE_TILE = 2**18


class Part(NamedTuple):
    """One tensor's share of the vector: ``n`` coordinates for each of some independent runs.

    Shapes do not matter, only what lies in memory. Every tensor is contiguous. The parameter and
    its gradient are read as ``(runs, n)``, each field of the state as ``(runs, rows, n)``.

    ``shape`` is that of the whole tensor, of which the part may be a shard, without runs.
    ``memory (runs, K)`` is what a rule keeps once for each tensor, if it does: float32, on the
    parameter's device. A rule may read and write it at every step, and on a GPU nobody should have
    to wait for that.
    """

    param: Tensor
    state: Any
    shape: Sequence[int] = ()
    memory: Tensor | None = None


class Motion(NamedTuple):
    """How a part's parameter moves: ``param -= lr * (scale * update + decay * param)``.

    ``lr`` contains the pace; the scale is the part's own. ``seed`` varies the stochastic rounding
    of a bfloat16 state. ``step``, from 1, and ``total``, 0 if it is not known, are for rules that
    look at them."""

    lr: float
    decay: float = 0.0
    seed: int = 0
    step: int = 1
    total: int = 0


class Batch:
    """Parts behind a kernel's door, and the gradients of one step.

    ``scale (parts, runs)``, on the kernel's device and in its dtype, is what each part's update is
    multiplied by; ``None``: nothing."""

    def __init__(self, parts: list[Part], runs: int) -> None:
        self.parts, self.runs = parts, runs
        self.coordinates = sum(part.param.numel() for part in parts)
        self.grads: Sequence[Tensor] = ()
        self.scale: Tensor | None = None


class Kernel:
    """A rule's step for optimizers and steppers: no graph, state and parameters overwritten.

    ::

        batch = kernel.admit(parts)    # the door, once for many steps
        kernel.take(batch, grads)      # the door for gradients, at every step
        sums = rule.total_sums(lambda earlier: kernel.sums(batch, earlier))
        kernel.step_(batch, sums, motions)

    What cannot be stepped is refused at the door. Behind it nobody checks again. All parts lie on
    the kernel's device, which is the rule's.
    """

    name = "torch"
    #: The dtypes of gradients and parameters that are read and written as they are;
    #: ``None``: any floating one.
    dtypes: ClassVar[tuple[torch.dtype, ...] | None] = None

    def __init__(
        self,
        rule: UpdateRule[Any],
        state_dtype: torch.dtype | None = None,
        forward: Callable[..., Any] | None = None,
    ) -> None:
        """``state_dtype`` is the rule's own unless given. ``forward`` may compute the rule's step
        in its stead, and overwrite the state it is given."""
        self.rule = rule
        self._forward = forward or rule
        like = next(rule.parameters())
        self.device, self.dtype, self.state_dtype = (
            like.device,
            like.dtype,
            state_dtype or like.dtype,
        )
        self._rows = tuple(rule.state_rows().values())

    def admit(self, parts: Iterable[Part], runs: int = 1) -> Any:
        """Check the parts and return them as the kernel reads them."""
        batch = Batch([], runs)
        for part in parts:
            n = self._check(part.param, part.state, runs)
            views = (x.view(runs, rows, n) for x, rows in zip(part.state, self._rows, strict=True))
            state = self.rule.State(*views)
            batch.parts.append(part._replace(param=part.param.view(runs, n), state=state))
        batch.scale = self._scale(batch)
        return batch

    def take(self, batch: Any, grads: Sequence[Tensor]) -> None:
        """Check the gradients of the batch's parts and lay them in."""
        for part, grad in zip(batch.parts, grads, strict=True):
            self._check_tensor("gradient", grad, part.param.numel())
        batch.grads = [
            grad.view_as(part.param) for part, grad in zip(batch.parts, grads, strict=True)
        ]

    @torch.no_grad()
    def largest(self, batch: Any) -> list[float]:
        """The largest size among each gradient's entries; not finite if one of them is not."""
        # the extremes tell without a temporary of the gradient's size; they are read back once
        extremes = [torch.stack(torch.aminmax(g)).to(self.dtype) for g in batch.grads if g.numel()]
        found = iter(torch.stack(extremes).abs().amax(dim=1).cpu().tolist() if extremes else [])
        return [next(found) if g.numel() else 0.0 for g in batch.grads]

    @torch.no_grad()
    def sums(self, batch: Any, earlier: Sums) -> Tensor:
        """The next round's sums of squares over all parts, ``(runs, columns)`` in float64."""
        with self.full_precision():
            shares = [
                self.rule.column_sums(g, state, earlier) for _, _, _, g, state in self._tiles(batch)
            ]
        return torch.stack(shares).sum(0)

    @torch.no_grad()
    def step_(self, batch: Any, sums: Sums, motions: Sequence[Motion]) -> None:
        """One step: overwrites every part's state and moves its parameter."""
        for number, here, part, g, tile in self._tiles(batch):
            motion = motions[number]
            update, new = self._updated(g, tile, sums)
            for field, (old, given, value) in enumerate(zip(part.state, tile, new, strict=True)):
                overwritten = value is given and given.dtype == old.dtype
                if not overwritten:
                    store(old[..., here], value, motion.seed + 31 * field + 1009 * here.start)
            w = part.param[:, here]
            if batch.scale is not None:
                update = update * batch.scale[number].unsqueeze(1)
            if motion.decay:
                # joined to the update so that the parameter is rounded once:
                # p * (1 - lr * decay) is p in bfloat16
                update = update.add(w, alpha=motion.decay)
            w.add_(update, alpha=-motion.lr)
        batch.grads = ()

    def _updated(self, g: Tensor, state: Any, sums: Sums) -> tuple[Tensor, Any]:
        """The rule's update and new state on a tile."""
        with self.full_precision():
            if self.rule.rounds or len(g) == 1:
                return self._forward(g, state, sums)
            # torch multiplies several matrices in another order than one: without norms a run is
            # nobody's company, and has the bits that it has alone
            runs = [
                self._forward(g[i : i + 1], self.rule.State(*(x[i : i + 1] for x in state)), sums)
                for i in range(len(g))
            ]
        updates, states = zip(*runs, strict=True)
        return torch.cat(updates), self.rule.State(*map(torch.cat, zip(*states, strict=True)))

    def full_precision(self) -> AbstractContextManager[Any]:
        """Where a user's autocast does not reach: it would round the rule's products."""
        device = self.device.type
        on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        return torch.autocast(device, enabled=False) if on else nullcontext()

    def _tiles(self, batch: Batch) -> Iterator[tuple[int, slice, Part, Tensor, Any]]:
        """Each tile of each part: the part's number, where, the part, and the tile's gradient and
        state in the rule's dtype. A part of no coordinates is one empty tile."""
        width = TILE.get(self.device.type, DEVICE_TILE)
        if self.rule.rounds:  # all runs at once
            width = max(1, width // batch.runs)
        for number, (part, grad) in enumerate(zip(batch.parts, batch.grads, strict=True)):
            for start in range(0, max(grad.shape[1], 1), width):
                here = slice(start, start + width)
                state = self.rule.State(*(x[..., here].to(self.dtype) for x in part.state))
                yield number, here, part, grad[:, here].to(self.dtype), state

    def _scale(self, batch: Batch) -> Tensor | None:
        """The scales of a relative rule's parts, from what was kept of each tensor's start."""
        if not self.rule.memory:
            return None
        scales = []
        for part in batch.parts:
            memory = self._check_memory(part.memory, batch.runs)
            scales.append(self.rule.scale(memory[:, 0].double(), part.shape))
        return torch.stack(scales).to(self.device, self.dtype)

    def _check_memory(self, memory: Tensor | None, runs: int) -> Tensor:
        expected = (runs, self.rule.memory)
        if memory is None:
            raise ValueError(f"memory is None, expected {expected} numbers: the rule keeps some")
        if tuple(memory.shape) != expected:
            raise ValueError(f"memory has shape {tuple(memory.shape)}, expected {expected}")
        here = memory.device == self.device
        if not here or memory.dtype != torch.float32 or not memory.is_contiguous():
            raise ValueError(
                f"memory must be contiguous torch.float32 on {self.device}, got {memory.dtype} on "
                f"{memory.device} with strides {memory.stride()}"
            )
        return memory

    def _check(self, param: Tensor, state: Any, runs: int) -> int:
        """The coordinates a run of a part that can be stepped."""
        size = param.numel()
        self._check_tensor("param", param, size)
        for name, rows, x in zip(self.rule.State._fields, self._rows, state, strict=True):
            if x.dtype != self.state_dtype:
                raise ValueError(f"{name} has dtype {x.dtype}, expected {self.state_dtype}")
            self._check_tensor(name, x, rows * size)
        if size % runs:
            raise ValueError(f"param has {size} entries, expected as many for each of {runs} runs")
        return size // runs

    def _check_tensor(self, name: str, x: Tensor, size: int) -> None:
        if not x.is_floating_point() or (self.dtypes is not None and x.dtype not in self.dtypes):
            raise ValueError(
                f"{name} has dtype {x.dtype}, which backend {self.name!r} does not take"
            )
        if x.device != self.device:
            raise ValueError(f"{name} is on {x.device}, expected it on {self.device}")
        if x.numel() != size:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {size} entries")
        if not x.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous, got strides {x.stride()} for shape {tuple(x.shape)}"
            )


def store(target: Tensor, value: Tensor, seed: int) -> None:
    """Copy ``value`` into ``target``, rounded by chance if that is bfloat16.

    To the nearest, slow moving averages would stall."""
    if target.dtype == torch.bfloat16 and value.numel():
        noise = _noise(value.shape, seed, value.device)
        value = (
            (value.float().contiguous().view(torch.int32) + noise)
            .bitwise_and(-65536)
            .view(torch.float32)
        )
    target.copy_(value)


def _noise(shape: torch.Size, seed: int, device: torch.device) -> Tensor:
    """Uniform integers in [0, 65536) that a resumed run repeats: by ``seed`` and position alone."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randint(0, 65536, shape, generator=generator, device=device, dtype=torch.int32)
