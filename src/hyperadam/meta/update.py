"""How a meta-gradient becomes a meta-update: clipped, given to Adam, followed by an average."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hyperadam.meta.settings import Settings
from hyperadam.rules import UpdateRule

#: How many norms of a period's meta-gradients the median is taken over.
MEMORY = 50


class MetaOptimizer:
    """Moves ``rule`` against meta-gradients by Adam, and ``average``, its running average, after
    it."""

    def __init__(self, rule: UpdateRule[Any], average: UpdateRule[Any], settings: Settings) -> None:
        self.rule, self.average, self.settings = rule, average, settings
        self.adam = torch.optim.Adam(rule.parameters(), lr=settings.lr)

    def apply(self, gradients: Sequence[Tensor], update: int) -> None:
        """One meta-update, after ``update`` others."""
        for group in self.adam.param_groups:
            group["lr"] = self.lr(update)
        for parameter, gradient in zip(self.rule.parameters(), gradients, strict=True):
            parameter.grad = gradient
        self.adam.step()
        decay = min(self.settings.average, (1 + update) / (10 + update))
        with torch.no_grad():
            pairs = zip(self.average.parameters(), self.rule.parameters(), strict=True)
            for average, parameter in pairs:
                average.lerp_(parameter, 1 - decay)

    def lr(self, update: int) -> float:
        """Linear warm-up, then a cosine from ``lr`` to ``final_lr``."""
        s = self.settings
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, update / max(1, s.updates))))
        warm = min(1.0, (update + 1) / max(1, s.warmup))
        return (s.final_lr + (s.lr - s.final_lr) * cosine) * warm

    def content(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {
            "rule": self.rule.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.adam.state_dict(),
        }

    def restore(self, content: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.rule.load_state_dict(content["rule"])
        self.average.load_state_dict(content["average"])
        self.adam.load_state_dict(content["optimizer"])


class Clipping:
    """Brings meta-gradients to about the same size: those of a period index are divided by the
    median of its recent norms, and cut at ``clip`` times that."""

    def __init__(self, clip: float) -> None:
        self.clip = clip
        self._recent: dict[int, deque[float]] = {}

    def factor(self, index: int, norm: float) -> float:
        """What to multiply a meta-gradient of that norm by. A mean in place of the median would be
        led astray by the very outliers that are to be clipped."""
        recent = self._recent.get(index)
        if not recent:
            return 1 / max(norm, 1e-12)
        median = statistics.median(recent)
        return min(1.0, self.clip * median / max(norm, 1e-12)) / max(median, 1e-12)

    def remember(self, index: int, norm: float) -> None:
        """A norm that counts for the next medians."""
        self._recent.setdefault(index, deque(maxlen=MEMORY)).append(norm)

    def content(self) -> dict[int, list[float]]:
        """What a checkpoint must hold."""
        return {index: list(values) for index, values in self._recent.items()}

    def restore(self, content: Mapping[int, Sequence[float]]) -> None:
        """Go on from a checkpoint."""
        self._recent = {index: deque(values, maxlen=MEMORY) for index, values in content.items()}
