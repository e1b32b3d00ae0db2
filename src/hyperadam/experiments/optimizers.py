"""Optimizers by name for experiments: six from ``torch.optim``, learned rules by shipped name or file, each with its rate."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyperadam.experiments.rates import default_rate
from hyperadam.experiments.steppers import RuleStepper, Stepper, TorchStepper
from hyperadam.rules import RULES, UpdateRule
from hyperadam.weights.loader import SUFFIX, check_finite, list_weights, load_rule


class Baseline(NamedTuple):
    """An optimizer of torch with the paper's settings, which are TensorFlow 1's defaults for all but the learning rate."""

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
    # TensorFlow's mean square starts at one, which keeps the first hundred steps far too small: we take torch's, from zero
    "rmsprop": Baseline(torch.optim.RMSprop, 0.02, 1, {"alpha": 0.9, "eps": 1e-10}),
    "adam": Baseline(torch.optim.Adam, 0.02, 2, {"betas": (0.9, 0.999), "eps": 1e-8}),
}


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer with all that its steps depend on.

    Attributes:
        name: what it is: ``adam``, ``hyperadam``, or the name of a weight file without folder and suffix.
        label: what the user called it, for tables: ``adam@0.01`` if the rate was given.
        lr: the learning rate, and ``lr_source`` where it comes from.
        baseline: the optimizer of torch, or ``None`` for a learned one, whose ``rule`` it then has.
    """

    name: str
    label: str
    lr: float
    lr_source: str
    baseline: Baseline | None = None
    rule: UpdateRule[Any] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.lr <= torch.finfo(torch.float32).max:
            raise ValueError(
                f"the learning rate of {self.name} must be a number above 0 that float32 holds, got {self.lr}"
            )

    @property
    def state_bytes(self) -> int:
        """Bytes of state per coordinate and run."""
        if self.rule is not None:
            return 4 * sum(self.rule.state_rows().values())
        return 4 * self.baseline.state if self.baseline else 0

    def settings(self) -> dict[str, Any]:
        """All that its steps depend on, as JSON."""
        if self.rule is not None:
            return {
                "optimizer": self.name,
                "lr": self.lr,
                "rule": self.rule.kind,
                "config": self.rule.config,
                "weights": weights_sha256(self.rule),
            }
        assert self.baseline is not None
        hyperparameters = json.loads(json.dumps(dict(self.baseline.options)))
        return {"optimizer": self.name, "lr": self.lr, "hyperparameters": hyperparameters}

    def stepper(self, params: Tensor) -> Stepper:
        """Itself at work on ``params (runs, p)``, which it will move in place."""
        if self.rule is not None:
            return RuleStepper(params, self.lr, self.rule)
        assert self.baseline is not None
        return TorchStepper(params, self.lr, self.baseline.kind, self.baseline.options)

    def at(self, lr: float) -> OptimizerSpec:
        """The same optimizer with another learning rate."""
        return OptimizerSpec(
            self.name, f"{self.name}@{lr:g}", lr, "given", self.baseline, self.rule
        )


def names() -> tuple[str, ...]:
    """What :func:`find` knows without a path: the hand-made optimizers, then shipped weights."""
    return (*BASELINES, *list_weights())


def find(
    optimizer: str | UpdateRule[Any] | OptimizerSpec,
    task: str = "",
    steps: int = 100,
    tuning: Path | None = None,
) -> OptimizerSpec:
    """An optimizer by name, by a path to a ``.safetensors`` file, or around a rule.

    ``adam@0.01`` gives the learning rate. Without it a learned rule takes its published step size, and a hand-made optimizer
    the rate tuned for ``task`` and ``steps`` (from ``tuning``, then as shipped), else the published one, else a guess.
    """
    if isinstance(optimizer, OptimizerSpec):
        return optimizer
    if isinstance(optimizer, UpdateRule):
        check_finite(optimizer, "the rule given as optimizer")
        return OptimizerSpec(
            optimizer.kind, optimizer.kind, optimizer.step_size, "the rule's own", rule=optimizer
        )
    name, lr = _split(optimizer)
    if name in BASELINES:
        baseline = BASELINES[name]
        rate = default_rate(name, task, steps, baseline.start, tuning)
        found = OptimizerSpec(name, name, rate.lr, rate.source, baseline)
    else:
        rule = _load(name)
        stem = Path(name.replace("\\", "/")).name.removesuffix(SUFFIX)
        found = OptimizerSpec(stem, stem, rule.step_size, "the rule's own", rule=rule)
    return found if lr is None else found.at(lr)


def weights_sha256(rule: UpdateRule[Any]) -> str:
    """A hash of a rule's kind, configuration and weights: of what it does, not of the file it came in."""
    digest = hashlib.sha256(json.dumps([rule.kind, rule.config], sort_keys=True).encode())
    for name, value in sorted(rule.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} ".encode())
        digest.update(
            value.detach()
            .to("cpu", torch.float32)
            .contiguous()
            .numpy()
            .astype("<f4", copy=False)
            .tobytes()
        )
    return digest.hexdigest()


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


def _is_path(name: str) -> bool:
    return name.endswith(SUFFIX) or any(c in name for c in "/\\")


def _load(name: str) -> UpdateRule[Any]:
    if not _is_path(name) and name not in names() and name not in RULES:
        near = difflib.get_close_matches(name, [*names(), *RULES], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(dict.fromkeys(near))}? " if near else ""
        raise ValueError(
            f"no optimizer is called {name!r}; {hint}there are {', '.join(names())}, and paths to {SUFFIX} files"
        )
    return load_rule(name)
