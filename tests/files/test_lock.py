"""A folder's lock: the second is told who is first, and the dead hold nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from hyperadam.files import write_atomically
from hyperadam.files.lock import InUse, Lock
from tests.files.faults import python

HOLD = """
import time
from hyperadam.files.lock import Lock
with Lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_second_process_is_refused_with_the_first_ones_name(tmp_path: Path) -> None:
    first = python(HOLD, tmp_path, stdin=subprocess.PIPE)
    assert first.stdout.readline() == "held\n"
    with pytest.raises(InUse) as caught, Lock(tmp_path):
        pass
    assert caught.value.filename == str(tmp_path)
    told = f"process {first.pid} on {socket.gethostname()}, since 20"
    assert caught.value.strerror.startswith(told)
    assert "UTC, is at work here: wait until it ends" in caught.value.strerror
    first.communicate("end\n")
    with Lock(tmp_path):
        pass
    assert os.listdir(tmp_path) == [".lock"]


def test_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    first = python(HOLD, tmp_path, stdin=subprocess.PIPE)
    assert first.stdout.readline() == "held\n"
    first.send_signal(signal.SIGKILL)
    first.communicate()
    (tmp_path / ".a-1234.partial").touch()  # what it was writing
    assert (tmp_path / ".lock.owner").exists()
    with Lock(tmp_path):
        assert f'"pid": {os.getpid()}' in (tmp_path / ".lock.owner").read_text()
        assert not (tmp_path / ".a-1234.partial").exists()


def test_one_process_may_nest_it(tmp_path: Path) -> None:
    with Lock(tmp_path):
        with Lock(tmp_path):
            write_atomically(tmp_path / "file", b"")
        # the outer one still holds
        second = python(HOLD, tmp_path)
        assert f"process {os.getpid()} on" in second.communicate()[1]


@pytest.mark.parametrize("owner", ["", "[]", "{}", "{", "[" * 100_000, '{"pid": 1}'])
def test_an_owner_that_cannot_be_read_is_just_another_process(tmp_path: Path, owner: str) -> None:
    first = python(HOLD, tmp_path, stdin=subprocess.PIPE)
    assert first.stdout.readline() == "held\n"
    (tmp_path / ".lock.owner").write_text(owner)
    told = "process 1 on unknown" if "pid" in owner else "another process is at work here"
    with pytest.raises(InUse, match=told), Lock(tmp_path):
        pass
    first.communicate("end\n")
