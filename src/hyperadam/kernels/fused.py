"""What HyperAdam's fused kernels share: the in-place step of the optimizer and the differentiable step of meta-training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hyperadam.kernels.base import Kernel
from hyperadam.kernels.packing import Weights, pack, unpack
from hyperadam.rules.base import Sums
from hyperadam.rules.hyperadam import HyperAdamRule, HyperAdamState


class FusedKernel(Kernel):
    """HyperAdam's step with a hand-written backward. A subclass gives the three batched functions.

    They take ``grad (runs, p)`` and state tensors ``(runs, rows, p)`` of one dtype with contiguous coordinates, and
    ``sums`` of shape ``(runs, columns)`` in float64.
    """

    rule: HyperAdamRule

    def __init__(self, rule: HyperAdamRule) -> None:
        super().__init__(rule)
        self._parameters = tuple(rule.parameters())
        self._key: tuple[Any, ...] | None = None
        self._packed: Weights

    def sums(self, weights: Weights, grad: Tensor, state: HyperAdamState, sums: Sums) -> Tensor:
        """One round of column sums, ``(runs, columns)`` in float64."""
        raise NotImplementedError

    def forward(
        self, weights: Weights, grad: Tensor, state: HyperAdamState, sums: Sums, new: HyperAdamState, update: Tensor
    ) -> None:
        """One step: fills ``new`` (which may be ``state`` itself) and ``update (runs, p)``."""
        raise NotImplementedError

    def backward(
        self,
        weights: Weights,
        grad: Tensor,
        state: HyperAdamState,
        sums: Sums,
        d_update: Tensor,
        d_new: HyperAdamState,
        d_grad: Tensor,
        d_old: HyperAdamState,
    ) -> Weights:
        """From the adjoints of update and new state: fills those of ``grad`` and ``state``, returns those of ``weights``."""
        raise NotImplementedError

    def supports(self, grad: Tensor, state: HyperAdamState) -> bool:
        """Whether the functions above take these tensors as they are."""
        raise NotImplementedError

    def weights(self, like: Tensor) -> Weights:
        """The rule's current meta-parameters, packed, in the dtype and on the device of ``like``.

        A rule under meta-training is packed anew at every call; a frozen one, as an optimizer's, only when it has changed.
        """
        key = like.device, like.dtype, *[(x.data_ptr(), x._version) for x in self._parameters]
        if key != self._key or any(x.requires_grad for x in self._parameters):
            self._key, self._packed = key, self.pack(like)
        return self._packed

    def pack(self, like: Tensor) -> Weights:
        return Weights(*(x.detach().to(like.device, like.dtype) for x in pack(self.rule)))

    @torch.no_grad()
    def column_sums(self, grad: Tensor, state: Any, sums: Sums) -> Tensor:
        if not self.supports(grad, state):
            return super().column_sums(grad, state, sums)
        batched = HyperAdamState(*(x.unsqueeze(0) for x in state))
        sums = tuple(x.to(grad.device).unsqueeze(0) for x in sums)
        return self.sums(self.weights(grad), grad.unsqueeze(0), batched, sums).squeeze(0)

    @torch.no_grad()
    def step_(self, grad: Tensor, state: Any, sums: Sums, seed: int = 0) -> Tensor:
        if not self.supports(grad, state):
            return super().step_(grad, state, sums, seed)
        batched = HyperAdamState(*(x.unsqueeze(0) for x in state))
        sums = tuple(x.to(grad.device).unsqueeze(0) for x in sums)
        update = torch.empty_like(grad).unsqueeze(0)
        self.forward(self.weights(grad), grad.unsqueeze(0), batched, sums, batched, update)
        return update.squeeze(0)

    def __call__(self, grad: Tensor, state: HyperAdamState) -> tuple[Tensor, HyperAdamState]:
        """The rule's ``forward`` on whole vectors, ``grad (..., p)``: same values, same derivatives, less time and memory."""
        update, *new = _Step.apply(self, grad, *state, *self._parameters)
        return update, HyperAdamState(*new)


def _flat_runs(x: Tensor, trailing: int) -> Tensor:
    """Leading dimensions as one, coordinates contiguous."""
    x = x.reshape(x.shape[:-trailing].numel(), *x.shape[-trailing:])
    return x if x.stride(-1) == 1 else x.contiguous()


class _Step(torch.autograd.Function):
    """One step as an operation of autograd. It keeps its inputs alone: the backward computes the step again."""

    @staticmethod
    def forward(ctx: Any, kernel: FusedKernel, grad: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        fields = len(HyperAdamState._fields)
        state = HyperAdamState(*rest[:fields])
        g, batched = _flat_runs(grad, 1), HyperAdamState(*(_flat_runs(x, 2) for x in state))
        weights = kernel.weights(g)
        sums: Sums = ()
        for _ in range(kernel.rule.rounds):
            sums += (kernel.sums(weights, g, batched, sums),)
        new, update = HyperAdamState(*(torch.empty_like(x) for x in batched)), torch.empty_like(g)
        kernel.forward(weights, g, batched, sums, new, update)
        ctx.kernel, ctx.rounds = kernel, len(sums)
        ctx.save_for_backward(g, *batched, *sums, *weights)
        ctx.shapes = grad.shape, [x.shape for x in state]
        return update.reshape(grad.shape), *(x.reshape(old.shape) for x, old in zip(new, state, strict=True))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_update: Tensor, *d_new: Tensor) -> tuple[Tensor | None, ...]:
        fields = len(HyperAdamState._fields)
        g, *rest = ctx.saved_tensors
        state, sums = HyperAdamState(*rest[:fields]), tuple(rest[fields : fields + ctx.rounds])
        weights = Weights(*rest[fields + ctx.rounds :])
        d_state = HyperAdamState(*(_flat_runs(x, 2) for x in d_new))
        d_g, d_old = torch.empty_like(g), HyperAdamState(*(torch.empty_like(x) for x in state))
        d_weights = ctx.kernel.backward(weights, g, state, sums, _flat_runs(d_update, 1), d_state, d_g, d_old)
        shape, shapes = ctx.shapes
        d_parameters = unpack(ctx.kernel.rule, d_weights)
        return None, d_g.reshape(shape), *(d.reshape(s) for d, s in zip(d_old, shapes, strict=True)), *d_parameters
