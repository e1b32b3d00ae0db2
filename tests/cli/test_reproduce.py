"""``hyperadam reproduce`` and ``hyperadam tune --all``: what they write and say, and how they end."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import hyperadam
from hyperadam.cli import main
from hyperadam.experiments.paper.experiment import Claim, Experiment, Figure
from hyperadam.experiments.paper.specs import EXPERIMENTS
from hyperadam.results import archive

from ..experiments.tiny import NoisyBowl, stored


@pytest.fixture(autouse=True)
def here(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, and one experiment in place of the paper's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    experiment = Experiment(
        "tiny",
        "Tiny",
        "nowhere",
        "Nothing much.",
        ("bowl", "trap"),
        ("sgd", "adam", "adam-init"),
        (6,),
        runs=3,
        figures=(Figure("A bowl", "bowl", 6),),
        claims=(Claim("SGD is better than Adam on the bowl.", "sgd", ("adam",), ("bowl",)),),
        published={("bowl", "adam", 6, "final_loss"): 0.5},
        quick_steps=(4,),
    )
    for name in list(EXPERIMENTS):
        monkeypatch.delitem(EXPERIMENTS, name)
    monkeypatch.setitem(EXPERIMENTS, "tiny", experiment)
    return tmp_path


def cli(command: str) -> int:
    return main(command.split())


def test_some_optimizers_or_tasks_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("reproduce tiny --jobs 1 --optimizers adam") == 0
    assert "tiny                 2 of 6 cells" in capsys.readouterr().out
    assert cli("reproduce tiny --jobs 1 --tasks bowl") == 0
    assert "tiny                 4 of 6 cells" in capsys.readouterr().out
    assert cli("reproduce tiny --optimizers adam,lion") == 2
    assert (
        "--optimizers: no lion in these experiments, only sgd, adam, adam-init"
        in capsys.readouterr().err
    )


def test_reproduce(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("reproduce all --jobs 1") == 0
    out, err = capsys.readouterr()
    assert "note: the rates of 4 cells are not tuned yet" in out
    assert "tiny                 6 of 6 cells, runs diverged: 3  results/tiny/table.md" in out
    assert err.splitlines()[-1].startswith("100%  ")
    folder = here / "results" / "tiny"
    for name in ("table.md", "table.csv", "curves.svg", "curves.png"):
        assert (folder / name).stat().st_size > 0
    table = (folder / "table.md").read_text()
    assert "| adam |" in table
    assert "(0.50)" in table, "the paper's number"
    assert "diverged in 1 of 3" in table
    assert "SGD is better than Adam on the bowl. **" in table
    with (folder / "table.csv").open() as file:
        rows = {(row["task"], row["optimizer"]): row for row in csv.DictReader(file)}
    assert rows["bowl", "adam"]["paper"] == "0.5"
    assert rows["trap", "sgd"]["diverged"] == "1"
    assert sum(int(row["best"]) for row in rows.values()) == 1, "of the column where none diverged"
    assert len(list((here / "results" / "cells").rglob("*.npz"))) == 6
    assert cli("reproduce tiny --jobs 1") == 0
    assert capsys.readouterr().err == "", "finished cells are used again"


def test_quick_is_kept_apart(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("reproduce tiny --quick --runs 1 --jobs 1") == 0
    assert "not tuned" not in capsys.readouterr().out
    found = stored(here / "results/quick/cells")
    assert {(result.runs, result.steps) for result in found} == {(1, 4)}
    assert (here / "results/quick/tiny/table.md").is_file()
    assert not (here / "results/cells").exists()


def test_what_is_missing_is_said_and_shown(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(
        EXPERIMENTS,
        "tiny",
        Experiment("tiny", "", "", "", ("bowl",), ("sgd", "nobody"), (3,), runs=2),
    )
    assert cli("reproduce tiny --jobs 1") == 1
    out, err = capsys.readouterr()
    assert "1 of 2 cells" in out
    (line,) = [line for line in err.splitlines() if line.startswith("hyperadam: ")]
    assert line.startswith("hyperadam: nobody is left out: no optimizer is called 'nobody'")
    assert "| nobody | – |" in (here / "results/tiny/table.md").read_text()


def test_a_failure_is_a_line_and_the_rest_is_computed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(NoisyBowl, "batch", bug)  # and so of trap
    assert cli("reproduce tiny --jobs 1") == 1
    out, err = capsys.readouterr()
    assert "3 of 6 cells" in out
    lines = [line for line in err.splitlines() if line.startswith("hyperadam: ")]
    assert lines[0] == "hyperadam: trap  sgd  6 steps: ZeroDivisionError: a bug"
    assert len(lines) == 3
    assert "Traceback" not in err


def test_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("reproduce tinny") == 2
    assert (
        "no experiment is called 'tinny'; did you mean tiny? there are " in capsys.readouterr().err
    )
    assert cli("tune bowl --all") == 2
    assert cli("tune") == 2


def test_tune_all_then_reproduce(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = Experiment("tiny", "", "", "", ("bowl",), ("sgd", "adam-init"), (3,), runs=2)
    monkeypatch.setitem(EXPERIMENTS, "tiny", small)
    assert cli("tune --all --jobs 1") == 0
    assert "lr 0.5\n" in capsys.readouterr().out
    assert cli("tune --all --jobs 1") == 0
    assert "1 rates, 1 of them stored already" in capsys.readouterr().out
    assert cli("reproduce tiny --jobs 1") == 0
    assert "not tuned" not in capsys.readouterr().out
    (sgd,) = archive.read(here / "results/cells/bowl/sgd-3.npz")
    assert sgd.lr == 0.5


SLOW = """
import time
from hyperadam import tasks
from hyperadam.experiments.paper import specs
from hyperadam.experiments.paper.experiment import Experiment
from tests.experiments.tiny import NoisyBowl

class Slow(NoisyBowl):
    def batch(self, seeds, step):
        time.sleep(0.05)
        return super().batch(seeds, step)

tasks.register("slow", Slow)
specs.EXPERIMENTS["slow"] = Experiment("slow", "", "", "", ("slow",), ("sgd@0.1", "sgd@0.2"), (100_000,), runs=2)
"""


@contextlib.contextmanager
def reproducing(here: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """``hyperadam reproduce`` at something slow, as a process of its own, and the processes of its pool."""
    (here / "slow_module.py").write_text(SLOW)
    roots = [str(Path(__file__).parents[2]), str(Path(hyperadam.__file__).parents[1])]
    paths = os.pathsep.join([*roots, str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [
        sys.executable,
        "-m",
        "hyperadam",
        "reproduce",
        "slow",
        "--import",
        "slow_module",
        "--jobs",
        "2",
    ]
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # where tests run in the background it is ignored
    try:
        process = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": paths},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield process, _wait_for_workers(process)
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("number", "wait"), [(signal.SIGINT, 0.0), (signal.SIGTERM, 3.0)], ids=["starting", "at-work"]
)
def test_interrupted_it_leaves_nothing_running(
    here: Path, number: signal.Signals, wait: float
) -> None:
    with reproducing(here) as (process, workers):
        time.sleep(wait)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err == (
        "setting up 2 jobs\n"
        "hyperadam: interrupted; what is finished is kept, and the same command goes on from there\n"
    )
    assert not [pid for pid in workers if _runs(pid)]


def test_a_second_one_in_the_same_folder_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with reproducing(here) as (process, _):
        for command in ("reproduce tiny", "train bowl --out results", "tune bowl --out results"):
            assert cli(command) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"hyperadam: results: process {process.pid} on ")
            assert line.endswith("wait until it ends, or choose another folder")
        assert not list((here / "results").rglob("*.npz"))
        process.kill()
        process.wait()
        assert cli("reproduce tiny --jobs 1") == 0, "the lock dies with its process"


def test_a_damaged_result_is_told_and_left_alone(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli("reproduce tiny --jobs 1") == 0
    path = here / "results/cells/bowl/sgd-6.npz"
    path.write_bytes(path.read_bytes()[:-1])
    damaged = path.read_bytes()
    capsys.readouterr()
    assert cli("reproduce tiny --jobs 1") == 1
    out, err = capsys.readouterr()
    assert "5 of 6 cells" in out
    assert err.splitlines() == [
        "hyperadam: bowl  sgd  6 steps: results/cells/bowl/sgd-6.npz is damaged: its checksum is "
        "not that of its content: delete the file to compute its runs anew"
    ]
    assert path.read_bytes() == damaged
    path.unlink()
    assert cli("reproduce tiny --jobs 1") == 0


def test_killed_it_leaves_nothing_running(here: Path) -> None:
    with reproducing(here) as (process, workers):
        process.kill()
        process.wait()
    deadline = time.monotonic() + 120
    while [pid for pid in workers if _runs(pid)]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _wait_for_workers(process: subprocess.Popen[str]) -> list[int]:
    deadline = time.monotonic() + 120
    while len(found := _workers(process.pid)) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def _workers(parent: int) -> list[int]:
    """The processes of the pool of a process."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            mine = (
                path.name.isdigit()
                and int((path / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            )
            if mine and b"spawn_main" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
