"""HyperAdam's step on a GPU: one pass over the moments for their norms, one over all state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from hyperadam.kernels.base import Batch, Kernel, Motion
from hyperadam.kernels.matrices import to_matrices
from hyperadam.kernels.triton import device as programs
from hyperadam.kernels.triton.launch import OPTIONS, PARAM_DTYPES, STATE_DTYPES, Entry, launches
from hyperadam.rules.base import Sums
from hyperadam.rules.hyperadam import HyperAdamRule
from hyperadam.rules.layers import NORM_GUARD

#: Coordinates that a program of the step takes, and one of each round of sums: where the LSTM is,
#: no more than the registers hold.
BLOCK, SUM_BLOCKS = 32, (64, 32)
#: How many programs share a part's coordinates in a sum, at most.
SHARES = 1024


class TritonKernel(Kernel):
    """HyperAdam's step on a GPU, in Triton.

    It serves all options of the rule. State is float32 or bfloat16, and computed with in float32.
    There are no atomics: the same input gives the same bits."""

    name = "triton"
    rule: HyperAdamRule
    dtypes = tuple(PARAM_DTYPES)

    def __init__(self, rule: HyperAdamRule, state_dtype: torch.dtype | None = None) -> None:
        if not isinstance(rule, HyperAdamRule):
            raise ValueError(f"rule must be a HyperAdamRule, got {type(rule).__name__}")
        super().__init__(rule, state_dtype)
        if self.state_dtype not in STATE_DTYPES:
            raise ValueError(f"state_dtype must be float32 or bfloat16, got {self.state_dtype}")
        #: Constants of the three programs; 16 rows are the least that ``tl.dot`` takes.
        self.rows = {"J": rule.candidates, "PAD": max(16, triton.next_power_of_2(rule.candidates))}
        self.cell = {
            **self.rows,
            "S": rule.state_size,
            "PREPROCESS": rule.preprocess,
            "LSTM": rule.lstm is not None,
        }
        self.all = {
            **self.cell,
            "NORMALIZE": rule.normalize_state,
            "BOUND": rule.decay_bound or 0.0,
            "BETA_MAX": rule.beta_max,
            "RELATIVE": rule.relative,
        }
        self._key: object = None
        self._padded: tuple[Tensor, Tensor]

    def take(self, batch: Batch, grads: Sequence[Tensor]) -> None:
        super().take(
            batch, [grad.float() if grad.dtype in PARAM_DTYPES else grad for grad in grads]
        )

    @torch.no_grad()
    def sums(self, batch: Batch, earlier: Sums) -> Tensor:
        runs, device = batch.runs, self.device
        width = self.rule.state_size if earlier else 1 + self.rule.candidates
        total = torch.zeros(runs, width, dtype=torch.float64, device=device)
        block = SUM_BLOCKS[len(earlier)]
        with torch.cuda.device_of(total):
            for table, count, state, _ in launches(_entries(batch), block, SHARES):
                shares = total.new_empty(count, runs, width)
                common = {"STATE": state, "BLOCK": block, **OPTIONS}
                if earlier:
                    tensors = (table, shares, *self._weights(), _scales(earlier[0], device))
                    programs.state_sums[count, runs](*tensors, **self.cell, **common)
                else:
                    programs.moment_sums[count, runs](table, shares, **self.rows, **common)
                total += shares.sum(0)
        return total

    @torch.no_grad()
    def step_(self, batch: Batch, sums: Sums, motions: Sequence[Motion]) -> None:
        weights, scales = self._weights(), [_scales(x, self.device) for x in sums]
        with torch.cuda.device_of(scales[0]):
            for table, count, state, param in launches(_entries(batch, motions), BLOCK):
                common = {"STATE": state, "WEIGHT": param, "BLOCK": BLOCK, **OPTIONS}
                tensors = (table, *weights, scales[0], scales[-1])
                programs.step[count, batch.runs](*tensors, **self.all, **common)
        batch.grads = ()

    def _weights(self) -> tuple[Tensor, Tensor]:
        """Matrices and columns, made again only when the meta-parameters changed."""
        key = [(x.data_ptr(), x._version) for x in self.rule.parameters()]
        if self._key != key:
            self._key, self._padded = key, self._pad()
        return self._padded

    def _pad(self) -> tuple[Tensor, Tensor]:
        """Matrices ``(13, PAD, PAD)`` and columns ``(9, PAD)``, padded with zeros."""
        weights, (J, pad) = to_matrices(self.rule), self.rows.values()
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
            for index, block in enumerate(theta.split(J), start=place.value):
                matrices[index, : len(block), : block.shape[1]] = block
        for place, column in (
            (programs.P, weights.theta_p),
            (programs.BP, weights.b_p),
            (programs.BL, weights.b_l),
            (programs.BD, weights.b_d),
            (programs.BQ, weights.b_q),
        ):
            for index, block in enumerate(column.split(J), start=place.value):
                columns[index, : len(block)] = block[:, 0]
        return matrices, columns


def _scales(sums: Tensor, device: torch.device) -> Tensor:
    """One over each guarded norm: a sum of squares may leave float32's range, its root does not."""
    return torch.rsqrt(sums.to(device, torch.float64) + NORM_GUARD).float().contiguous()


def _entries(batch: Batch, motions: Sequence[Motion] = ()) -> list[Entry]:
    count = len(batch.parts)
    scales = [None] * count if batch.scale is None else batch.scale
    columns = (batch.grads, batch.parts, motions or [Motion(0.0)] * count, scales)
    return [Entry(*x) for x in zip(*columns, strict=True)]
