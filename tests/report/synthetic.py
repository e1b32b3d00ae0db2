"""Experiments and results made of nothing, of the same kind as real ones: for what is made from results."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from hyperadam.experiments.paper.experiment import Claim, Experiment, Figure
from hyperadam.experiments.paper.runner import Loaded
from hyperadam.results import Result

OPTIMIZERS = (
    *("sgd", "momentum", "adagrad", "adadelta", "rmsprop", "adam"),
    *("dm", "rnnprop", "hyperadam-paper", "hyperadam", "adam-init"),
)
#: How good each of them is, as a share of the loss at the start that is left after a hundred steps.
LEFT = dict(
    zip(OPTIMIZERS, (0.2, 0.17, 0.16, 0.19, 0.145, 0.13, 0.4, 0.128, 0.12, 0.11, 0.14), strict=True)
)


ACTIVATIONS = Experiment(
    "activations",
    "Activation functions",
    "Table 1 and Figure 5(a)",
    "The small MLP on MNIST, trained with four activation functions.",
    ("mnist-mlp", "mnist-mlp-relu", "mnist-mlp-elu", "mnist-mlp-tanh"),
    OPTIMIZERS,
    runs=20,
    figures=(Figure("Small MLP with ELU", "mnist-mlp-elu", 100),),
    claims=(
        Claim("HyperAdam ends lowest.", "hyperadam-paper", ("adam", "dm", "rnnprop")),
        Claim("DMoptimizer does not carry over to ELU.", "adam", ("dm",), ("mnist-mlp-elu",)),
    ),
    published={
        ("mnist-mlp", "adam", 100, "final_loss"): 0.35,
        ("mnist-mlp", "hyperadam-paper", 100, "final_loss"): 0.33,
    },
)


def bare(**fields: Any) -> Experiment:
    """An experiment without claims, figures and published numbers."""
    return replace(ACTIVATIONS, **{"figures": (), "claims": (), "published": {}, **fields})


def make(
    task: str, optimizer: str, steps: int, runs: int, test: bool = False, diverged: int = 0
) -> Result:
    """A result whose curves fall with noise that runs of one seed share, and of which some diverge."""
    seed = zlib.crc32(f"{task} {optimizer} {steps}".encode())
    own, shared = (
        torch.Generator().manual_seed(seed),
        torch.Generator().manual_seed(zlib.crc32(task.encode())),
    )
    task_scale = 0.6 + 1.2 * float(torch.rand((), generator=shared))
    level = (
        torch.randn(runs, 1, generator=shared) * 0.08 + torch.randn(runs, 1, generator=own) * 0.02
    )
    left = LEFT.get(optimizer, 0.15) * task_scale * (100 / steps) ** 0.25
    time = torch.arange(1, steps + 1) / steps
    clean = 2.3 * (
        left + (1 - left) * torch.exp(-7 * time * (0.6 + 0.6 * torch.rand((), generator=own)))
    )
    losses = clean * torch.exp(level + 0.08 * torch.randn(runs, steps, generator=own))
    final = 2.3 * left * torch.exp(level.squeeze(1))
    at: list[int | None] = [None] * runs
    for run in range(diverged):
        at[run] = int(steps * (0.4 + 0.5 * run / runs))
        losses[run, at[run] :] = math.inf
        final[run] = math.inf
    metrics = None
    if test:
        top1 = torch.where(final.isfinite(), 1 - final / 10, math.nan)
        metrics = {
            "loss": torch.where(final.isfinite(), final * 0.3, math.nan),
            "top1": top1,
            "top2": (1 + top1) / 2,
        }
    settings = {
        "task": task,
        "p": 15910,
        "optimizer": optimizer,
        "lr": 0.03,
        "steps": steps,
    }
    if steps > 500:
        settings["final_batches"] = 500
    if test:
        settings["test"] = True
    if optimizer in OPTIMIZERS[:6]:
        settings["hyperparameters"] = {}
        settings["lr"] = 0.03125
    else:
        settings |= {
            "rule": "hyperadam",
            "config": {"candidates": 21},
            "weights": f"{seed:064x}"[:64],
        }
    made_with = {"hyperadam": "0.1.0", "torch": "2", "python": "3.12", "backend": "torch"}
    return Result(
        settings,
        tuple(range(runs)),
        losses.float(),
        final.float(),
        tuple(at),
        metrics,
        made_with,
        optimizer,
        "tuned",
    )


def loaded(found: Sequence[Result]) -> Loaded:
    """Results as they come from a store where nothing is damaged."""
    return Loaded(list(found), {})


def results(
    experiment: Experiment,
    missing: Sequence[tuple[str, str]] = (),
    diverged: Mapping[tuple[str, str], int] | None = None,
) -> list[Result]:
    """All cells of an experiment but the missing ones (task, optimizer), with so many diverged runs."""
    return [
        make(
            task,
            label,
            steps,
            experiment.runs,
            experiment.test,
            (diverged or {}).get((task, label), 0),
        )
        for task in experiment.tasks
        for steps in experiment.steps
        for label in experiment.optimizers
        if (task, label) not in missing
    ]
