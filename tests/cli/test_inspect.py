"""``hyperadam inspect``: a run, looked at with the real optimizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hyperadam.cli import main
from hyperadam.commands.inspect import names
from hyperadam.experiments import find, train
from hyperadam.tasks import ModuleTask, examples, get


@pytest.fixture(autouse=True)
def here(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    return tmp_path


@pytest.mark.parametrize("optimizer", ["hyperadam", "hyperadam2+horizon", "rnnprop", "dm"])
def test_it_is_the_run_that_train_takes(
    here: Path, capsys: pytest.CaptureFixture[str], optimizer: str
) -> None:
    command = f"inspect noisy-bowl --optimizer {optimizer} --steps 12 --every 5 --seed 3 --out x"
    assert main(command.split()) == 0
    out, err = capsys.readouterr()
    assert err == "training\n"
    looks = json.loads((here / "x" / "looks.json").read_text())
    assert [look["step"] for look in looks] == [1, 6, 11, 12]
    expected = train("noisy-bowl", find(optimizer), [3], 12).losses[0]
    seen = [look["loss"] for look in looks]
    assert seen == pytest.approx([expected[i].item() for i in (0, 5, 10, 11)], rel=1e-5)
    assert f"loss {seen[0]:.4g} -> {seen[-1]:.4g}" in out
    assert "page     x/index.html" in out
    page = (here / "x" / "index.html").read_text()
    assert f"<h1>Inside {optimizer} on noisy-bowl</h1>" in page
    assert "One run of 12 steps, seed 3" in page


def test_divergence_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    statuses = [main(f"inspect trap --steps 9 --seed {seed}".split()) for seed in range(3)]
    assert sorted(statuses) == [0, 0, 2]
    assert "the run diverges at step" in capsys.readouterr().err


def test_tensors_have_names() -> None:
    assert names(get("mnist-mlp")) == ["1: 20×784", "2: 20", "3: 10×20", "4: 10"]
    x = torch.zeros(8, 3)
    task = ModuleTask(lambda: torch.nn.Linear(3, 1), lambda m, b: m(b[0]).mean(), examples((x,), 4))
    assert names(task) == ["weight", "bias"]
