"""Episodes: one task of the family, trained from the start to the end by many rules at once."""

from __future__ import annotations

import copy
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
PER_COORDINATE, PER_TENSOR = 2.5e-9, 5e-5
#: A loss counts as at least this share of the first one, and as at most that multiple of it.
FLOOR, CEILING = 1e-4, 100.0
#: A run that ends above this multiple of its first loss has diverged.
DIVERGED = 10.0
#: What the mean over all steps weighs beside the end.
WAY = 0.25


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


class Training(NamedTuple):
    """What a training left: the loss before each step of every run, ``(steps, runs)``, and at the
    end, ``(runs,)``, on batches of its own."""

    losses: Tensor
    end: Tensor


@torch.no_grad()
def train(rule: HyperAdam2Rule, episode: Episode, runs: int) -> Training:
    """Train a task from its start to its end; all runs start from the same tensors."""
    task, seed, steps, known = episode
    params = [w.expand(runs, *w.shape).contiguous() for w in task.init(seed)]
    stepper = TensorStepper(params, rule, rule.step_size, total=steps if known else 0)
    curve = []
    for step in range(steps):
        losses, grads = task.loss_and_grad(params, seed, step)
        stepper.step(grads)
        curve.append(losses)
    return Training(torch.stack(curve), task.final_loss(params, seed))


def progress(losses: Tensor) -> Tensor:
    """Losses ``(steps, runs)`` as multiples of the first, in float64, kept within bounds.

    From the first loss that is not finite on a run has diverged: it stays at the ceiling.
    """
    ratio = losses.double() / losses[0].double().abs().clamp(min=1e-30)
    lost = (~ratio.isfinite()).cumsum(0) > 0
    return torch.where(lost, CEILING, ratio).clamp(0, CEILING) + FLOOR


def final_log(training: Training) -> Tensor:
    """The logarithm of the loss at the end, as a multiple of the first: ``(runs,)``."""
    return progress(torch.cat([training.losses, training.end.unsqueeze(0)]))[-1].log()


def diverged(training: Training) -> int:
    """How many runs have diverged."""
    return int((~(training.end < DIVERGED * training.losses[0])).sum())


def meta_loss(training: Training) -> Tensor:
    """What evolution is to make small, ``(runs,)``: the loss at the end, and a little of
    the way there.

    Both are logarithms: halving a small loss counts as much as halving a large one.
    """
    return final_log(training) + WAY * progress(training.losses).log().mean(0)
