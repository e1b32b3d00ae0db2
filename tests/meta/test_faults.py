"""Meta-training under faults: kills, a second process, a full disk, damaged files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hyperadam import load_rule
from hyperadam.files import Damaged, write_checked
from hyperadam.meta import Trainer
from hyperadam.meta.checkpoint import Checkpoints, read
from tests.files.faults import ROOT, no_room
from tests.meta import toys
from tests.meta.test_trainer import SETTINGS, finish

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}


@pytest.fixture(autouse=True)
def toy() -> None:
    toys.register()


# Two ranks ------------------------------------------------------------------------------------------

#: Rank 1 is killed at its save of an update, right after rank 0 saved it: on the first two attempts
#: at update 6, its first save, on the next two at update 12, and then no more.
WORKER = """
import os, signal, sys, time
from dataclasses import replace
from pathlib import Path
import torch
from hyperadam.meta import ranks
from hyperadam.meta.checkpoint import read
from tests.meta.test_trainer import SETTINGS, Trainer, toys
began = time.time()
torch.set_num_threads(1)
toys.register()
ranks.join()
out, deaths = Path(sys.argv[1]), [int(update) for update in sys.argv[2:]]
trainer = Trainer(replace(SETTINGS, updates=18, rollouts=4), out)
if trainer.rank == 0:
    print(trainer.update, flush=True)
attempt, save, other = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), trainer.save, out / "checkpoint-0.pt"
def save_or_die():
    if trainer.rank == 0 or attempt >= len(deaths) or trainer.update != deaths[attempt]:
        return save()
    while not (other.exists() and other.stat().st_mtime > began
               and read(other)["update"] == trainer.update):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
trainer.save = save_or_die
trainer.run(lambda *_: None, lambda: False)
if trainer.rank == 0:
    torch.save(trainer.rule.state_dict(), out / "rule.pt")
torch.distributed.destroy_process_group()
"""


def test_a_rank_that_is_killed_twice_right_after_the_other_saved_loses_an_interval(
    tmp_path: Path,
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    begins, rules = {}, {}
    for out, deaths in (("calm", []), ("killed", ["6", "6", "12", "12"])):
        command = [*TORCHRUN, "--max-restarts", "4", str(script), str(tmp_path / out), *deaths]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        begins[out] = [int(update) for update in done.stdout.split()]
        rules[out] = torch.load(tmp_path / out / "rule.pt", weights_only=True)
    # validation, and with it a save of all ranks, is every six updates
    assert begins == {"calm": [0], "killed": [0, 0, 0, 6, 6]}
    assert all(torch.equal(x, rules["killed"][name]) for name, x in rules["calm"].items())


# The command ----------------------------------------------------------------------------------------


def command(tmp_path: Path, updates: int, *more: str) -> list[str]:
    module = tmp_path / "bowl.py"
    module.write_text("from tests.meta import toys\ntoys.register()\n")
    text = "--preset hyperadam-paper --tasks toy-bowl --period 10 --lengths 20 --save-every 0.2"
    text += " --exact-from 0 --validate-every 1000 --validation-steps 20 --threads 1"
    return [
        *("-m", "hyperadam", "meta-train", "--import", "bowl", "--config", '{"candidates": 3}'),
        *(*text.split(), "--updates", str(updates), "--out", str(tmp_path / "out"), *more),
    ]


def start(tmp_path: Path, *arguments: str, run: tuple[str, ...] = (), **options: object):
    return subprocess.Popen(
        [*(run or (sys.executable,)), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        cwd=tmp_path,
        **options,
    )


def wait_for_updates(process: subprocess.Popen, log: Path, least: int) -> None:
    deadline = time.monotonic() + 120
    while not log.exists() or log.read_bytes().count(b"\n") < least:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_second_meta_training_is_refused_with_the_first_ones_name(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = start(tmp_path, *command(tmp_path, 100_000))
    try:
        wait_for_updates(first, out / "log.jsonl", 5)
        told = f"hyperadam: {out}: process {first.pid} on {socket.gethostname()}, since 20"
        second = start(tmp_path, *command(tmp_path, 100_000))
        output, errors = second.communicate(timeout=120)
        assert second.returncode == 2
        assert output == ""
        assert errors.startswith(told)
        assert errors.count("\n") == 1
        ranks = start(tmp_path, *command(tmp_path, 100_000), run=tuple(TORCHRUN))
        _, errors = ranks.communicate(timeout=120)
        assert ranks.returncode != 0
        assert errors.count(told) == 2
        wait_for_updates(first, out / "log.jsonl", 50)  # the first goes on
    finally:
        first.kill()
        first.communicate()
    lines = (out / "log.jsonl").read_bytes().count(b"\n")
    # its lock dies with it: the same command takes over, and goes on from the checkpoint
    third = start(tmp_path, *command(tmp_path, 100_000))
    wait_for_updates(third, out / "log.jsonl", lines + 20)
    third.send_signal(signal.SIGINT)
    third.communicate(timeout=120)
    assert third.returncode == 130
    assert not list(out.glob(".*.partial"))


def test_the_log_has_one_line_an_update_after_kills(tmp_path: Path) -> None:
    log = tmp_path / "out/log.jsonl"
    for least in (60, 120):
        process = start(tmp_path, *command(tmp_path, 200))
        wait_for_updates(process, log, least)
        process.kill()
        process.communicate()
        with log.open("ab") as file:
            file.write(b'{"update": 17, "torn')
    done = start(tmp_path, *command(tmp_path, 200))
    errors = done.communicate(timeout=300)[1]
    assert done.returncode == 0, errors
    found = [json.loads(line)["update"] for line in log.read_text().splitlines()]
    assert found == list(range(1, 201))


def test_a_full_disk_is_told_in_one_line_and_what_was_there_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = start(tmp_path, *command(tmp_path, 20))
    assert done.wait(timeout=120) == 0, done.communicate()
    before = (out / "best.safetensors").read_bytes()
    (out / "checkpoint.pt").unlink()
    (out / "checkpoint.pt.previous").unlink(missing_ok=True)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    again = start(tmp_path, *command(tmp_path, 20), preexec_fn=limit)
    errors = again.communicate(timeout=120)[1]
    assert again.returncode == 2
    assert errors.endswith(f"hyperadam: {out / 'best.safetensors'}: File too large\n")
    assert (out / "best.safetensors").read_bytes() == before


# In one process -------------------------------------------------------------------------------------


def test_where_there_is_no_room_weights_and_checkpoint_stay(tmp_path: Path) -> None:
    trainer = Trainer(SETTINGS, tmp_path)
    finish(trainer, until=6)
    best, kept = tmp_path / "best.safetensors", tmp_path / "checkpoint.pt"
    weights, state = best.read_bytes(), kept.read_bytes()
    trainer.best = float("inf")
    for write, path in ((trainer.validate, best), (trainer.save, kept)):
        with no_room(1000), pytest.raises(OSError, match="File too large") as caught:
            write()
        assert caught.value.filename == str(path)
    assert (best.read_bytes(), kept.read_bytes()) == (weights, state)
    load_rule(best)
    assert Trainer(SETTINGS, tmp_path).update == 6


def test_a_damaged_checkpoint_is_told_and_the_previous_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(Trainer(SETTINGS, tmp_path), until=12)
    path = tmp_path / "checkpoint.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    capsys.readouterr()
    trainer = Trainer(SETTINGS, tmp_path)
    assert trainer.update == 6
    assert capsys.readouterr().err == (
        f"hyperadam: {path} is damaged: its checksum is not that of its content; "
        "going on from update 6\n"
    )
    (tmp_path / "checkpoint.pt.previous").write_bytes(b"short")
    with pytest.raises(Damaged, match=r"damaged.*damaged.*: remove the checkpoints to start anew"):
        Trainer(SETTINGS, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"rule": None},
        {"rule": {}},
        {"average": {"b_u": torch.ones(1)}},
        {"optimizer": {}},
        {"optimizer": {"state": 3, "param_groups": []}},
        {"curve": [(1,)]},
        {"curve": 3},
        {"counts": (1, 2)},
        {"norms": []},
        {"rollouts": [(0, 0)]},
        {"rollouts": None},
    ],
    ids=str,
)
def test_a_whole_checkpoint_with_wrong_content_is_refused_by_name(
    tmp_path: Path, change: dict
) -> None:
    finish(Trainer(SETTINGS, tmp_path), until=2)
    path = tmp_path / "checkpoint.pt"
    wrong = read(path) | change
    write_checked(path, lambda file: torch.save(wrong, file))
    with pytest.raises(Damaged, match=f"{path} is not a checkpoint of this version"):
        Trainer(SETTINGS, tmp_path)


def test_checkpoints_of_older_versions_load(tmp_path: Path) -> None:
    """A digest, then torch's bytes: as it has been from the first version on."""
    finish(Trainer(SETTINGS, tmp_path), until=2)
    data = (tmp_path / "checkpoint.pt").read_bytes()
    assert data[:32] == hashlib.sha256(data[32:]).digest()
    assert [content["update"] for content in Checkpoints(tmp_path / "checkpoint.pt").load()[0]] == [
        2
    ]
    other = dataclasses.replace(SETTINGS, seed=1)
    with pytest.raises(ValueError, match="other settings"):
        Trainer(other, tmp_path)
