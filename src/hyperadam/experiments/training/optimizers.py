"""Optimizers by name for experiments: six from ``torch.optim``, learned rules by shipped name or
file, each with its rate."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyperadam.experiments.training.rates import Kind, Rate, default_rate
from hyperadam.experiments.training.steppers import RuleStepper, Stepper, TorchStepper
from hyperadam.rules import RULES, UpdateRule
from hyperadam.unknown import unknown
from hyperadam.weights.loader import SHIPPED, SUFFIX, check_finite, list_weights, load_rule


class Baseline(NamedTuple):
    """An optimizer of torch with the paper's settings, which are TensorFlow 1's defaults for all
    but the learning rate."""

    kind: type[torch.optim.Optimizer]
    #: A rate to start tuning from where none is published.
    start: float
    #: Floats that it keeps per coordinate.
    state: int
    options: Mapping[str, Any]


BASELINES: dict[str, Baseline] = {
    "sgd": Baseline(torch.optim.SGD, 0.5, 0, {}),
    "momentum": Baseline(torch.optim.SGD, 0.1, 1, {"momentum": 0.9}),
    "adagrad": Baseline(torch.optim.Adagrad, 0.5, 1, {"initial_accumulator_value": 0.1}),
    "adadelta": Baseline(torch.optim.Adadelta, 50.0, 2, {"rho": 0.95, "eps": 1e-8}),
    # TensorFlow's mean square starts at one, which keeps the first hundred steps far too small: we
    # take torch's, from zero
    "rmsprop": Baseline(torch.optim.RMSprop, 0.02, 1, {"alpha": 0.9, "eps": 1e-10}),
    "adam": Baseline(torch.optim.Adam, 0.02, 2, {"betas": (0.9, 0.999), "eps": 1e-8}),
}
#: Those, and others that the paper does not have, with torch's own settings.
HAND_MADE: dict[str, Baseline] = BASELINES | {
    "adamw": Baseline(
        torch.optim.AdamW, 0.001, 2, {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    ),
}


#: What may stand behind a learned optimizer's name.
RELATIVE, HORIZON = "+relative", "+horizon"
_OPTIONS = re.compile(rf"({re.escape(RELATIVE)}|{re.escape(HORIZON)})*$")


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer with all that its steps depend on.

    Attributes:
        name: what it is: ``adam``, ``hyperadam``, or the name of a weight file without folder and
            suffix.
        label: what the user called it, for tables: ``adam@0.01`` if the rate was given.
        rate: the learning rate, and where it comes from.
        baseline: the optimizer of torch, or ``None`` for a learned one, whose ``rule`` it then has.
        horizon: whether a learned one is told how many steps there will be.
    """

    name: str
    label: str
    rate: Rate
    baseline: Baseline | None = None
    rule: UpdateRule[Any] | None = field(default=None, compare=False)
    horizon: bool = False

    def __post_init__(self) -> None:
        if self.horizon and self.rule is None:
            raise ValueError(f"{self.name} is not learned: it cannot be told the horizon")
        if not 0 < self.lr <= torch.finfo(torch.float32).max:
            raise ValueError(
                f"the learning rate of {self.name} must be a number above 0 that float32 holds, "
                f"got {self.lr}"
            )

    @property
    def lr(self) -> float:
        return self.rate.lr

    @property
    def lr_source(self) -> str:
        """Where the learning rate comes from, in words."""
        return self.rate.source

    @property
    def state_bytes(self) -> int:
        """Bytes of state per coordinate and run."""
        if self.rule is not None:
            return 4 * sum(self.rule.state_rows().values())
        return 4 * self.baseline.state if self.baseline else 0

    def settings(self) -> dict[str, Any]:
        """All that its steps depend on, as JSON. Options at their defaults have no entry, so that a
        new one leaves the settings of results from before it as they are."""
        found: dict[str, Any] = {"optimizer": self.name, "lr": self.lr}
        if self.rule is not None:
            found |= {"rule": self.rule.kind, "weights": weights_sha256(self.rule)}
            if config := changed_options(self.rule):
                found["config"] = config
            if self.horizon:
                found["horizon"] = True
        else:
            assert self.baseline is not None
            found["hyperparameters"] = dict(self.baseline.options)
        return dict(json.loads(json.dumps(found)))

    def stepper(
        self,
        params: Tensor,
        shapes: Sequence[Sequence[int]] | None = None,
        steps: int | None = None,
    ) -> Stepper:
        """Itself at work on ``params (runs, p)``, which it will move in place, made of tensors of
        ``shapes``, for ``steps``."""
        if self.rule is not None:
            if self.horizon and steps is None:
                raise ValueError(f"steps is None, expected their number: {self.name} is told it")
            total = steps if self.horizon else None
            return RuleStepper(params, self.lr, self.rule, shapes=shapes, total=total)
        assert self.baseline is not None
        return TorchStepper(params, self.lr, self.baseline.kind, self.baseline.options)

    def at(self, lr: float) -> OptimizerSpec:
        """The same optimizer with another learning rate."""
        return replace(self, label=f"{self.name}@{lr:g}", rate=Rate(lr, Kind.GIVEN))


def names() -> tuple[str, ...]:
    """What :func:`find` knows without a path: the hand-made optimizers, then shipped weights."""
    return (*HAND_MADE, *list_weights())


def find(
    optimizer: str | UpdateRule[Any] | OptimizerSpec,
    task: str = "",
    steps: int = 100,
    tuning: Path | None = None,
) -> OptimizerSpec:
    """An optimizer by name, by a path to a ``.safetensors`` file, or around a rule.

    Weights whose meta-training knew the horizon are told how many steps there will be. So are
    others with ``+horizon`` behind their name, as in ``hyperadam+horizon``. ``hyperadam+relative``
    takes relative steps, whatever its weights say; both may be given. ``adam@0.01`` gives the
    learning rate. Without it a learned rule takes its own step size, and a hand-made
    optimizer the rate tuned for ``task`` and ``steps`` (from ``tuning``, then as shipped), else the
    published one, else a guess.
    """
    if isinstance(optimizer, OptimizerSpec):
        return optimizer
    if isinstance(optimizer, UpdateRule):
        check_finite(optimizer, "the rule given as optimizer")
        own = Rate(optimizer.step_size, Kind.OWN)
        return OptimizerSpec(
            optimizer.kind, optimizer.kind, own, rule=optimizer, horizon=optimizer.knows_horizon
        )
    text, lr = _split(optimizer)
    name, suffix = _split_options(text)
    if name in HAND_MADE:
        if suffix:
            raise ValueError(f"optimizer {optimizer!r}: {suffix} is for learned ones, not {name}")
        baseline = HAND_MADE[name]
        rate = default_rate(name, task, steps, baseline.start, tuning)
        found = OptimizerSpec(name, name, rate, baseline)
    else:
        rule = _load(name, relative=True if RELATIVE in suffix else None)
        called = Path(name.replace("\\", "/")).name.removesuffix(SUFFIX) + suffix
        horizon = HORIZON in suffix or rule.knows_horizon
        own = Rate(rule.step_size, Kind.OWN)
        found = OptimizerSpec(called, called, own, rule=rule, horizon=horizon)
    return found if lr is None else found.at(lr)


def weights_sha256(rule: UpdateRule[Any]) -> str:
    """A hash of a rule's weights alone: not of its options, nor of the file it came in."""
    return _hash_weights(hashlib.sha256(), rule)


def rule_sha256(rule: UpdateRule[Any]) -> str:
    """A hash of a rule's kind, its options, those at their defaults too, and its weights."""
    options = json.dumps([rule.kind, rule.config], sort_keys=True)
    return _hash_weights(hashlib.sha256(options.encode()), rule)


def changed_options(rule: UpdateRule[Any]) -> dict[str, Any]:
    """The options of a rule that are not at their defaults."""
    known = inspect.signature(type(rule).__init__).parameters
    return {
        name: value
        for name, value in rule.config.items()
        if name not in known or json.dumps(value) != json.dumps(known[name].default)
    }


def _hash_weights(digest: Any, rule: UpdateRule[Any]) -> str:
    for name, value in sorted(rule.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} ".encode())
        numbers = value.detach().to("cpu", torch.float32).contiguous().numpy()
        digest.update(numbers.astype("<f4", copy=False).tobytes())
    return str(digest.hexdigest())


def _split(text: str) -> tuple[str, float | None]:
    """Name and learning rate of ``name@rate``."""
    name, at, rate = text.rpartition("@")
    if not at:
        return text, None
    try:
        return name, float(rate)
    except ValueError:
        if _is_path(text):
            return text, None
        raise ValueError(
            f"optimizer {text!r}: expected a number after @, as in {name or 'adam'}@0.01"
        ) from None


def _split_options(text: str) -> tuple[str, str]:
    """Name and options of ``name+relative+horizon``, the options each once and in this order."""
    match = _OPTIONS.search(text)
    assert match is not None
    given = match[0]
    suffix = "".join(option for option in (RELATIVE, HORIZON) if option in given)
    return text.removesuffix(given), suffix


def _is_path(name: str) -> bool:
    return name.endswith(SUFFIX) or any(c in name for c in "/\\")


def _load(name: str, relative: bool | None = None) -> UpdateRule[Any]:
    if not _is_path(name) and name not in names() and name not in RULES:
        raise ValueError(unknown("optimizer", name, names(), f"and paths to {SUFFIX} files"))
    path = Path(name).resolve() if _is_path(name) else SHIPPED / f"{name}{SUFFIX}"
    if not path.is_file():
        return load_rule(name, relative)  # and its error
    stat = path.stat()
    return _loaded(name, relative, path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=64)
def _loaded(
    name: str, relative: bool | None, path: Path, changed: int, size: int
) -> UpdateRule[Any]:
    """A rule that is loaded once, for as long as its file stays as it is."""
    return load_rule(name, relative)
