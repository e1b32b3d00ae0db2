"""Sweeps: one task trained with several multiples of the step size, and what the TensorCell saw on
the way."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hyperadam.kernels import TensorStepper
from hyperadam.meta import episodes
from hyperadam.meta.episodes import Episode
from hyperadam.rules import pace
from hyperadam.rules.hyperadam2 import HyperAdam2Rule, Stage

#: At how many steps of a training the TensorCell is looked at, about.
LOOKS = 8
#: What a vector counts for beside a matrix of its size.
VECTOR = 0.15


class Sweep(NamedTuple):
    """What a sweep over one task left behind. A row is a tensor at one of the steps looked at.

    ``offsets (runs,)`` were added to every log step size, and ``final (runs,)`` is the logarithm of
    the loss at the end. ``features (rows, runs, features)`` are the TensorCell's, ``said (rows,
    runs)`` the log step size that it answered with, and ``weights (rows,)`` how much of a
    training's way is a row's, in sum 1.
    """

    offsets: Tensor
    final: Tensor
    features: Tensor
    said: Tensor
    weights: Tensor


@torch.no_grad()
def sweep(rule: HyperAdam2Rule, episode: Episode, offsets: Tensor) -> tuple[Sweep, Tensor]:
    """Train a task once for each of ``offsets (runs,)`` to the log step size: the sweep, and the
    losses ``(steps, runs)``. All runs start from the same tensors and see the same batches."""
    task, seed, steps, known = episode
    runs, total = len(offsets), steps if known else 0
    shifted = episodes.with_weights(rule, [x.expand(runs, *x.shape) for x in rule.parameters()])
    shifted.log_step = torch.nn.Parameter(shifted.log_step + offsets.view(-1, 1, 1), False)
    params = [w.expand(runs, *w.shape).contiguous() for w in task.init(seed)]
    stepper = TensorStepper(params, shifted, rule.step_size, total=total)
    looked = sorted({math.ceil(steps * (k + 0.5) / LOOKS) for k in range(LOOKS)} | {1})
    curve, features = [], []
    for step in range(1, steps + 1):
        if step in looked:
            features.append(_look(rule, stepper, step))
        losses, grads = task.loss_and_grad(params, seed, step - 1)
        stepper.step(grads)
        curve.append(losses)
    seen = torch.cat(features)
    way = torch.tensor([pace.pace(step, total or None, 0) for step in looked])
    weights = (way.unsqueeze(1) * torch.tensor([_share(shape) for shape in task.shapes])).flatten()
    final = episodes.final_log(torch.stack(curve)).float()
    said = log_steps(rule, seen)
    return Sweep(offsets, final, seen, said, weights / weights.sum()), torch.stack(curve)


def log_steps(rule: HyperAdam2Rule, features: Tensor) -> Tensor:
    """The TensorCell's log step sizes for features ``(..., features)``."""
    return rule.answers(features.flatten(0, -2).mT)[0].view(features.shape[:-1])


def _look(rule: HyperAdam2Rule, stepper: TensorStepper, step: int) -> Tensor:
    """What the TensorCell sees of each tensor before that step, ``(tensors, runs, features)``."""
    found = []
    for part in stepper.parts:
        facts = rule.facts(Stage(step, stepper.total, part.shape))
        assert part.memory is not None
        memory = part.memory.double()
        found.append(rule.features(memory, torch.tensor(facts, dtype=memory.dtype)))
    return torch.stack(found)


def _share(shape: tuple[int, ...]) -> float:
    """How much a tensor of this shape counts: large ones more, vectors little."""
    return float(math.prod(shape) ** 0.25 * (1.0 if len(shape) > 1 else VECTOR))
