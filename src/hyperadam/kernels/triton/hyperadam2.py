"""HyperAdam2's step on a GPU: the TensorCell in torch, one pass over all coordinates in Triton."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hyperadam.kernels.base import Motion
from hyperadam.kernels.rounds import Round
from hyperadam.kernels.tensors import TensorKernel, send
from hyperadam.kernels.triton import device2 as programs
from hyperadam.kernels.triton.device import PARTS
from hyperadam.kernels.triton.launch import OPTIONS, PARAM_DTYPES, STATE_DTYPES
from hyperadam.rules.hyperadam2 import HyperAdam2Rule

#: Coordinates that a program takes at a time.
BLOCK = 512
#: How many programs share a part's coordinates, at most; and whose sums are read at a time.
SHARES, CHUNK = 1024, 64


class TensorLaunch(NamedTuple):
    """What one launch needs to know of its parts: their table, how many they are, how many programs
    they have, and the dtypes of their gradients and params."""

    table: Tensor
    parts: int
    programs: int
    slope: tl.dtype
    weight: tl.dtype


class TritonTensorKernel(TensorKernel):
    """HyperAdam2's step on a GPU, in Triton.

    State is float32 or bfloat16, gradients and parameters may be float16, too; all is computed in
    float32, and summed in float64. There are no atomics: the same input gives the same bits. A step
    reads nothing back: sums and memories stay on the device."""

    name = "triton"
    dtypes = tuple(PARAM_DTYPES)

    def __init__(self, rule: HyperAdam2Rule, state_dtype: torch.dtype | None = None) -> None:
        if not isinstance(rule, HyperAdam2Rule):
            raise ValueError(f"rule must be a HyperAdam2Rule, got {type(rule).__name__}")
        slow, gammas = programs.SLOW.value, programs.GAMMAS.value
        if not rule.fastest_is_gradient or (len(rule.slow), len(rule.gammas)) != (slow, gammas):
            raise ValueError(
                f"rule must have betas of 0 and {slow} others and {gammas} gammas, "
                f"got {rule.betas} and {rule.gammas}"
            )
        super().__init__(rule, state_dtype)
        if self.state_dtype not in STATE_DTYPES:
            raise ValueError(f"state_dtype must be float32 or bfloat16, got {self.state_dtype}")
        #: Constants of the step.
        self.constants = {
            "UNITS": rule.config["units"],
            **{f"BETA_{i}": beta for i, beta in enumerate(rule.slow, start=1)},
            **{f"GAMMA_{i}": gamma for i, gamma in enumerate(rule.gammas, start=1)},
            "STATE": STATE_DTYPES[self.state_dtype],
        }
        self._units_key: object = None
        self._units: Tensor

    @torch.no_grad()
    def mix(self, batch: Any, motions: Sequence[Motion], here: Round, totals: Tensor) -> Tensor:
        units = self._packed_units()
        if len(units) not in (1, batch.runs):
            raise ValueError(f"the rule has weights for {len(units)} runs, expected {batch.runs}")
        constants = {**self.constants, "EACH": len(units) > 1, "BLOCK": BLOCK, **OPTIONS}
        controls = self._packed_controls(batch, motions)
        sizes = controls[here.first : here.last, :, 0].double()
        # a program knows of no mixtures: it takes a step of length -1 from zero
        for i, mixture in enumerate(here.mixtures):
            if mixture is not None:
                mixture.zero_()
                controls[here.first + i, :, 0], controls[here.first + i, :, 1] = -1.0, 0.0
        size = batch.runs, programs.TOTALS.value
        with torch.cuda.device_of(totals):
            for table, parts, count, slope, weight in self._launches(batch, motions, here):
                shares = totals.new_empty(count, *size)
                programs.step[count, batch.runs](
                    table, controls, units, shares, SLOPE=slope, WEIGHT=weight, **constants
                )
                programs.add_up[parts, batch.runs](table, shares, totals, CHUNK=CHUNK)
        for i, mixture in enumerate(here.mixtures):
            if mixture is not None:
                totals[here.first + i, :, 0] = 0
        return sizes

    def _launches(
        self, batch: Any, motions: Sequence[Motion], here: Round
    ) -> Iterator[TensorLaunch]:
        """The parts gathered into few launches: neighbours of the same dtypes, up to PARTS of them.

        A part of more than SHARES blocks has that many programs, which take several each."""
        everything = []
        for number in range(here.first, here.last):
            part, mixture = batch.parts[number], here.mixtures[number - here.first]
            target = part.param if mixture is None else mixture
            everything.append((number, batch.grads[number], target, part.state, motions[number]))
        for (slope, weight), same in groupby(everything, lambda x: (x[1].dtype, x[2].dtype)):
            group = list(same)
            for begin in range(0, len(group), PARTS.value):
                now = group[begin : begin + PARTS.value]
                columns, first = [], 0
                for number, grad, target, state, motion in now:
                    count = min(triton.cdiv(grad.shape[1], BLOCK), SHARES)
                    addresses = (x.data_ptr() for x in (grad, target, *state))
                    columns.append((first, count, grad.shape[1], number, *addresses, motion.seed))
                    first += count
                # what is left over begins after the last program, and so has none
                columns += [(first,) * len(columns[0])] * (PARTS.value - len(now))
                if first:
                    table = send(list(zip(*columns, strict=True)), torch.int64, self.device)
                    yield TensorLaunch(
                        table, len(now), first, PARAM_DTYPES[slope], PARAM_DTYPES[weight]
                    )

    def _packed_controls(self, batch: Any, motions: Sequence[Motion]) -> Tensor:
        """What the TensorCell says, ``(parts, runs, CONTROLS)`` in float32."""
        control = self._controls(batch, motions)
        rates = [(motion.lr, motion.lr * motion.decay) for motion in motions]
        lr, lr_decay = send(rates, torch.float64, self.device).unsqueeze(1).split(1, -1)
        columns = (
            lr * control.size.unsqueeze(-1),
            lr_decay,
            control.rho,
            1 / control.beta_hat[..., 1:],
            1 / control.gamma_hat,
        )
        # parts have these in common to all runs, or one for each
        return torch.cat([x.expand(-1, batch.runs, -1) for x in columns], -1).float()

    def _packed_units(self) -> Tensor:
        """The weight field's units, ``(1 or runs, UNITS, ROW)``, made again when they changed.

        What they add to each ρ is multiplied by its reach."""
        rule = self.rule
        parameters = rule.theta_3, rule.b_3, rule.theta_4
        key = [(x.data_ptr(), x._version) for x in parameters]
        if key != self._units_key:
            self._units_key = key
            reach = torch.tensor(rule.reach).to(rule.theta_4).unsqueeze(-1)
            outward = (reach * rule.theta_4).mT
            rows = torch.cat([rule.theta_3, rule.b_3, outward], -1).detach()
            self._units = rows.view(-1, *rows.shape[-2:]).contiguous()
        return self._units
