"""HyperAdam's step on a GPU: one pass over the moments for their norms, one over all state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from hyperadam.kernels.packing import pack
from hyperadam.kernels.triton import device as programs
from hyperadam.rules.base import Sums
from hyperadam.rules.hyperadam import HyperAdamRule
from hyperadam.rules.layers import NORM_GUARD

#: 256 threads a program. Whether products and sums are fused would change with Triton's version.
LAUNCH = {"num_warps": 4 if torch.version.hip else 8, "enable_fp_fusion": True}
#: Coordinates a program of the step, and one of each round of sums. With 64, what the LSTM needs no
#: longer fits the registers.
BLOCK, SUM_BLOCKS = 32, (64, 32)
#: How many programs share a run's coordinates in a sum, at most.
SHARES = 1024

STATE_DTYPES = (torch.float32, torch.bfloat16)
PARAM_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


# To be replaced by the import of the same from hyperadam.kernels.base once that is there.
class Part(NamedTuple):
    """One tensor's share of the vector: n coordinates for each of several runs, all contiguous."""

    grad: Tensor  # (runs, n), float32
    state: Any  # HyperAdamState, each field (runs, rows, n), float32 or bfloat16
    param: Tensor  # (runs, n), moved in place: param -= step * (update + decay * param)
    step: float  # learning rate times pace
    decay: float = 0.0
    seed: int = 0  # of the stochastic rounding of bfloat16 state


class TritonKernel:
    """HyperAdam's step on a GPU, in Triton.

    It serves all options of the rule. State is float32 or bfloat16, and computed with in float32.
    There are no atomics: the same input gives the same bits."""

    name = "triton"

    def __init__(self, rule: HyperAdamRule) -> None:
        if not isinstance(rule, HyperAdamRule):
            raise ValueError(f"rule must be a HyperAdamRule, got {type(rule).__name__}")
        self.rule = rule
        #: Constants of the three programs; 16 rows are the least that ``tl.dot`` takes.
        self.rows = {"J": rule.candidates, "PAD": max(16, triton.next_power_of_2(rule.candidates))}
        self.cell = {
            **self.rows,
            "S": rule.state_size,
            "PREPROCESS": rule.preprocess,
            "LSTM": rule.lstm is not None,
        }
        self.options = {
            **self.cell,
            "NORMALIZE": rule.normalize_state,
            "BOUND": rule.decay_bound or 0.0,
            "BETA_MAX": rule.beta_max,
        }
        self._packed: dict[torch.device, tuple[object, tuple[Tensor, Tensor]]] = {}

    @torch.no_grad()
    def sums(self, parts: Sequence[Part], earlier: Sums) -> Tensor:
        """The next round's sums of squares over all parts: ``(runs, columns)`` in float64."""
        runs, device = parts[0].grad.shape[0], parts[0].grad.device
        width = self.rule.state_size if earlier else 1 + self.rule.candidates
        block = SUM_BLOCKS[len(earlier)]
        settings = {**(self.cell if earlier else self.rows), "BLOCK": block, **LAUNCH}
        counts = [min(SHARES, triton.cdiv(part.grad.shape[1], block)) for part in parts]
        shares = torch.empty(sum(counts), runs, width, dtype=torch.float64, device=device)
        scales, weights = _scales(earlier, device), self._weights(device)
        with torch.cuda.device_of(shares):
            for part, share, count in zip(parts, shares.split(counts), counts, strict=True):
                (g, state, *_), n = _checked(part), part.grad.shape[1]
                if not n:
                    continue
                if earlier:
                    tensors = (g, state.s, self._c(state), share, *weights, scales[0])
                    programs.state_sums[count, runs](*tensors, n, **settings)
                else:
                    programs.moment_sums[count, runs](g, state.m, share, n, **settings)
        return shares.sum(0)

    @torch.no_grad()
    def step_(self, parts: Sequence[Part], sums: Sums) -> None:
        """One step: overwrites each part's state, and moves its param."""
        device = parts[0].grad.device
        scales, weights = _scales(sums, device), self._weights(device)
        settings = {**self.options, "BLOCK": BLOCK, **LAUNCH}
        with torch.cuda.device_of(parts[0].grad):
            for part in parts:
                (g, state, w, size, decay, seed), (runs, n) = _checked(part), part.grad.shape
                if not n:
                    continue
                tensors = (g, w, *state[:-1], self._c(state), *weights, scales[0], scales[-1])
                scalars = (n, float(size), float(decay), seed % 2**31)
                programs.step[triton.cdiv(n, BLOCK), runs](*tensors, *scalars, **settings)

    def _c(self, state: Any) -> Tensor:
        """The cell, or where there is none something else that has an address."""
        return state.c if self.rule.lstm else state.s

    def _weights(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Matrices and columns on ``device``, made again only when the meta-parameters changed."""
        key = [(x.data_ptr(), x._version) for x in self.rule.parameters()]
        if device not in self._packed or self._packed[device][0] != key:
            matrices, columns = self._pad()
            self._packed[device] = key, (matrices.to(device), columns.to(device))
        return self._packed[device][1]

    def _pad(self) -> tuple[Tensor, Tensor]:
        """Matrices ``(13, PAD, PAD)`` and columns ``(9, PAD)``, padded with zeros."""
        weights, (J, pad) = pack(self.rule), self.rows.values()
        inputs = J if self.rule.preprocess else 1
        zeros = torch.zeros(13 * pad + 9, pad, device=weights.theta_q.device)
        matrices, columns = zeros[: 13 * pad].view(13, pad, pad), zeros[13 * pad :]
        for place, theta in (
            (programs.XL, weights.theta_l[:, :inputs]),
            (programs.SL, weights.theta_l[:, inputs:]),
            (programs.MD, weights.theta_d[:, :J]),
            (programs.SD, weights.theta_d[:, J:]),
            (programs.SQ, weights.theta_q),
        ):
            blocks = theta.unflatten(0, (-1, J)) if len(theta) else theta.new_empty(0, J, 0)
            matrices[place.value :][: len(blocks), :J, : blocks.shape[2]] = blocks
        for place, column in (
            (programs.P, weights.theta_p),
            (programs.BP, weights.b_p),
            (programs.BL, weights.b_l),
            (programs.BD, weights.b_d),
            (programs.BQ, weights.b_q),
        ):
            columns[place.value :][: len(column) // J, :J] = column.view(-1, J)
        return matrices, columns


def _scales(sums: Sums, device: torch.device) -> list[Tensor]:
    """One over each guarded norm: a sum of squares may leave float32's range, its root does not."""
    return [torch.rsqrt(x.to(device, torch.float64) + NORM_GUARD).float().contiguous() for x in sums]


def _checked(part: Part) -> Part:
    dtypes = {x.dtype for x in part.state}
    if len(dtypes) != 1 or not dtypes <= set(STATE_DTYPES):
        raise ValueError(f"state must be all float32 or all bfloat16, got {dtypes}")
    if part.grad.dtype != torch.float32:
        raise ValueError(f"grad must be float32, got {part.grad.dtype}")
    if part.param.dtype not in PARAM_DTYPES:
        raise ValueError(f"param must be float32, bfloat16 or float16, got {part.param.dtype}")
    return part
