"""Parameters of known sizes, for relative steps."""

from __future__ import annotations

import torch
from torch import Tensor

from .cases import tensors

#: Wide and narrow matrices, a convolution, vectors, a scalar; and the sizes they start with.
SHAPES = [(5, 100), (7, 9), (65,), (3, 2, 3, 3), ()]
SIZES = [0.05, 0.4, 0.0, 1.0, 0.1]


def starts(dtype: torch.dtype = torch.float32, factor: float = 1.0) -> list[Tensor]:
    params = tensors(*SHAPES, dtype=dtype)
    with torch.no_grad():
        for p, size in zip(params, SIZES, strict=True):
            p *= factor * size
    return params
