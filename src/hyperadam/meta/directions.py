"""The directions in which meta-training by slopes moves HyperAdam2, each with a name and a unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hyperadam.rules.hyperadam2 import LARGEST_LOG_STEP, HyperAdam2Rule

BETAS, GAMMAS = (0.0, 0.5, 0.9, 0.98), (0.99, 0.999)


class Feature(NamedTuple):
    """What the TensorCell sees: its usual value behind the tanh, in the mean over trainings of the
    family; and how much one unit of its direction adds to the log step size for each 1 of it."""

    usual: float
    unit: float


#: All of them, in the TensorCell's order.
FEATURES = {
    "size at the start": Feature(-0.62, 0.4),
    "growth": Feature(0.15, 1.0),
    "entries": Feature(0.4, 0.35),
    "vector": Feature(0.13, 0.5),
    "convolution": Feature(0.05, 0.4),
    "fan-in": Feature(-0.07, 0.3),
    "t/N": Feature(0.0, 0.35),
    "log t": Feature(-0.09, 0.35),
    "log N": Feature(0.4, 0.6),
    "N is known": Feature(0.76, 0.5),
    "signal of g": Feature(-0.13, 0.6),
    "signal of m(.5)": Feature(-0.43, 0.6),
    "signal of m(.9)": Feature(-0.72, 0.5),
    "signal of m(.98)": Feature(-0.77, 0.5),
    "trend": Feature(-0.02, 0.5),
}
#: By how much one unit changes the log step size itself, and the weights ρ over γ = .99.
LOG_STEP = 0.25
RHO = {0.0: 0.15, 0.5: 0.2, 0.98: 0.25}
#: The share of all weights that one unit moves to the slower γ.
SLOWER = 0.5
#: What one unit adds to the weight of m(.98) for each 1 of a feature.
SLOW_BY = {"t/N": 0.25, "log N": 0.4}
#: A unit of the TensorCell that hands on a signal in short trainings alone: it sees the two slow
#: signals, half of each, this much above their usual sum; and in long ones it is full.
SHORT, SHORT_USUAL, FULL = "signal in short trainings", 1.0, 4.0
#: What such a training's log N is, as a feature: that of 100 steps.
SHORT_LOG_N = math.log(100) / 4 - 1


class Direction(NamedTuple):
    """A direction: one unit of it adds ``changes`` to the parameters of those names."""

    name: str
    changes: dict[str, Tensor]


def prepared(rule: HyperAdam2Rule) -> HyperAdam2Rule:
    """The rule with its first free unit ready for :data:`SHORT`. Nothing reads that unit yet."""
    seen = list(FEATURES)
    with torch.no_grad():
        row = rule.theta_1[len(seen)].zero_()
        for name in ("signal of m(.9)", "signal of m(.98)"):
            row[seen.index(name)] = 0.5
        row[seen.index("log N")] = FULL
        rule.b_1[len(seen)] = SHORT_USUAL - FULL * SHORT_LOG_N
    return rule


def directions(rule: HyperAdam2Rule) -> list[Direction]:
    """The directions of a :func:`prepared` rule as meta-training begins with it.

    Those of the step size follow a feature each. They leave the step as it is where the feature has
    its usual value: else every one of them would say no more than that steps should be longer.
    """
    if (rule.betas, rule.gammas) != (BETAS, GAMMAS):
        raise ValueError(f"the directions are for betas {BETAS} and gammas {GAMMAS}")
    found = [Direction("length", {"log_step": torch.full_like(rule.log_step, LOG_STEP)})]
    for k, (name, (usual, unit)) in enumerate((FEATURES | {SHORT: Feature(0.5, 0.6)}).items()):
        head = torch.zeros_like(rule.theta_a)
        head[0, k] = unit / LARGEST_LOG_STEP
        base = torch.full_like(rule.log_step, -unit * usual)
        found.append(Direction(f"length by {name}", {"theta_a": head, "log_step": base}))
    for beta, unit in RHO.items():
        found.append(Direction(f"weight of m({beta:g})", {"rho": _rho(rule, {beta: unit})}))
    now = dict(zip(rule.pairs, rule.rho.detach().flatten().tolist(), strict=True))
    over = {beta: SLOWER * now[beta, GAMMAS[0]] for beta in BETAS}
    slower = _rho(rule, over, GAMMAS[1]) - _rho(rule, over)
    found.append(Direction("slower γ", {"rho": slower}))
    j = rule.pairs.index((0.98, GAMMAS[0]))
    for name, unit in SLOW_BY.items():
        head = torch.zeros_like(rule.theta_rho)
        head[j, list(FEATURES).index(name)] = unit / rule.reach[j]
        base = _rho(rule, {0.98: -unit * FEATURES[name].usual})
        found.append(Direction(f"weight of m(0.98) by {name}", {"theta_rho": head, "rho": base}))
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
