"""The contract of a step: sums, then the step, over the parts of a vector. Here for every rule, in tiles of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hyperadam.rules.base import Sums, UpdateRule

#: Coordinates a tile, by type of device. On a CPU its temporaries, a few megabytes, stay in the second-level cache; on
#: a GPU a tile must keep thousands of cores busy, and may take a few hundred.
TILE = {"cpu": 4096}
DEVICE_TILE = 2**18


class Part(NamedTuple):
    """One tensor's share of the vector: ``n`` coordinates for each of some independent runs.

    Shapes do not matter, only what lies in memory: every tensor is contiguous, the gradient and the parameter are read
    as ``(runs, n)``, and each field of the state as ``(runs, rows, n)``.
    """

    grad: Tensor
    state: Any
    #: Moved in place: ``param -= lr * (update + decay * param)``.
    param: Tensor
    lr: float
    decay: float = 0.0
    #: Varies the stochastic rounding of a bfloat16 state.
    seed: int = 0


class Kernel:
    """A rule's step for optimizers and steppers: no graph, state and parameters overwritten in place.

    ::

        batch = kernel.admit(parts)                # the door: what cannot be stepped is refused here
        sums = rule.total_sums(lambda earlier: kernel.sums(batch, earlier))
        kernel.step_(batch, sums)

    Behind the door nobody checks again. All parts lie on the kernel's device, which is the rule's.
    """

    name = "torch"
    #: The dtypes of gradients and parameters that are read and written as they are; ``None``: any floating one.
    dtypes: ClassVar[tuple[torch.dtype, ...] | None] = None

    def __init__(
        self,
        rule: UpdateRule[Any],
        state_dtype: torch.dtype | None = None,
        forward: Callable[..., Any] | None = None,
    ) -> None:
        """``state_dtype`` is the rule's own unless given. ``forward`` may compute the rule's step in its stead, and
        overwrite the state it is given."""
        self.rule = rule
        self._forward = forward or rule
        like = next(rule.parameters())
        self.device, self.dtype, self.state_dtype = like.device, like.dtype, state_dtype or like.dtype
        self._rows = tuple(rule.state_rows().values())

    def admit(self, parts: Iterable[Part], runs: int = 1) -> Any:
        """Check the parts and return them as :meth:`sums` and :meth:`step_` read them."""
        batch = []
        for part in parts:
            n = self._check(part, runs)
            state = (x.view(runs, rows, n) for x, rows in zip(part.state, self._rows, strict=True))
            grad, param = part.grad.view(runs, n), part.param.view(runs, n)
            batch.append(part._replace(grad=grad, param=param, state=self.rule.State(*state)))
        return batch

    @torch.no_grad()
    def largest(self, grads: Sequence[Tensor]) -> list[float]:
        """The largest size among each gradient's entries; not a number or infinite if one of them is."""
        # the extremes tell without a temporary of the gradient's size; they are read back once
        extremes = torch.stack([torch.stack(torch.aminmax(g)).to(self.dtype) for g in grads])
        sizes: list[float] = extremes.abs().amax(dim=1).cpu().tolist()
        return sizes

    @torch.no_grad()
    def sums(self, batch: Any, earlier: Sums) -> Tensor:
        """The next round's sums of squares over all parts, ``(runs, columns)`` in float64, given earlier rounds' totals."""
        shares = [self.rule.column_sums(g, state, earlier) for part in batch for _, g, state in self._tiles(part)]
        return torch.stack(shares).sum(0)

    @torch.no_grad()
    def step_(self, batch: Any, sums: Sums) -> None:
        """One step: overwrites every part's state and moves its parameter."""
        for part in batch:
            for here, g, tile in self._tiles(part):
                update, new = self._forward(g, tile, sums)
                for field, (old, given, value) in enumerate(zip(part.state, tile, new, strict=True)):
                    overwritten = value is given and given.dtype == old.dtype
                    if not overwritten:
                        store(old[..., here], value, part.seed + 31 * field + 1009 * here.start)
                w = part.param[:, here]
                if part.decay:
                    # decay joins the update so that the parameter is rounded once: p * (1 - lr * decay) is p in bfloat16
                    update = update.add(w, alpha=part.decay)
                w.add_(update, alpha=-part.lr)

    def _tiles(self, part: Part) -> Iterator[tuple[slice, Tensor, Any]]:
        """Slice, gradient and state of each tile, in the rule's dtype. A part of no coordinates is one empty tile."""
        runs, n = part.grad.shape
        width = max(1, TILE.get(self.device.type, DEVICE_TILE) // runs)
        for start in range(0, max(n, 1), width):
            here = slice(start, start + width)
            state = self.rule.State(*(x[..., here].to(self.dtype) for x in part.state))
            yield here, part.grad[:, here].to(self.dtype), state

    def _check(self, part: Part, runs: int) -> int:
        """The coordinates a run of a part that can be stepped."""
        n = part.grad.numel() // runs
        named = [("gradient", part.grad, 1), ("param", part.param, 1)]
        for (name, rows), x in zip(self.rule.state_rows().items(), part.state, strict=True):
            named.append((name, x, rows))
            if x.dtype != self.state_dtype:
                raise ValueError(f"{name} has dtype {x.dtype}, expected {self.state_dtype}")
        for name, x, rows in named:
            if not x.is_floating_point() or (self.dtypes is not None and x.dtype not in self.dtypes):
                raise ValueError(f"{name} has dtype {x.dtype}, which backend {self.name!r} does not take")
            if x.device != self.device:
                raise ValueError(f"{name} is on {x.device}, expected it on {self.device}")
            if x.numel() != runs * rows * n:
                raise ValueError(f"{name} has shape {tuple(x.shape)}, expected as many numbers as ({runs}, {rows}, {n})")
            if not x.is_contiguous():
                raise ValueError(f"{name} must be contiguous, got strides {x.stride()} for shape {tuple(x.shape)}")
        return n


def store(target: Tensor, value: Tensor, seed: int) -> None:
    """Copy ``value`` into ``target``, rounding stochastically to bfloat16: to nearest would stall slow moving averages."""
    if target.dtype == torch.bfloat16 and value.numel():
        noise = _noise(value.shape, seed, value.device)
        value = (value.float().contiguous().view(torch.int32) + noise).bitwise_and(-65536).view(torch.float32)
    target.copy_(value)


def _noise(shape: torch.Size, seed: int, device: torch.device) -> Tensor:
    """Uniform integers in [0, 65536) that depend on ``seed`` and position alone, so that a resumed run repeats them."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randint(0, 65536, shape, generator=generator, device=device, dtype=torch.int32)
