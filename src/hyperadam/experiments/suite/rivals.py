"""The optimizers of the suite, each as its users have it: the class, its schedule, and the rate it is given or tuned over."""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

import hyperadam
from hyperadam.experiments.paper.experiment import UNTRAINED, UNTRAINED_LR
from hyperadam.experiments.training.optimizers import rule_sha256 as weights_sha256
from hyperadam.meta.settings import PRESETS, preset
from hyperadam.optim.learned import LearnedOptimizer
from hyperadam.rules import orthogonal
from hyperadam.weights import list_weights

#: Rates that tuning starts with; the grid grows by the same factor while its best point is at an edge.
ADAM_RATES = tuple(float(f"{0.0005 * 2**k:.6g}") for k in range(7))
SGD_RATES = tuple(float(f"{0.003 * 3**k:.6g}") for k in range(7))


class Training(NamedTuple):
    """Optimizers at work on one module, with their schedulers."""

    optimizers: list[Optimizer]
    schedulers: list[LRScheduler]

    def begin(self) -> None:
        """Before the first step; schedule-free optimizers are told."""
        self._mode("train")

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
        for scheduler in self.schedulers:
            scheduler.step()

    def end(self) -> None:
        """After the last step: the module then holds the weights that are to be used."""
        self._mode("eval")

    @property
    def skipped(self) -> bool:
        """Whether a step was left out because a gradient was not finite."""
        return any(getattr(optimizer, "skipped_steps", 0) for optimizer in self.optimizers)

    def _mode(self, name: str) -> None:
        for optimizer in self.optimizers:
            if hasattr(optimizer, name):
                getattr(optimizer, name)()


Make = Callable[[nn.Module, float, int], Training]


@dataclass(frozen=True)
class Rival:
    """An optimizer of the suite.

    Attributes:
        name: for the command line, tables and files.
        about: what it is and which rate it has, for people.
        make: from module, rate and number of steps to what trains it.
        lr: the rate of those that are not tuned.
        rates: the rates that tuning starts with; none: it is not tuned.
        settings: what else its steps depend on, as JSON.
        missing: why it cannot be had here; empty if it can.
        applies: whether it can train a module.
        cost: nanoseconds a parameter and step, roughly; to put cheap runs first.
        later: how many stages later than others it comes; one stage is the next horizon.
    """

    name: str
    about: str
    make: Make
    lr: float = math.nan
    rates: tuple[float, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    missing: str = ""
    applies: Callable[[nn.Module], bool] = lambda module: True
    cost: float = 5.0
    later: float = 0.0

    def record(self) -> dict[str, Any]:
        """All that its runs depend on, and how its rate is found, as it is stored with them."""
        rate = {"first_rates": list(self.rates)} if self.rates else {"lr": self.lr}
        # as it will be read back: tuples become lists
        stored: dict[str, Any] = json.loads(json.dumps(self.settings | rate))
        return stored


def linear(optimizer: Optimizer, steps: int) -> LRScheduler:
    """From the full rate at the first step towards zero after the last, with no warm-up."""
    return LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))


def cosine(optimizer: Optimizer, steps: int) -> LRScheduler:
    """Half a cosine from the full rate to zero."""
    return CosineAnnealingLR(optimizer, T_max=steps)


def constant(optimizer: Optimizer, steps: int) -> None:
    """No schedule."""


Schedule = Callable[[Optimizer, int], "LRScheduler | None"]


def one(kind: Callable[..., Optimizer], schedule: Schedule = constant, **options: Any) -> Make:
    """All parameters in the hands of one optimizer."""

    def make(module: nn.Module, lr: float, steps: int) -> Training:
        optimizer = kind(module.parameters(), lr=lr, **options)
        scheduler = schedule(optimizer, steps)
        return Training([optimizer], [scheduler] if scheduler else [])

    return make


def hidden_matrices(module: nn.Module) -> list[Tensor]:
    """The matrices that Muon is for: of two dimensions, neither an embedding's nor the last layer's."""
    embedded = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    matrices = [p for p in module.parameters() if p.dim() == 2 and id(p) not in embedded]
    return list(matrices[:-1])


def muon(module: nn.Module, lr: float, steps: int) -> Training:
    """Muon on hidden matrices, AdamW on the rest, one rate for both: Muon's steps are matched to AdamW's in size."""
    inner = hidden_matrices(module)
    chosen = {id(p) for p in inner}
    rest = [p for p in module.parameters() if id(p) not in chosen]
    optimizers = [
        torch.optim.Muon(inner, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=lr, weight_decay=0.01, fused=True),
    ]
    return Training(optimizers, [cosine(optimizer, steps) for optimizer in optimizers])


def knows_horizon() -> bool:
    """Whether our optimizers can be told how long training lasts."""
    return "total_steps" in inspect.signature(LearnedOptimizer.__init__).parameters


def learned(
    name: str,
    about: str,
    kind: str,
    weights: str,
    lr: float | None = None,
    *,
    start: bool = False,
    horizon: bool = False,
    cost: float = 220.0,
    later: float = 0.0,
) -> Rival:
    """One of our optimizers with shipped weights, or as the meta-training of those weights begins (``start``).

    With ``horizon`` it is told the number of steps, where it can be.
    """
    missing = ""
    if not hasattr(hyperadam, kind):
        missing = f"this version of hyperadam has no {kind}"
    elif weights not in (PRESETS if start else list_weights()):
        what = "has no preset" if start else "ships no weights"
        missing = f"this version of hyperadam {what} {weights}"
    if missing:
        return Rival(name, about, _never, missing=missing)
    rule = preset(weights).make_rule() if start else hyperadam.load_rule(weights)
    told = horizon and knows_horizon()

    def make(module: nn.Module, rate: float, steps: int) -> Training:
        options: dict[str, Any] = {"total_steps": steps} if told else {}
        optimizer = getattr(hyperadam, kind)(
            module.parameters(), lr=rate, weights=rule, nonfinite="skip", **options
        )
        return Training([optimizer], [])

    settings = {"class": kind, "total_steps": told, "config": rule.config}
    settings["weights"] = weights_sha256(rule)
    if rule.per_tensor:  # what its numbers depend on besides
        settings["directions"] = {"block": orthogonal.BLOCK, "rounds": orthogonal.ROUNDS}
    rate = rule.step_size if lr is None else lr
    return Rival(name, about, make, rate, (), settings, cost=cost, later=later)


def _never(module: nn.Module, lr: float, steps: int) -> Training:
    raise ValueError("this optimizer is not to be had here")


def outside(
    name: str, about: str, library: str, kind: str, lr: float, schedule: Schedule = constant
) -> Rival:
    """An optimizer of another library at its documented defaults."""
    missing = "" if importlib.util.find_spec(library) else f"pip install {library}"

    def make(module: nn.Module, rate: float, steps: int) -> Training:
        return one(getattr(importlib.import_module(library), kind), schedule)(module, rate, steps)

    settings = {"class": f"{library}.{kind}", "schedule": schedule.__name__}
    return Rival(name, about, make, lr, (), settings, missing, cost=10.0)


def rivals() -> dict[str, Rival]:
    """All optimizers of the suite by name, those of others first."""
    adam = {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
    found = [
        Rival(
            "adam",
            "Adam, constant rate, tuned",
            one(torch.optim.Adam, fused=True),
            rates=ADAM_RATES,
            settings={"class": "Adam", "schedule": "constant", **adam},
        ),
        Rival(
            "adam-linear",
            "Adam, linear decay to zero without warm-up, tuned",
            one(torch.optim.Adam, linear, fused=True),
            rates=ADAM_RATES,
            settings={"class": "Adam", "schedule": "linear", **adam},
        ),
        Rival(
            "adamw-cosine",
            "AdamW, rate 0.001, cosine, untuned",
            one(torch.optim.AdamW, cosine, fused=True),
            lr=0.001,
            settings={"class": "AdamW", "schedule": "cosine", "weight_decay": 0.01},
        ),
        outside(
            "schedule-free",
            "schedule-free AdamW, its defaults (rate 0.0025)",
            "schedulefree",
            "AdamWScheduleFree",
            0.0025,
        ),
        outside("prodigy", "Prodigy, its defaults", "prodigyopt", "Prodigy", 1.0),
        outside(
            "prodigy-cosine",
            "Prodigy, its defaults with the cosine that it recommends",
            "prodigyopt",
            "Prodigy",
            1.0,
            cosine,
        ),
        Rival(
            "sgd-cosine",
            "SGD with momentum 0.9, cosine, tuned",
            one(torch.optim.SGD, cosine, momentum=0.9, fused=True),
            rates=SGD_RATES,
            settings={"class": "SGD", "schedule": "cosine", "momentum": 0.9},
            later=1.25,
        ),
        Rival(
            "muon",
            "Muon on hidden matrices, AdamW on the rest, cosine, tuned",
            muon,
            rates=ADAM_RATES,
            settings={"class": "Muon", "schedule": "cosine", "weight_decay": 0.01},
            applies=lambda module: bool(hidden_matrices(module)),
            missing="" if hasattr(torch.optim, "Muon") else "this version of torch has no Muon",
            cost=60.0,
            later=1.25,
        ),
        learned(
            "hyperadam-paper",
            "the paper's rule to the letter",
            "HyperAdam",
            "hyperadam-paper",
            later=2,
        ),
        learned(
            "adam-init",
            f"untrained start of HyperAdam, rate {UNTRAINED_LR:g}",
            "HyperAdam",
            UNTRAINED,
            UNTRAINED_LR,
            later=2,
        ),
        learned("rnnprop", "RNNprop, our weights", "RNNprop", "rnnprop", cost=420.0, later=2),
        learned("dm", "DMoptimizer, our weights", "DMOptimizer", "dm", cost=320.0, later=2),
        learned("hyperadam", "HyperAdam, told the horizon", "HyperAdam", "hyperadam", horizon=True),
        learned(
            "hyperadam-horizon",
            "HyperAdam, meta-trained with the horizon",
            "HyperAdam",
            "hyperadam-horizon",
            horizon=True,
        ),
        learned(
            "hyperadam2-start",
            "untrained start of HyperAdam2",
            "HyperAdam2",
            "hyperadam2",
            start=True,
            horizon=True,
            cost=20.0,
        ),
        learned(
            "hyperadam2",
            "HyperAdam2, told the horizon",
            "HyperAdam2",
            "hyperadam2",
            horizon=True,
            cost=20.0,
        ),
    ]
    return {rival.name: rival for rival in found}


def find(names: list[str] | None = None) -> list[Rival]:
    """Optimizers by name, in the suite's order; without names all that can be had here."""
    known = rivals()
    if unknown := [name for name in names or () if name not in known]:
        raise ValueError(
            f"the suite has no optimizer {', '.join(unknown)}; there are {', '.join(known)}"
        )
    for name in names or ():
        if known[name].missing:
            raise ValueError(f"{name} is not to be had here: {known[name].missing}")
    return [
        rival
        for rival in known.values()
        if (rival.name in names if names is not None else not rival.missing)
    ]
