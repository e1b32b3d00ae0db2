"""How good a rule is on a task: the final loss of fresh runs, by the protocol of the paper's tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hyperadam.kernels import RuleStepper
from hyperadam.meta.learner import WEIGHT_SPREAD, random_scale
from hyperadam.rules.base import UpdateRule
from hyperadam.tasks.base import Task

#: Seeds of validation runs begin here, far from those of rollouts.
FIRST_SEED = 10**9


@torch.no_grad()
def final_losses(
    rule: UpdateRule[Any],
    task: Task[Any],
    runs: int,
    steps: int,
    scaled: bool = False,
    first_seed: int = FIRST_SEED,
) -> Tensor:
    """Mean loss, over the batches each run was trained on, at its last parameters: ``(runs,)``, infinite if it diverged.

    ``scaled`` runs see the task through Random Scaling, as rollouts of meta-training do."""
    seeds = range(first_seed, first_seed + runs)
    scale = (
        random_scale(seeds, torch.full((task.p,), WEIGHT_SPREAD)) if scaled else torch.ones(1, 1)
    )
    params = task.init(seeds) / scale
    stepper = RuleStepper(params, rule.step_size, rule)
    for step in range(steps):
        _, grad = task.loss_and_grad(params * scale, task.batch(seeds, step))
        stepper.step(torch.nan_to_num(grad * scale))
    losses = task.final_loss(params * scale, seeds, steps)
    return torch.where(losses.isfinite(), losses, torch.inf)
