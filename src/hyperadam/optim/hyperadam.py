"""HyperAdam as a drop-in ``torch.optim`` optimizer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from hyperadam.optim.learned import LearnedOptimizer, Weights
from hyperadam.rules import HyperAdamRule


class HyperAdam(LearnedOptimizer):
    """HyperAdam (AAAI 2019): J Adams side by side, their decay rates and weights chosen by a small recurrent network.

    >>> opt = hyperadam.HyperAdam(model.parameters())  # in place of torch.optim.Adam(model.parameters())

    The default weights are meta-trained; ``weights="adam-init"`` is an untrained rule that behaves like an average of Adams.
    The arguments are those of :class:`LearnedOptimizer`.
    """

    rule_class = HyperAdamRule

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.005,
        *,
        weights: Weights = "hyperadam",
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
