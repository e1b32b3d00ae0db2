"""Episodes: one task of the family, trained from the start to the end by many rules at once."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hyperadam.data import draws
from hyperadam.kernels import TensorStepper
from hyperadam.rules.hyperadam2 import HyperAdam2Rule
from hyperadam.tasks import family
from hyperadam.tasks.family import FamilyTask

#: What a rule's step costs, in seconds a coordinate and a tensor: an estimate, the same everywhere,
#: so that an episode does not depend on the machine.
PER_COORDINATE, PER_TENSOR = 1e-8, 1e-4
#: A loss counts as at least this share of the first one, and as at most that multiple of it.
FLOOR, CEILING = 1e-4, 100.0
#: The share of the steps that count as the end, and what the mean over all steps weighs beside it.
END, WAY = 0.1, 0.25


class Episode(NamedTuple):
    """A task, the seed of its start and its batches, how long it is trained, and whether the rule
    is told how long that is."""

    task: FamilyTask
    seed: int
    steps: int
    known: bool = True


def draw(
    seed: int,
    runs: int,
    horizons: Sequence[int],
    hidden: float,
    budget: float,
    kind: str | None = None,
) -> Episode:
    """The episode of ``seed``, with steps log-uniform between the two ``horizons``.

    It takes about ``budget`` seconds at most for that many ``runs``: a task with dear steps gets a
    shorter horizon, though never one below the first. A share ``hidden`` does not know it.
    """
    task = family.draw(seed, kind)
    low, high = horizons
    high = max(low, min(high, int(budget / seconds(task, runs))))
    where, known = draws.uniform(draws.keys([seed], "episode"), 2)[0].tolist()
    return Episode(task, seed, round(low * (high / low) ** where), known >= hidden)


def seconds(task: FamilyTask, runs: int) -> float:
    """About how long a step takes, the rule's included."""
    rule = runs * task.p * PER_COORDINATE + len(task.shapes) * PER_TENSOR
    return task.seconds(runs) + rule


def with_weights(rule: HyperAdam2Rule, weights: Sequence[Tensor]) -> HyperAdam2Rule:
    """A copy of ``rule`` with other weights ``(*shape)``, or with some for each run,
    ``(runs, *shape)``."""
    other = copy.deepcopy(rule)
    for (name, _), value in zip(rule.named_parameters(), weights, strict=True):
        setattr(other, name, nn.Parameter(value.contiguous(), requires_grad=False))
    return other


@torch.no_grad()
def train(rule: HyperAdam2Rule, episode: Episode, runs: int) -> Tensor:
    """The loss before each step of every run, ``(steps, runs)``; all start
    from the same tensors."""
    task, seed, steps, known = episode
    params = [w.expand(runs, *w.shape).contiguous() for w in task.init(seed)]
    stepper = TensorStepper(params, rule, rule.step_size, total=steps if known else 0)
    curve = []
    for step in range(steps):
        losses, grads = task.loss_and_grad(params, seed, step)
        stepper.step(grads)
        curve.append(losses)
    return torch.stack(curve)


def progress(losses: Tensor) -> Tensor:
    """Losses ``(steps, runs)`` as multiples of the first, in float64, kept within bounds.

    From the first loss that is not finite on a run has diverged: it stays at the ceiling.
    """
    ratio = losses.double() / losses[0].double().abs().clamp(min=1e-30)
    lost = (~ratio.isfinite()).cumsum(0) > 0
    return torch.where(lost, CEILING, ratio).clamp(0, CEILING) + FLOOR


def last(steps: int) -> int:
    """How many steps are the end of an episode."""
    return max(1, math.ceil(END * steps))


def final_log(losses: Tensor) -> Tensor:
    """The logarithm of the mean loss at the end, as a multiple of the first: ``(runs,)``."""
    return progress(losses)[-last(len(losses)) :].mean(0).log()


def meta_loss(losses: Tensor) -> Tensor:
    """What a rule is to make small, ``(runs,)``: the loss at the end, and a little of
    the way there.

    Both are logarithms: halving a small loss counts as much as halving a large one.
    """
    return final_log(losses) + WAY * progress(losses).log().mean(0)
