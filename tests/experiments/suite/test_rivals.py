"""The suite's optimizers: each as its users have it, with the rate and the schedule that its name says."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from torch import nn

from hyperadam.experiments.suite import rivals, runs
from hyperadam.experiments.suite.rivals import Rival
from hyperadam.experiments.suite.tasks import SuiteTask

KNOWN = rivals.rivals()
AVAILABLE = [name for name, rival in KNOWN.items() if not rival.missing]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2))


def rates(name: str, lr: float, steps: int) -> list[list[float]]:
    """The rates of all optimizers of a training at each of its steps."""
    module = net()
    training = KNOWN[name].make(module, lr, steps)
    seen = []
    for _ in range(steps):
        seen.append([group["lr"] for o in training.optimizers for group in o.param_groups])
        for p in module.parameters():
            p.grad = torch.ones_like(p)
        training.step()
    return seen


def test_schedules() -> None:
    assert rates("adam", 0.3, 4) == [[0.3]] * 4
    linear = [x for (x,) in rates("adam-linear", 0.4, 4)]
    assert linear == pytest.approx([0.4, 0.3, 0.2, 0.1])
    half = (0.5**0.5 + 1) / 2
    for name in ("adamw-cosine", "sgd-cosine", "prodigy-cosine"):
        cosine = [x for (x,) in rates(name, 1.0, 4)]
        assert cosine == pytest.approx([1, half, 0.5, 1 - half])
    assert all(a == b for a, b in rates("muon", 0.1, 4)), "one rate for both"


def test_documented_defaults() -> None:
    assert KNOWN["adamw-cosine"].lr == 0.001
    assert KNOWN["schedule-free"].lr == 0.0025
    assert KNOWN["prodigy"].lr == 1.0
    for name in ("adam", "adam-linear", "sgd-cosine", "muon"):
        tried = KNOWN[name].rates
        factors = [b / a for a, b in itertools.pairwise(tried)]
        assert len(tried) >= 7
        assert all(2 <= factor <= 3.001 for factor in factors)


@pytest.mark.parametrize("name", AVAILABLE)
def test_every_one_of_them_learns(suite: dict[str, SuiteTask], name: str) -> None:
    rival = KNOWN[name]
    lr = {"sgd-cosine": 0.05}.get(name, 0.01) if rival.rates else rival.lr
    task = suite["curve"]
    done = runs.train(task, rival, lr, 100, seed=0, report=True)
    assert done.loss < 0.7 * runs.start_loss(task, 0)
    assert done.diverged_at is None
    assert 0 < done.optimizer_seconds < done.seconds


@pytest.mark.parametrize("name", AVAILABLE)
def test_records_survive_json(name: str) -> None:
    record = KNOWN[name].record()
    assert json.loads(json.dumps(record)) == record
    assert ("lr" in record) != ("first_rates" in record)


def test_learned_ones_are_known_by_their_weights() -> None:
    a, b = KNOWN["hyperadam-paper"].record(), KNOWN["hyperadam"].record()
    assert a["weights"] != b["weights"]
    assert not a["total_steps"], "the paper's rule is not told the horizon"


def test_muon_has_the_hidden_matrices() -> None:
    module = net()
    assert [id(p) for p in rivals.hidden_matrices(module)] == [
        id(module[1].weight),
        id(module[2].weight),
    ]
    training = KNOWN["muon"].make(module, 0.01, 10)
    held = [id(p) for o in training.optimizers for g in o.param_groups for p in g["params"]]
    assert sorted(held) == sorted(id(p) for p in module.parameters()), "all of them, once"
    convolutions = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2))
    assert not KNOWN["muon"].applies(convolutions)
    assert KNOWN["muon"].applies(module)
    assert KNOWN["adam"].applies(convolutions)


def test_schedule_free_ends_at_its_averaged_weights() -> None:
    pytest.importorskip("schedulefree")
    torch.manual_seed(0)
    module = nn.Linear(3, 1)
    training = KNOWN["schedule-free"].make(module, 0.1, 5)
    training.begin()
    for _ in range(5):
        training.zero_grad()
        (module(torch.eye(3)) - 1).square().mean().backward()
        training.step()
    trained = module.weight.detach().clone()
    training.end()
    assert not torch.equal(module.weight, trained)


def test_find() -> None:
    assert [r.name for r in rivals.find(["muon", "adam"])] == ["adam", "muon"]
    assert all(not rival.missing for rival in rivals.find())
    with pytest.raises(ValueError, match="no optimizer adma; there are adam, adam-linear"):
        rivals.find(["adma"])


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Rival("gone", "", KNOWN["adam"].make, 0.1, missing="pip install it")
    monkeypatch.setattr(rivals, "rivals", lambda: {"gone": gone})
    assert rivals.find() == []
    with pytest.raises(ValueError, match="gone is not to be had here: pip install it"):
        rivals.find(["gone"])
