"""How good a rule is on a task: the final loss of fresh runs, by the protocol of the paper's tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hyperadam.kernels import make_tape
from hyperadam.rules.base import UpdateRule
from hyperadam.tasks.base import Task

#: Seeds of validation runs begin here, far from those of rollouts.
FIRST_SEED = 10**9


@torch.no_grad()
def final_losses(rule: UpdateRule[Any], task: Task[Any], runs: int, steps: int, first_seed: int = FIRST_SEED) -> Tensor:
    """Mean loss, over the batches each run was trained on, at its last parameters: ``(runs,)``, infinite if it diverged."""
    seeds = range(first_seed, first_seed + runs)
    params = task.init(seeds)
    tape = make_tape(rule)
    state = rule.init_state(params)
    for step in range(steps):
        _, grad = task.loss_and_grad(params, task.batch(seeds, step))
        tape.start(state)
        params -= rule.step_size * tape.step(torch.nan_to_num(grad))
        state = rule.State(*(x.clone() for x in tape.state))
    losses = task.final_loss(params, seeds, steps)
    return torch.where(losses.isfinite(), losses, torch.inf)
