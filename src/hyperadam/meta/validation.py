"""How good a rule is: on a task, the final loss of fresh runs, by the protocol of the paper's
tables; on the family, episodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hyperadam.kernels import RuleStepper
from hyperadam.meta.episodes import Episode
from hyperadam.meta.learner import WEIGHT_SPREAD, random_scale
from hyperadam.rules.base import UpdateRule
from hyperadam.tasks import family
from hyperadam.tasks.base import Task

#: Seeds of validation runs begin here, far from those of rollouts.
FIRST_SEED = 10**9
#: The longer horizon of the family's validation tasks, as a multiple of the shorter.
LONGER = 10


@torch.no_grad()
def final_losses(
    rule: UpdateRule[Any],
    task: Task[Any],
    runs: int,
    steps: int,
    scaled: bool = False,
    first_seed: int = FIRST_SEED,
    horizon: bool = False,
) -> Tensor:
    """Mean loss, over the batches each run was trained on, at its last parameters: ``(runs,)``,
    infinite if it diverged.

    ``scaled`` runs see the task through Random Scaling, as rollouts of meta-training do. With a
    ``horizon`` they know how many steps there are."""
    seeds = range(first_seed, first_seed + runs)
    scale = (
        random_scale(seeds, torch.full((task.p,), WEIGHT_SPREAD)) if scaled else torch.ones(1, 1)
    )
    start = task.init(seeds)
    params, total = start / scale, steps if horizon else None
    stepper = RuleStepper(
        params, rule.step_size, rule, shapes=task.shapes, total=total, start=start
    )
    for step in range(steps):
        _, grad = task.loss_and_grad(params * scale, task.batch(seeds, step))
        stepper.step(torch.nan_to_num(grad * scale))
    losses = task.final_loss(params * scale, seeds, steps)
    return torch.where(losses.isfinite(), losses, torch.inf)


def validation_episodes(count: int, steps: int) -> list[Episode]:
    """Tasks of the family that no rollout sees, all trained for ``steps``, then all for ten times
    as long.

    There are ``count`` of each kind and the wide ones, on which a step that fits small learners is
    too large."""
    tasks = [family.draw(FIRST_SEED + seed, kind) for seed, kind in enumerate(family.KINDS * count)]
    tasks += family.usual()
    return [Episode(task, FIRST_SEED, n) for n in (steps, LONGER * steps) for task in tasks]
