"""Makes ``adam-init.safetensors``, the untrained start that behaves like Adam: ``python -m
hyperadam.weights.make_initial``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from hyperadam.meta import preset
from hyperadam.rules import HyperAdamRule
from hyperadam.weights.loader import SHIPPED, SUFFIX

NAME = "adam-init"


def initial_rule(seed: int = 0) -> HyperAdamRule:
    """``hyperadam`` before meta-training: decay rates spread about Adam's, equal weights that sum
    to one, a random LSTM."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rule = HyperAdamRule(**preset("hyperadam").config).start_near_adam()
    rule.provenance = {
        "made_by": "python -m hyperadam.weights.make_initial",
        "what": "untrained: twenty Adams with fixed decay rates about (0.9, 0.999), averaged, "
        "with a warm-up",
        "seed": seed,
        "meta_steps": 0,
    }
    return rule


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED / f"{NAME}{SUFFIX}"
    initial_rule().save(target)
    print(target)
