"""What a meta-training run is made of, and the presets that made the shipped weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from hyperadam.meta import checks
from hyperadam.rules import RULES, HyperAdam2Rule, HyperAdamRule, UpdateRule
from hyperadam.unknown import unknown

#: The mixture that HyperAdam2 starts from, the best fixed one of those tried on the family: weights
#: of (β, γ), and the logarithm of the step.
MIXTURE = {
    (0.0, 0.99): 0.3,
    (0.5, 0.99): 0.2,
    (0.9, 0.99): 1.1,
    (0.98, 0.99): -0.25,
    (0.5, 0.999): 0.1,
    (0.9, 0.999): -0.35,
    (0.98, 0.999): 0.25,
}
LOG_STEP = 0.45


def _setting(default: Any, about: str) -> Any:
    """A field with its help on the command line."""
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True)
class Settings:
    """One meta-training run. Every field is an option of ``hyperadam meta-train``."""

    rule: str = _setting("hyperadam", "which rule")
    config: dict[str, Any] = field(default_factory=dict, metadata={"help": "the rule's options"})
    estimator: str = _setting(
        "bptt",
        "'bptt' (back-propagation), 'slopes' (of final losses) or 'es' (evolution strategies)",
    )
    seed: int = _setting(0, "of the start and of all rollouts")
    tasks: tuple[str, ...] = _setting(
        ("mnist-mlp",), "the meta-train set; each rollout takes the next of them"
    )
    scaling: bool = _setting(True, "Random Scaling")
    convex: bool = _setting(True, "Combination with a Convex function")
    updates: int = _setting(3000, "meta-updates in all")
    period: int = _setting(20, "steps between two meta-updates")
    lengths: tuple[int, ...] = _setting(
        (100,), "steps of a rollout; each takes one of these at random"
    )
    rollouts: int = _setting(
        2, "rollouts that each meta-update advances by a period; es, slopes: episodes of an update"
    )
    last: bool = _setting(False, "the meta-loss is the last loss of a period, not the mean")
    relative: bool = _setting(False, "weigh each loss by 1/loss, so that late periods count")
    exact_from: int | None = _setting(
        None, "update from which meta-gradients go through the learner's gradients too"
    )
    backward: float = _setting(
        1.0, "share of the coordinates that the backward looks at, drawn anew for every period"
    )
    lr: float = _setting(1e-3, "step size of the meta-optimizer, Adam")
    final_lr: float = _setting(1e-4, "the same at the end of the cosine")
    warmup: int = _setting(50, "updates of linear warm-up")
    clip: float = _setting(
        2.0, "clip a rollout's meta-gradient to this many medians of its period's recent norms"
    )
    average: float = _setting(
        0.98, "decay of the weights' running average, which is what is validated and kept"
    )
    start: str = _setting("published", "'published' (random), 'near-adam' or 'mixture'")
    total_weight: float = _setting(4.0, "near-adam: the sum of the combination weights")
    input_scale: float = _setting(0.1, "deviation of the first layer's weights")
    horizon: bool = _setting(
        False, "rollouts know their length: steps warm up, and decay to zero at the end"
    )
    shorter: float = _setting(
        1.0, "bptt: steps of rollouts are so many times shorter than those of the rule in use"
    )
    pairs: int = _setting(
        12, "es: antithetic pairs of perturbed rules in an episode, at most; slopes: exactly"
    )
    sigma: float = _setting(
        0.06, "es: deviation of the perturbations; slopes: the same, in units of directions"
    )
    horizons: tuple[int, ...] = _setting(
        (50, 2000), "es, slopes: steps of an episode, log-uniform between these"
    )
    trained: tuple[str, ...] = _setting(
        (), "es: the parameters that are trained, NAME or NAME@UPDATE from an update on; empty: all"
    )
    hidden: float = _setting(0.3, "es, slopes: share of the episodes that do not know their length")
    budget: float = _setting(
        4.0, "es, slopes: seconds that an episode may take, about: it bounds pairs (es), then steps"
    )
    validate_every: int = _setting(200, "updates between two validations; slopes: and moves")
    validation_runs: int = _setting(
        8, "fresh runs of the first task; es, slopes: tasks of each kind"
    )
    others: tuple[str, ...] = _setting(
        (), "bptt: further tasks to validate on; convolutions have a quarter of the runs"
    )
    validation_steps: int = _setting(100, "their steps; es, slopes: also ten times as many")

    def __post_init__(self) -> None:
        checks.check(self)

    def make_rule(self) -> UpdateRule[Any]:
        """The rule as meta-training starts with it."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            rule = RULES[self.rule](**self.config)
            if self.start == "near-adam":
                assert isinstance(rule, HyperAdamRule)  # the checks saw to it
                rule.start_near_adam(self.total_weight, constant=False)
            elif self.start == "mixture":
                assert isinstance(rule, HyperAdam2Rule)
                rule.start_from(MIXTURE, LOG_STEP)
            if isinstance(rule, HyperAdamRule) and rule.preprocess:
                with torch.no_grad():
                    rule.theta_p.mul_(self.input_scale / 0.1)
        return rule

    @property
    def preset(self) -> str | None:
        """The preset these settings are, whatever the seed; ``None`` if they are nobody's."""
        return next(
            (name for name, other in PRESETS.items() if replace(other, seed=self.seed) == self),
            None,
        )

    def as_dict(self) -> dict[str, Any]:
        """All settings; of those that came later only what is not the default, so that older
        checkpoints and weights still say the same."""
        usual = Settings()
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in LATER or value != getattr(usual, name)
        }


#: Settings that older checkpoints and weight files do not know.
LATER = (
    "horizon",
    "shorter",
    "estimator",
    "pairs",
    "sigma",
    "horizons",
    "hidden",
    "budget",
    "trained",
    "backward",
    "others",
)
#: Settings that a run may change where it goes on, by estimator: it learns from the same as before.
#: ``backward`` changes the noise of meta-gradients, ``updates`` how many trials there are, for no
#: schedule depends on it. The provenance says from which update on.
FREE = {"bptt": ("backward",), "es": (), "slopes": ("updates",)}


_NEAR_ADAM = Settings(
    tasks=("mnist-mlp", "mnist-mlp", "mnist-mlp", "mnist14-mlp"),
    updates=800,
    lengths=(100, 100, 100, 100, 100, 100, 300),
    relative=True,
    exact_from=100,
    lr=1.2e-3,
    final_lr=5e-5,
    average=0.99,
    start="near-adam",
    input_scale=30.0,
    validate_every=100,
)
#: Some rollouts are ten times as long, so that the rule learns what to do when little but noise is
#: left.
_LONG = replace(_NEAR_ADAM, rollouts=3, lengths=(*[100] * 15, *[300] * 3, 1000))
#: Rollouts know their length, and the way back goes through all of it. A part of a rollout would
#: ask for shorter steps from its first period on, though they become short by themselves.
_HORIZON = replace(
    _NEAR_ADAM,
    config={
        "decay_bound": 0.97,
        "warmup": 20,
        "relative": True,
        "warmup_share": 5,
        "width": True,
        "temper": True,
        "depth": True,
        "step_size": 0.0075,
    },
    shorter=1.5,
    tasks=("mnist-mlp", "mnist14-mlp", "mnist14-mlp", "mnist14-mlp"),
    others=(
        "mnist-mlp-relu",
        "sine-lstm",
        "mnist-mlp-3x20",
        "mnist-mlp-7x20",
        "cifar10-cnn1-bn",
        "mnist-cnn2",
        "cifar10-cnn2-dropout",
    ),
    horizon=True,
    updates=300,
    period=100,
    lengths=(100,),
    rollouts=3,
    exact_from=0,
    lr=3e-3,
    final_lr=1e-4,
    warmup=20,
    clip=1.0,
    average=0.97,
    total_weight=12.0,
    validate_every=60,
)
_RIVAL = Settings(updates=1200, rollouts=1, exact_from=0, validate_every=100)

#: The presets by the name of the weights they make.
PRESETS: dict[str, Settings] = {
    "hyperadam": replace(_LONG, config={"decay_bound": 0.97, "warmup": 20}),
    "hyperadam-horizon": _HORIZON,
    "hyperadam-paper": _NEAR_ADAM,
    "hyperadam-published": Settings(
        lr=1e-4,
        final_lr=1e-4,
        updates=350_000,
        rollouts=1,
        backward=0.25,
        validate_every=500,
    ),
    "rnnprop": replace(_RIVAL, rule="rnnprop", last=True),
    "dm": replace(_RIVAL, rule="dm", scaling=False, convex=False),
    "hyperadam2": Settings(
        rule="hyperadam2",
        estimator="slopes",
        tasks=("family",),
        start="mixture",
        updates=24,
        rollouts=12,
        pairs=5,
        sigma=1.0,
        horizons=(60, 1200),
        hidden=0.1,
        budget=20.0,
        validate_every=12,
        validation_runs=1,
    ),
}


def preset(name: str) -> Settings:
    """The preset of that name."""
    if name not in PRESETS:
        raise ValueError(unknown("preset", name, PRESETS))
    return PRESETS[name]
