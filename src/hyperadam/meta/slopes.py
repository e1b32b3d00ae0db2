"""Slopes: by how much the final loss changes when a rule is moved a little, over all tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

#: How far a run's final loss, in logarithms, counts beside the median of its trial: what helps most
#: tasks a little is worth more than what helps one by far.
REACH = 0.15
#: The deviations of slopes and of curvatures that are to be expected, as shares of the noise in a
#: run's final loss: what is seen of them by few trials is drawn towards zero.
SLOPE, CURVATURE = 0.14, 0.038
#: The least curvature that is believed: where there seems to be none, that is chance.
LEAST = 0.003


class Trial(NamedTuple):
    """One task under changed rules: the ``places (runs, directions)`` of the rules, in units from
    the untrained start, and the logarithms of the final losses, ``final (runs,)``."""

    places: Tensor
    final: Tensor


class Surface(NamedTuple):
    """The mean final loss over tasks about the untrained start: its ``slopes (directions,)`` there,
    and its ``curvatures (directions, directions)``."""

    slopes: Tensor
    curvatures: Tensor

    def at(self, place: Tensor) -> float:
        """The loss at ``place (directions,)`` beside the start's."""
        return float(self.slopes @ place + place @ self.curvatures @ place / 2)


def fit(trials: Sequence[Trial]) -> Surface:
    """The quadratic surface through all trials, by least squares with a prior.

    A trial tells of differences between its runs alone: how hard its task is does not matter."""
    size = trials[0].places.shape[1]
    seen, told = [], []
    for places, final in trials:
        terms = _terms(places.double())
        counted = REACH * torch.tanh((final.double() - final.double().median()) / REACH)
        seen.append(terms - terms.mean(0))
        told.append(counted - counted.mean())
    x, y = torch.cat(seen), torch.cat(told)
    prior = torch.full((x.shape[1],), CURVATURE, dtype=x.dtype)
    prior[:size] = SLOPE
    found = torch.linalg.solve(x.T @ x + torch.diag(prior**-2), x.T @ y)
    first, second = torch.triu_indices(size, size)
    half = torch.zeros(size, size, dtype=x.dtype)
    half[first, second] = found[size:]
    return Surface(found[:size], half + half.T)


def lowest(surface: Surface, place: Tensor, radius: float) -> Tensor:
    """Where the surface is lowest, ``(directions,)``, no further than ``radius`` from ``place``."""
    values, axes = torch.linalg.eigh(surface.curvatures)
    values = values.clamp(min=LEAST)
    curvatures = axes @ torch.diag(values) @ axes.T
    down = -(axes.T @ (surface.slopes + curvatures @ place))
    low, high = 0.0, float(down.norm()) / radius
    if (down / values).norm() > radius:  # as much more curvature as keeps it within
        for _ in range(60):
            middle = (low + high) / 2
            inside = (down / (values + middle)).norm() <= radius
            low, high = (low, middle) if inside else (middle, high)
    else:
        high = 0.0
    return place + axes @ (down / (values + high))


def _terms(places: Tensor) -> Tensor:
    """Each place and all products of two of its numbers, ``(runs, terms)``."""
    first, second = torch.triu_indices(places.shape[1], places.shape[1])
    return torch.cat([places, places[:, first] * places[:, second]], 1)
