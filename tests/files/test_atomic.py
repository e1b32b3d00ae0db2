"""The one writer: whole or not at all, whatever happens while it writes."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from hyperadam.files import remove_leftovers, write_atomically
from tests.files.faults import ROOT, no_room, python


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file.bin"


def test_what_is_written_is_there(path: Path) -> None:
    for content in (b"bytes", "text ∂", lambda file: file.write(b"by a function")):
        write_atomically(path, content)
        expected = b"by a function" if callable(content) else content
        assert path.read_bytes() == (expected.encode() if isinstance(expected, str) else expected)
    assert os.listdir(path.parent) == [path.name]
    reference = path.with_name("usual")
    reference.touch()
    assert path.stat().st_mode == reference.stat().st_mode


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(bytes(100_000), id="bytes"),
        pytest.param(lambda file: file.write(bytes(100_000)), id="function"),
        pytest.param(lambda file: torch.save(torch.rand(50_000), file), id="torch"),
        pytest.param(lambda file: np.savez(file, x=np.random.rand(50_000)), id="numpy"),
    ],
)
def test_where_there_is_no_room_the_old_content_stays(path: Path, content: object) -> None:
    write_atomically(path, b"old")
    with no_room(20_000), pytest.raises(OSError, match="File too large") as caught:
        write_atomically(path, content)
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.skipif(not shutil.which("unshare"), reason="needs unshare")
def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    """A file system of 64 kB in a mount namespace of its own."""
    mount = ["unshare", "-rm", "sh", "-c", f"mount -t tmpfs -o size=64k x {tmp_path} && exec "]
    if subprocess.run([*mount[:-1], mount[-1] + "true"], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    code = (
        "import pathlib, sys; from hyperadam.files import write_atomically\n"
        "p = pathlib.Path(sys.argv[1]); write_atomically(p, b'old')\n"
        "try: write_atomically(p, bytes(100_000))\n"
        "except OSError as e: print(e.strerror, e.filename, p.read_bytes(), *p.parent.iterdir())"
    )
    mount[-1] += f'{sys.executable} -c "$0" {tmp_path / "x"}'
    done = subprocess.run(
        [*mount, code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src"},
    )
    x = tmp_path / "x"
    assert done.stdout.strip() == f"No space left on device {x} b'old' {x}", done.stderr


def test_a_block_that_fails_leaves_nothing(path: Path) -> None:
    def fail(file: object) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        write_atomically(path, fail)
    assert os.listdir(path.parent) == []


def test_a_link_stays_and_a_device_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for special in (fifo, tmp_path):
        with pytest.raises(OSError, match="not a regular file") as caught:
            write_atomically(special, b"")
        assert caught.value.filename == str(special)
    assert fifo.is_fifo()


def test_many_writers_of_one_file_never_mix(path: Path) -> None:
    """Threads have one process number: temporary names must differ all the same."""
    contents = [bytes([k]) * 200_000 for k in range(8)]
    failures: list[BaseException] = []

    def write(content: bytes) -> None:
        try:
            for _ in range(20):
                write_atomically(path, content)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            assert path.read_bytes() in contents
    assert not failures
    assert os.listdir(path.parent) == [path.name]


def test_a_killed_writer_leaves_the_old_content(path: Path) -> None:
    write_atomically(path, b"old")
    process = python(
        """
        import time
        from hyperadam.files import write_atomically
        def slowly(file):
            file.write(bytes(100_000)); file.flush(); print("written", flush=True); time.sleep(60)
        write_atomically(sys.argv[1], slowly)
        """,
        path,
    )
    assert process.stdout.readline() == "written\n", process.stderr.read()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert path.read_bytes() == b"old"
    assert len(os.listdir(path.parent)) == 2
    remove_leftovers(path.parent)
    assert os.listdir(path.parent) == [path.name]
