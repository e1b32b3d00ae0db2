"""The directions in which meta-training by slopes moves HyperAdam2, each with a name and a unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hyperadam.rules.hyperadam2 import LARGEST_LOG_STEP, HyperAdam2Rule

BETAS, GAMMAS = (0.0, 0.5, 0.9, 0.98), (0.99, 0.999)


#: What the TensorCell sees, in its order.
FEATURES = (
    "size at the start",
    "growth",
    "entries",
    "vector",
    "convolution",
    "fan-in",
    "t/N",
    "log t",
    "log N",
    "N is known",
    "signal of g",
    "signal of m(.5)",
    "signal of m(.9)",
    "signal of m(.98)",
    "trend",
)
#: Units of the TensorCell that are free get a meaning each: weights of features, and a bias. The
#: first hands on the slow signals in a training of 100 steps, and is full in one of a thousand. The
#: second tells long trainings from short ones: it is 0 at 270 steps. The third is full where the
#: slowest signal is strong, as it is on a plateau, and empty where it is as weak as usual.
SHORT, LONG, STRONG = "signal in short trainings", "long training", "a strong signal"
UNITS: dict[str, tuple[dict[str, float], float]] = {
    SHORT: ({"signal of m(.9)": 0.5, "signal of m(.98)": 0.5, "log N": 4.0}, 0.4),
    LONG: ({"log N": 4.0}, -1.6),
    STRONG: ({"signal of m(.98)": 5.0}, 2.5),
}


class Length(NamedTuple):
    """A direction of the step size: the usual value of what it follows, behind the tanh, in the
    mean over trainings of the family; and what one unit adds to the log step for each 1 of it."""

    usual: float
    unit: float


LENGTHS = {
    "size at the start": Length(-0.62, 0.4),
    "growth": Length(0.15, 1.0),
    "vector": Length(0.13, 0.5),
    "fan-in": Length(-0.07, 0.3),
    "log N": Length(0.4, 0.6),
    "signal of g": Length(-0.13, 0.6),
    "signal of m(.5)": Length(-0.43, 0.6),
    "signal of m(.9)": Length(-0.72, 0.5),
    "signal of m(.98)": Length(-0.77, 0.5),
    SHORT: Length(0.5, 0.6),
    STRONG: Length(-0.98, 0.25),
}
#: By how much one unit changes the log step size itself; the weights ρ of some β over γ = .99; and
#: the weight of m(.98) in long trainings, where it takes as much from it in short ones.
LENGTH, RHO, SLOW = 0.25, {0.5: 0.2, 0.98: 0.25}, 0.25
#: The share of all weights that one unit moves to the slower γ.
SLOWER = 0.5


class Direction(NamedTuple):
    """A direction: one unit of it adds ``changes`` to the parameters of those names."""

    name: str
    changes: dict[str, Tensor]


def prepared(rule: HyperAdam2Rule) -> HyperAdam2Rule:
    """The rule with :data:`UNITS` in the place of its first free ones. Nothing reads these yet."""
    with torch.no_grad():
        for k, (weights, bias) in enumerate(UNITS.values(), len(FEATURES)):
            rule.theta_1[k].zero_()
            for name, weight in weights.items():
                rule.theta_1[k, FEATURES.index(name)] = weight
            rule.b_1[k] = bias
    return rule


def directions(rule: HyperAdam2Rule) -> list[Direction]:
    """The directions of a :func:`prepared` rule as meta-training begins with it.

    Those of the step size leave it as it is where what they follow has its usual value: else every
    one of them would say no more than that steps should be longer.
    """
    if (rule.betas, rule.gammas) != (BETAS, GAMMAS):
        raise ValueError(f"the directions are for betas {BETAS} and gammas {GAMMAS}")
    units = (*FEATURES, *UNITS)
    found = [Direction("length", {"log_step": torch.full_like(rule.log_step, LENGTH)})]
    for name, (usual, unit) in LENGTHS.items():
        head = torch.zeros_like(rule.theta_a)
        head[0, units.index(name)] = unit / LARGEST_LOG_STEP
        base = torch.full_like(rule.log_step, -unit * usual)
        found.append(Direction(f"length by {name}", {"theta_a": head, "log_step": base}))
    for beta, unit in RHO.items():
        found.append(Direction(f"weight of m({beta:g})", {"rho": _rho(rule, {beta: unit})}))
    j, head = rule.pairs.index((0.98, GAMMAS[0])), torch.zeros_like(rule.theta_rho)
    head[j, units.index(LONG)] = SLOW / rule.reach[j]
    found.append(Direction("weight of m(0.98) in long trainings", {"theta_rho": head}))
    now = dict(zip(rule.pairs, rule.rho.detach().flatten().tolist(), strict=True))
    over = {beta: SLOWER * now[beta, GAMMAS[0]] for beta in BETAS}
    slower = _rho(rule, over, GAMMAS[1]) - _rho(rule, over)
    found.append(Direction("slower γ", {"rho": slower}))
    return found


def moved(rule: HyperAdam2Rule, along: Sequence[Direction], places: Tensor) -> list[Tensor]:
    """The rule's weights at ``places (..., directions)``, in units from the rule: ``(..., *shape)``
    for each parameter."""
    weights = []
    for name, x in rule.named_parameters():
        changes = torch.stack([d.changes.get(name, torch.zeros_like(x)) for d in along]).detach()
        weights.append(x.detach() + torch.tensordot(places.to(x.dtype), changes, dims=1))
    return weights


def _rho(rule: HyperAdam2Rule, weights: dict[float, float], gamma: float = GAMMAS[0]) -> Tensor:
    """A change of ρ: of some β over one γ."""
    change = torch.zeros_like(rule.rho)
    for beta, weight in weights.items():
        change[rule.pairs.index((beta, gamma))] = weight
    return change.detach()
