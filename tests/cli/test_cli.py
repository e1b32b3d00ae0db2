"""The command line: what it prints and writes, and that errors are one clear line."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hyperadam import HyperAdamRule, data, tasks
from hyperadam.cli import COMMANDS, main
from hyperadam.commands import demo, terminal
from hyperadam.experiments.training import rates

from ..experiments.tiny import NoisyBowl, stored


@pytest.fixture(autouse=True)
def here(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, and no change of threads that outlives a test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    return tmp_path


def cli(command: str) -> int:
    """The status of ``hyperadam command``."""
    return main(command.split())


def test_compare(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "compare noisy-bowl bowl --optimizers hyperadam,adam@0.1,sgd@0.1 --against adam@0.1 --steps 5 --runs 3"
    assert cli(command) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["task", "optimizer", "lr", "final", "loss", "against", "adam@0.1"]
    assert [line.split()[0] for line in lines[2:8]] == [
        "noisy-bowl",
        "adam@0.1",
        "sgd@0.1",
        "bowl",
        "adam@0.1",
        "sgd@0.1",
    ]
    assert "0.005 (the rule's own)" in lines[2]
    assert sum(" * " in line or line.endswith("*") for line in lines[2:8]) == 2
    assert "3 runs of 5 steps" in out
    assert "bowl  hyperadam" in err
    folder = here / "results" / "compare"
    for name in ("index.html", "curves.svg", "curves.png", "summary.json", "table.md", "table.csv"):
        assert (folder / name).stat().st_size > 0
    assert "results/compare/index.html" in out
    results = stored(folder / "cells")
    assert len(results) == 6
    assert all(r.losses.shape == (3, 5) for r in results)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["command"] == (
        "hyperadam compare noisy-bowl bowl --optimizers hyperadam,adam@0.1,sgd@0.1 --steps 5 --runs 3"
    )
    assert cli(command) == 0
    assert "bowl  hyperadam" not in capsys.readouterr().err, "finished cells are used again"


def test_against_is_a_name_however_it_is_written(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    optimizers = "--optimizers sgd@0.1,adam@0.1 --steps 2 --runs 2"
    assert cli(f"compare bowl {optimizers} --against adam@0.10") == 0
    assert "against adam@0.1\n" in capsys.readouterr().out
    assert cli(f"compare bowl {optimizers}") == 0
    assert "against" not in capsys.readouterr().out, "Adam at its own rate is not among them"


def test_train(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    HyperAdamRule(candidates=3).save(here / "mine.safetensors")
    assert (
        main(
            [
                "train",
                "bowl",
                "--optimizer",
                str(here / "mine.safetensors"),
                "--steps",
                "4",
                "--runs",
                "2",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert re.search(r"bowl +mine +0\.005", out)
    assert "against" not in out
    (summary,) = (path.read_text() for path in (here / "results" / "train").rglob("*.json"))
    (result,) = stored(here / "results" / "train" / "cells")
    assert str(here) not in summary + json.dumps(result.settings), "results know nothing of folders"


def test_train_with_options(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "train noisy-bowl --optimizer sgd --steps 6 --runs 2 --seed 40 --final-batches 2 --threads 1 --out x"
    assert cli(command) == 0
    (result,) = stored(here / "x" / "cells")
    assert (result.seeds, result.settings["final_batches"], result.steps) == ((40, 41), 2, 6)
    assert "0.5 (untuned)" in capsys.readouterr().out


def test_tune_then_compare(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("tune bowl --optimizers sgd,adam --steps 4 --runs 2") == 0
    out = capsys.readouterr().out
    assert re.search(r"bowl +sgd +lr 1 ", out)
    adam, sgd = rates.read_rates(here / "results/tuning/rates.csv")
    assert (sgd.optimizer, sgd.lr, sgd.first_seed, sgd.runs) == ("sgd", 1.0, 1_000_000, 2)
    assert adam.optimizer == "adam"
    assert cli("compare bowl --optimizers sgd,sgd@0.3 --steps 4 --runs 2") == 0
    assert "1 (tuned)" in capsys.readouterr().out


def test_divergence_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("compare trap --optimizers hyperadam,adam --steps 5 --runs 3") == 0
    assert "diverged in 1 of 3" in capsys.readouterr().out


def test_demo_is_a_comparison(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched = []
    monkeypatch.setattr(data, "fetch", lambda name, root=None: fetched.append((name, root)))
    monkeypatch.setattr(demo, "TASKS", ("noisy-bowl", "bowl"))
    assert cli("demo --steps 3 --runs 2 --from there") == 0
    assert fetched == [("mnist", Path("there"))]
    out = capsys.readouterr().out
    assert "against adam" in out
    assert (here / "demo" / "index.html").is_file()


def test_the_demo_has_the_tasks_it_names() -> None:
    assert [tasks.get(name).p for name in demo.TASKS] == [15_910, 15_910, 16_750, 1_781]


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"mnist-mlp +15,910 +mnist, MLP 784-20-10 sigmoid", out)
    assert "noisy-bowl" in out
    assert main(["weights", "list"]) == 0
    assert "adam-init" in capsys.readouterr().out
    assert main(["weights", "show", "adam-init"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["meta-parameters"] == 5380
    assert shown["provenance"]["meta_steps"] == 0


def test_data(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYPERADAM_DATA", str(here / "cache"))
    assert main(["data", "list"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["mnist", "absent"],
        ["fashion-mnist", "absent"],
        ["cifar10", "absent"],
    ]
    assert main(["data", "verify", "mnist"]) == 2
    line = one_line(capsys)
    assert line.startswith("hyperadam: mnist is absent")
    assert line.endswith("`hyperadam data fetch mnist` fetches it"), "the command that helps"
    calls = []
    monkeypatch.setattr(data, "fetch", lambda name, root: calls.append((name, root)) or here / name)
    assert main(["data", "fetch", "--from", "downloads"]) == 0
    names = "mnist", "fashion-mnist", "cifar10"
    assert calls == [(name, Path("downloads")) for name in names]


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err.strip()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train mnist-mpl", "no task is called 'mnist-mpl'; did you mean mnist-mlp"),
        (
            "compare bowl --optimizers hyperadam,adma",
            "no optimizer is called 'adma'; did you mean adam",
        ),
        ("compare bowl --optimizers adam,,sgd", "expected names with commas between them"),
        ("tune bowl --optimizers adm", "no optimizer is called 'adm'; did you mean adam"),
        ("tune bwol", "no task is called 'bwol'"),
        ("train bowl --steps 0", "expected a whole number from 1 up, got '0'"),
        ("train bowl --test", "task bowl has no test set"),
        ("train bowl --optimizer adam@x", "expected a number after @"),
        (
            "compare bowl --optimizers hyperadam,sgd --against adam",
            "--against adam: only hyperadam, sgd are compared here",
        ),
        ("compare bowl --against adma", "no optimizer is called 'adma'"),
        ("inspect bowl --optimizer adam", "--optimizer adam: it is not learned"),
        ("meta-train --preset hyperadm --out x", "no preset is called 'hyperadm'; did you mean"),
        ("train bowl --optimizer nowhere.safetensors", "nowhere.safetensors"),
        ("train bowl --import no_such_module", "--import no_such_module: No module named"),
        ("weights show hyperdam", "did you mean"),
        ("weights show broken.safetensors", "broken.safetensors is not a readable"),
        ("data fetch mnits", "no dataset is called 'mnits'; did you mean mnist"),
        ("data fetch mnist --from nowhere", "nowhere is not a folder"),
        ("tian bowl", "invalid choice: 'tian'"),
        ("train", "required: TASK"),
        ("train bowl --out file --steps 2 --runs 1", "file: File exists"),
    ],
)
def test_errors_are_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    (here / "broken.safetensors").write_bytes(b"nonsense")
    (here / "file").write_text("not a folder")
    try:
        status = cli(command)
    except SystemExit as end:  # the parser's own errors
        status = end.code
    assert status == 2
    assert message in one_line(capsys)


def test_weights_of_wrong_shapes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = HyperAdamRule(candidates=3)
    rule.b_q = torch.nn.Parameter(torch.zeros(4, 1))
    rule.save(here / "wrong.safetensors")
    assert main(["train", "bowl", "--optimizer", "wrong.safetensors"]) == 2
    assert "'b_q' has shape (4, 1), expected (3, 1)" in one_line(capsys)


def test_a_full_disk(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(descriptor: int) -> None:
        if "cells" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(terminal.ProgressLine, "__call__", lambda *_: None)
    monkeypatch.setattr(os, "fsync", full)
    assert cli("train bowl --steps 2 --runs 1") == 2
    line = one_line(capsys)
    assert "No space left on device" in line
    assert "results/train/cells/bowl/hyperadam-2" in line
    assert not [path for path in here.rglob("*") if path.is_file() and path.name != ".lock"], (
        "nothing half-written is left"
    )


def test_interruption(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(NoisyBowl, "batch", interrupt)
    assert cli("train noisy-bowl --steps 2 --runs 1") == 130
    line = one_line(capsys)
    assert line.endswith("what is finished is kept, and the same command goes on from there")

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "get", leave)
    assert cli("tasks") == 130
    assert one_line(capsys) == "hyperadam: interrupted", "there is nothing to go on with"


def test_bugs_are_one_line_and_debug_shows_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(NoisyBowl, "batch", bug)
    assert cli("train noisy-bowl --steps 2 --runs 1") == 2
    assert "unexpected ZeroDivisionError: a bug" in one_line(capsys)
    assert cli("train noisy-bowl --steps 2 --runs 1 --debug") == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "raise ZeroDivisionError" in err


@pytest.mark.parametrize(
    "command",
    [[], *([name] for name in COMMANDS)],
    ids=lambda c: " ".join(c) or "all",
)
def test_help_teaches(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert f"\n  hyperadam {' '.join(command)}" in out, "there are examples"


TASK = """
from hyperadam import tasks
from hyperadam.tasks import Task
import torch

class Slope(Task):
    title = "a slope"
    def __init__(self): super().__init__(p=3)
    def batch(self, seeds, step): return (torch.zeros(len(seeds)),)
    def losses(self, params, batch): return params.square().sum(-1) + 1

tasks.register("slope", Slope)
"""


def run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hyperadam", *command.split()],
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_as_a_process_with_a_task_of_ones_own(here: Path) -> None:
    (here / "my_tasks.py").write_text(TASK)
    done = run("compare slope --import my_tasks --steps 3 --runs 2 --threads 1")
    assert (done.returncode, done.stderr) == (0, "slope  hyperadam\nslope  adam\n")
    assert re.search(r"slope +hyperadam", done.stdout)
    failed = run("train slope")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("hyperadam: no task is called 'slope'")
    assert failed.stderr.count("\n") == 1


def test_a_reader_that_leaves(here: Path) -> None:
    """As with ``hyperadam tasks | head``: the pipe is closed before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "hyperadam", "tasks"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
