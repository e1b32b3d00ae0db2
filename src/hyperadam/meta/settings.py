"""What a meta-training run is made of, and the presets that made the shipped weights."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from hyperadam.rules import RULES, HyperAdamRule, UpdateRule


@dataclass(frozen=True)
class Settings:
    """One meta-training run. Every field is an option of ``hyperadam meta-train``."""

    rule: str = "hyperadam"  # which rule
    config: dict[str, Any] = field(default_factory=dict)  # its options
    seed: int = 0  # of the start and of all rollouts
    tasks: tuple[str, ...] = ("mnist-mlp",)  # the meta-train set; each rollout takes the next of them
    scaling: bool = True  # Random Scaling
    convex: bool = True  # Combination with a Convex function
    updates: int = 3000  # meta-updates
    period: int = 20  # steps between two of them
    lengths: tuple[int, ...] = (100,)  # of rollouts, in steps; each rollout takes one of them at random
    rollouts: int = 2  # advanced by a period for each meta-update
    last: bool = False  # meta-loss is the last loss of a period, not the mean
    relative: bool = False  # losses weighted by 1/loss
    exact_from: int | None = None  # the update from which meta-gradients are exact; None: never
    lr: float = 1e-3  # of the meta-optimizer, Adam
    final_lr: float = 1e-4  # at the end of the cosine
    warmup: int = 50  # updates of linear warm-up
    clip: float = 2.0  # a rollout's meta-gradient is clipped to this many medians of its period's recent norms
    average: float = 0.98  # decay of the weights' running average, which is what is validated and shipped
    start: str = "published"  # or "near-adam"
    total_weight: float = 4.0  # near-adam: the sum of the combination weights
    input_scale: float = 0.1  # deviation of the first layer's weights
    validate_every: int = 200  # updates
    validation_runs: int = 8  # on the first task
    validation_steps: int = 100

    def make_rule(self) -> UpdateRule[Any]:
        """The rule as meta-training starts with it."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            rule = RULES[self.rule](**self.config)
            if self.start == "near-adam":
                if not isinstance(rule, HyperAdamRule):
                    raise ValueError(f"start 'near-adam' is HyperAdam's alone, not {self.rule}'s")
                rule.start_near_adam(self.total_weight)
            elif self.start != "published":
                raise ValueError(f"start must be 'published' or 'near-adam', got {self.start!r}")
            if isinstance(rule, HyperAdamRule) and rule.preprocess:
                with torch.no_grad():
                    rule.theta_p.mul_(self.input_scale / 0.1)
        return rule

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_NEAR_ADAM = Settings(
    tasks=("mnist-mlp", "mnist-mlp", "mnist-mlp", "mnist14-mlp"),
    lengths=(100, 100, 100, 100, 100, 300),
    relative=True,
    exact_from=600,
    start="near-adam",
    input_scale=30.0,
)

#: The presets by the name of the weights they make.
PRESETS: dict[str, Settings] = {
    "hyperadam": replace(_NEAR_ADAM, config={"decay_bound": 0.97}),
    "hyperadam-paper": _NEAR_ADAM,
    "hyperadam-published": Settings(lr=1e-4, final_lr=1e-4, updates=350_000, rollouts=1),
    "rnnprop": Settings(rule="rnnprop", last=True),
    "dm": Settings(rule="dm", scaling=False, convex=False),
}


def preset(name: str) -> Settings:
    """The preset of that name; an unknown name's error lists the near ones."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3) or list(PRESETS)
        raise ValueError(f"no preset is called {name!r}; there are {', '.join(near)}")
    return PRESETS[name]
