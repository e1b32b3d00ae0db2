"""RNNprop as a drop-in ``torch.optim`` optimizer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from hyperadam.optim.learned import LearnedOptimizer, Weights
from hyperadam.rules import RNNpropRule


class RNNprop(LearnedOptimizer):
    """RNNprop (Lv, Jiang and Li, 2017): a two-layer LSTM on Adam's normalised moments, its output bounded by tanh.

    The arguments are those of :class:`LearnedOptimizer`.
    """

    rule_class = RNNpropRule

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        weights: Weights = "rnnprop",
        weight_decay: float = 0.0,
        maximize: bool = False,
        state_dtype: torch.dtype = torch.float32,
        backend: str = "auto",
        nonfinite: str = "raise",
    ) -> None:
        super().__init__(
            params,
            lr,
            weights=weights,
            weight_decay=weight_decay,
            maximize=maximize,
            state_dtype=state_dtype,
            backend=backend,
            nonfinite=nonfinite,
        )
