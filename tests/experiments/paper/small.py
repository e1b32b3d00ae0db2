"""A small experiment, and a folder to compute it in."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hyperadam
from hyperadam import tasks
from hyperadam.experiments.paper.experiment import Claim, Experiment, Figure

from ..tiny import NoisyBowl

MODULE = """
import time
from hyperadam import tasks
from tests.experiments.tiny import NoisyBowl, Quadratic, Trap

class Slow(NoisyBowl):
    def batch(self, seeds, step):
        time.sleep(0.05)
        return super().batch(seeds, step)

class Broken(NoisyBowl):
    def batch(self, seeds, step):
        raise RuntimeError("no batch today")

for name, kind in {"noisy-bowl": NoisyBowl, "bowl": Quadratic, "trap": Trap, "slow": Slow, "broken": Broken}.items():
    tasks.register(name, kind)
"""


class Slow(NoisyBowl):
    """Here it need not be slow."""


class Broken(NoisyBowl):
    """Has no batches."""

    def batch(self, seeds: object, step: object) -> tuple[torch.Tensor]:
        raise RuntimeError("no batch today")


@pytest.fixture(autouse=True)
def here(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a module that registers the tiny tasks in processes that know nothing of ours."""
    tasks.register("slow", Slow)
    tasks.register("broken", Broken)
    (tmp_path / "tiny_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    paths = [
        str(Path(__file__).parents[3]),
        str(Path(hyperadam.__file__).parents[1]),
        str(tmp_path),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.syspath_prepend(paths[0])  # processes of multiprocessing take this one
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    return tmp_path


def experiment(**changes: object) -> Experiment:
    made = Experiment(
        "tiny",
        "Tiny",
        "nowhere",
        "Nothing much.",
        ("noisy-bowl", "bowl"),
        ("sgd", "adam", "adam-init"),
        (4, 8),
        runs=3,
        quick_runs=2,
        quick_steps=(2, 3),
        figures=(Figure("Bowl", "bowl", 8),),
        claims=(Claim("Adam is better.", "adam", ("sgd",), ("bowl",), 8),),
        published={("bowl", "adam", 8, "final_loss"): 0.5},
    )
    return replace(made, **changes)  # type: ignore[arg-type]
