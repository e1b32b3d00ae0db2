"""``hyperadam meta-train``: what it says at the beginning and at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hyperadam.cli import main
from tests.meta import toys

COMMAND = (
    "meta-train --tasks toy-bowl --lengths 20 --period 10 --rollouts 1 --validate-every 2 "
    "--validation-runs 2 --validation-steps 10 --input-scale 1 --exact-from 0"
)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    toys.register()
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)


def meta_train(out: Path, *more: str) -> int:
    config = '{"candidates": 2, "decay_bound": 0.97}'
    return main([*COMMAND.split(), "--config", config, "--out", str(out), *more])


def test_it_says_that_the_best_is_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ruined = ["--updates", "2", "--lr", "30", "--warmup", "0", "--average", "0"]
    assert meta_train(tmp_path, *ruined) == 0
    out, err = capsys.readouterr()
    assert "the best is the untrained start: nothing that was learned is in these weights" in out
    assert "validating the start" in err
    assert meta_train(tmp_path, *ruined) == 0, "resumed it says so again"
    out, err = capsys.readouterr()
    assert "the best is the untrained start" in out
    assert "going on from update 2" in err


def test_and_does_not_say_so_when_it_has_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert meta_train(tmp_path, "--updates", "20", "--lr", "0.01") == 0
    out = capsys.readouterr().out
    assert "best validation" in out
    assert "untrained" not in out


def test_the_default_preset_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["meta-train", "--help"])
    assert "(default hyperadam)" in " ".join(capsys.readouterr().out.split())
