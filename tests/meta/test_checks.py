"""Settings are checked when they are made: every field, in one line, with the near name."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from hyperadam.cli import main
from hyperadam.meta import PRESETS, Settings
from hyperadam.meta.checks import CHECKS

WHOLE = [0, -1, 1.5, math.nan, "3", None, True, 10**30]
FLAG = [0, 1, "yes", None]
SHARE = [-0.1, 1.1, math.nan, math.inf, "0", None, True]
POSITIVE = [0, -1, math.nan, math.inf, "1", None, True, 10**400]
NUMBER = [math.nan, math.inf, -math.inf, "1", None, 10**400, 1e300]
BAD = {
    "rule": ["hyperadm", "", None, [], 3],
    "config": [None, [], "{}", {"candidats": 3}, {"candidates": 0}, {"candidates": "3"}, {3: 3}],
    "estimator": ["pes", "", None, []],
    "seed": [-1, 1.5, None, "1", True, 2**63, 10**400],
    "tasks": [(), [], "mnist-mlp", ("",), (3,), None],
    "others": [[], "mnist-mlp", ("",), (3,), None],
    **dict.fromkeys(("scaling", "convex", "last", "relative", "horizon"), FLAG),
    **dict.fromkeys(("updates", "period", "rollouts", "pairs"), WHOLE),
    **dict.fromkeys(("validate_every", "validation_runs", "validation_steps"), WHOLE),
    "lengths": [(), [20], 20, (0,), (20, -20), (20.0,), (3,), (30,), (20, 50), None],
    "exact_from": [-1, 1.5, "0", True, math.inf],
    "warmup": [-1, 1.5, None, "0", True, math.nan],
    **dict.fromkeys(("lr", "clip", "sigma", "budget", "shorter"), POSITIVE),
    "final_lr": [-1e-9, *NUMBER],
    "average": [1, -0.1, math.nan, math.inf, None, "0.9", True],
    "start": ["near adam", "", None, []],
    "total_weight": NUMBER,
    "input_scale": [-1, *NUMBER],
    "horizons": [(), (50,), (0, 50), (50, 20), (1, 2, 3), [50, 2000], (50, 2000.0), 50, None],
    "trained": [("thta_a",), ("theta_q@x",), ("theta_q@-1",), ("@3",), ("",), [], "theta_q", (3,)],
    "hidden": SHARE,
    "backward": [0, *SHARE],
}


def test_every_field_has_a_check_and_bad_values() -> None:
    names = {field.name for field in dataclasses.fields(Settings)}
    assert set(CHECKS) == names
    assert set(BAD) == names


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in BAD.items() for value in values],
    ids=lambda x: str(x)[:30],
)
def test_bad_values_are_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name}\b.*must") as caught:
        Settings(**{name: value})
    assert "\n" not in str(caught.value)
    assert "got" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_the_presets_are_good() -> None:
    for settings in PRESETS.values():
        dataclasses.replace(settings)


COMMANDS = {
    "--period 0": "period must be a whole number, at least 1 and at most 1,000,000,000, got 0",
    "--lengths 3": "lengths must be multiples of the period, 20, got 3",
    "--lengths 100,30": "lengths must be multiples of the period, 20, got 30",
    "--lengths": "expected one argument",
    "--lengths=": "lengths must be a tuple of at least one number of steps, got ()",
    "--lengths 20,x": "--lengths: expected whole numbers with commas between them, got '20,x'",
    "--rollouts 0": "rollouts must be a whole number, at least 1",
    "--clip -1": "clip must be a number above 0, at most 1e6, got -1.0",
    "--average nan": "average must be a number, at least 0 and at most 1, got nan",
    '--config {"candidats":3}': "got 'candidats'; did you mean 'candidates'?",
    '--config {"candidates":0}': "config: candidates must be a whole number, at least 1",
    "--config {": "--config: expected a JSON object, as in",
    "--config [1]": "--config: expected a JSON object, as in",
    "--config " + "[" * 100_000: "--config: expected a JSON object, as in",
    "--estimator pes": "estimator must be one of 'bptt', 'es', 'slopes', got 'pes'; did you mean 'es' or 'slopes'?",
    "--start near-adm": "got 'near-adm'; did you mean 'near-adam'?",
    "--start mixture": "start 'mixture' is HyperAdam2's alone, not hyperadam's",
    "--preset hyperadm": "no preset is called 'hyperadm'; did you mean hyperadam",
    "--preset hyperadam2 --trained thta_a": "got 'thta_a'; did you mean 'theta_a'",
    "--preset hyperadam2 --horizons 50": "horizons must be a tuple of two numbers of steps",
    "--preset hyperadam2 --tasks mnist-mlp": "tasks must be 'family' with estimator 'slopes'",
    "--preset hyperadam2 --sigma 0": "sigma must be a number above 0",
    "--preset dm --estimator es": "estimator 'es' is HyperAdam2's alone, not dm's",
    "--backward 0.5": "backward must be 1 with exact_from, got 0.5: the way back through the learner",
    "--preset dm --backward 0.5": "backward below 1 is for hyperadam with estimator 'bptt', got 0.5",
    "--preset hyperadam2 --backward 0.5": "got 0.5 for hyperadam2 with 'slopes'",
    "--tasks mnist-mpl": "no task is called 'mnist-mpl'",
    "--save-every -1": "--save-every: expected seconds from 0 up, got '-1'",
    "--save-every nan": "--save-every: expected seconds from 0 up, got 'nan'",
    "--seed " + "1" * 5000: "--seed: invalid int value",
    "--threads 0": "--threads: expected a whole number from 1 up",
}


@pytest.mark.parametrize("words", COMMANDS, ids=lambda text: text[:40])
def test_the_command_says_so_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    out = tmp_path / "out"
    try:
        status = main(["meta-train", "--out", str(out), *words.split(" ")])
    except SystemExit as end:
        status = end.code
    told = capsys.readouterr()
    assert status == 2
    assert told.out == ""
    assert COMMANDS[words] in told.err
    assert "a bug" not in told.err
    assert told.err.count("\n") == 1
    assert "no task" in told.err or not out.exists()  # nothing was begun
