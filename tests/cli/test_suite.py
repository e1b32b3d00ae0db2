"""``hyperadam suite``: computes what is missing, shows what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperadam.cli import main
from tests.experiments.suite.small import suite

__all__ = ["suite"]


def test_it_computes_what_is_missing(
    suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["suite", "--out", str(tmp_path), "--tasks", "curve", "--steps", "20"]
    command += ["--optimizers", "adam-linear,adamw-cosine"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "2 jobs, 0 of them done already" in out
    assert "curve  20 steps  adamw-cosine  lr 0.001  seed 2  loss" in out
    assert "Scores" in out
    assert (tmp_path / "table.md").is_file()
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "2 jobs, 2 of them done already" in out
    assert "seed 2" not in out, "nothing is computed again"
    assert main([*command[:3], "--report"]) == 0
    assert "Scores" in capsys.readouterr().out
    assert main([*command[:3], "--list"]) == 0
    out = capsys.readouterr().out
    assert "adam-linear, adamw-cosine" in out
    assert "nothing yet" in out
    assert "Muon on hidden matrices" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--tasks nonsense", "the suite has no task nonsense; there are curve, again"),
        ("--optimizers nonsense", "the suite has no optimizer nonsense; there are adam"),
        ("--tasks again --steps 1000", "none of these tasks has a horizon of [1000]"),
        ("--report", "there is nothing to compare"),
    ],
)
def test_errors_are_one_line(
    suite, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    assert main(["suite", "--out", str(tmp_path), *options.split()]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["suite", "--help"])
    out = capsys.readouterr().out
    assert "hyperadam suite --list" in out
    assert "goes on" in out
