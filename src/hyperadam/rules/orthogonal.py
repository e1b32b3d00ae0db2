"""Orthogonal directions: what a matrix's update does to its inputs is made equally large in all
directions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from hyperadam.rules.pace import fan_in

#: Larger matrices are cut into blocks of at most so many rows: the cost a coordinate then stays
#: the same, however wide a layer is.
BLOCK = 32
#: The polynomial ``a x + b x³ + c x⁵`` that brings singular values towards 1, and how often. It is
#: that of Jordan's Muon, which takes five rounds from a looser bound on the largest one.
POLYNOMIAL = (3.4445, -4.7750, 2.0315)
ROUNDS = 3
#: The root mean square of an orthogonal direction.
SIZE = 0.5
#: Rows begin at multiples of this, with zeros behind them: how a product rounds depends on where
#: its factors lie.
LANES = 16
#: They keep a direction of zeros at zero, and let one fade that is nearly zero.
TINY, SMALL = 1e-20, 1e-12


def is_matrix(shape: Sequence[int]) -> bool:
    """Whether a tensor of this shape, seen as weights ``(outputs, inputs…)``, has several of both."""
    return len(shape) > 1 and min(shape[0], fan_in(shape)) > 1


def orthogonal(d: Tensor, shape: Sequence[int]) -> Tensor:
    """The directions ``d (runs, n)`` of matrices of this shape with nearly equal singular values.

    By Newton and Schulz: ``d`` is multiplied by a polynomial of its own Gram matrix, which is as
    small as the block's shorter side. The result has the root mean square :data:`SIZE`.
    """
    runs, n = d.shape
    rows, columns = shape[0], n // shape[0]
    blocks = math.ceil(rows / BLOCK) if min(rows, columns) > BLOCK else 1
    each, width = math.ceil(rows / blocks), LANES * math.ceil(columns / LANES)
    x = d.view(runs, rows, columns)
    if blocks * each > rows or width > columns:
        x = pad(x, (0, width - columns, 0, blocks * each - rows))
    x = x.view(runs * blocks, each, width)
    tall = each > columns
    gram = x.mT @ x if tall else x @ x.mT
    # the norm of the Gram matrix bounds its largest eigenvalue, more closely than its trace
    bound = _dot(gram, gram).sqrt().to(d.dtype).clamp(min=TINY)
    whitening, squares = _newton_schulz(gram / bound)
    squares = squares.view(runs, blocks).sum(1, keepdim=True).expand(runs, blocks)
    size = SIZE * (n / (squares + SMALL)).sqrt()
    whitening *= size.reshape(-1, 1, 1) / bound.sqrt()
    made = x @ whitening if tall else whitening @ x
    made = made.view(runs, blocks * each, width)[:, :rows, :columns]
    return made.reshape(runs, n).contiguous()  # without rows that were padded between two runs


def _newton_schulz(gram: Tensor) -> tuple[Tensor, Tensor]:
    """What a matrix with this Gram matrix ``(..., r, r)`` is to be multiplied by, and the sum of
    squares ``(..., 1, 1)`` of the product."""
    a, b, c = POLYNOMIAL
    whitening = None
    for k in range(ROUNDS):
        p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        p.diagonal(dim1=-2, dim2=-1).add_(a)
        whitening = p if whitening is None else whitening @ p
        half = p @ gram
        if k < ROUNDS - 1:
            gram = half @ p
    assert whitening is not None
    return whitening, _dot(half, p).to(p.dtype)  # the trace of the last Gram matrix


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """The sum over ``x * y``, ``(..., 1, 1)``; in float64, where the order does not show: a run
    should have the bits that it has in other company."""
    return (x.double() * y.double()).sum((-2, -1), keepdim=True)
