"""A tiny dataset in every published format, and fake package clients, so that no test here needs a network."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hyperadam.data import catalog, sources
from hyperadam.data.catalog import Spec
from hyperadam.data.formats import CSV, IDX, RECORDS, Parts


def random_parts(image: tuple[int, ...], train: int = 10, test: int = 2) -> Parts:
    rng = np.random.default_rng(0)
    return Parts(
        *(
            rng.integers(256, size=(train, *image), dtype=np.uint8),
            rng.integers(10, size=train, dtype=np.uint8),
        ),
        *(
            rng.integers(256, size=(test, *image), dtype=np.uint8),
            rng.integers(10, size=test, dtype=np.uint8),
        ),
    )


def content(parts: Parts) -> bytes:
    return b"".join(part.tobytes() for part in parts)


def idx_files(parts: Parts) -> dict[str, bytes]:
    arrays = (
        parts.train_images.squeeze(1),
        parts.train_labels,
        parts.test_images.squeeze(1),
        parts.test_labels,
    )
    return {
        name: bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
        for name, array in zip(IDX.files, arrays, strict=True)
    }


def csv_files(parts: Parts, header: bool = True) -> dict[str, bytes]:
    def table(images: np.ndarray, labels: np.ndarray) -> bytes:
        rows = ["label,1x1,1x2"] if header else []
        rows += [
            ",".join(map(str, [label, *image.ravel()]))
            for image, label in zip(images, labels, strict=True)
        ]
        return ("\r\n".join(rows) + "\r\n").encode()

    return dict(zip(CSV.files, (table(*parts[:2]), table(*parts[2:])), strict=True))


def record_files(parts: Parts) -> dict[str, bytes]:
    def records(images: np.ndarray, labels: np.ndarray) -> bytes:
        return b"".join(
            bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True)
        )

    batches = [
        records(parts.train_images[k : k + 2], parts.train_labels[k : k + 2])
        for k in range(0, 10, 2)
    ]
    return dict(zip(RECORDS.files, [*batches, records(*parts[2:])], strict=True))


def write(folder: Path, files: dict[str, bytes], gzipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data)) if gzipped else (
            folder / name
        ).write_bytes(data)
    return folder


def as_tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"package/deep/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def as_zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"package/data/{name}", data)
    return buffer.getvalue()


def as_deb(files: dict[str, bytes]) -> bytes:
    """A Debian package: an ``ar`` archive of a version, a control and a data archive, with gzipped files in the last."""
    gzipped = {f"{name}.gz": gzip.compress(body) for name, body in files.items()}
    members = {
        "debian-binary": b"2.0",  # of odd length: what follows starts at an even place
        "control.tar.gz": as_tar({"control": b"Package: tiny"}),
        "data.tar.gz": as_tar(gzipped),
    }
    archive = b"!<arch>\n"
    for name, body in members.items():
        archive += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(body):<10}`\n".encode()
        archive += body + b"\n" * (len(body) % 2)
    return archive


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HYPERADAM_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Tiny:
    """The dataset ``tiny``: its parts, and ways to publish it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts = random_parts((1, 4, 4))
        self.content = content(self.parts)
        self._monkeypatch = monkeypatch
        self.publish()

    def publish(self, *where: sources.Source) -> Spec:
        spec = Spec(
            name="tiny",
            title="a dozen squares",
            image=(1, 4, 4),
            train=10,
            test=2,
            sha256=hashlib.sha256(self.content).hexdigest(),
            formats=(IDX, CSV),
            sources=where,
        )
        self._monkeypatch.setitem(catalog.SPECS, "tiny", spec)
        return spec


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Tiny:
    return Tiny(monkeypatch)


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Make ``script`` the only ``npm`` on the path; it finds its folder of files in ``$FILES``. Returns that folder."""
    files = tmp_path / "npm-files"
    files.mkdir()
    monkeypatch.setenv("FILES", str(files))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    (tmp_path / "bin").mkdir()

    def install(script: str) -> Path:
        path = tmp_path / "bin" / "npm"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return files

    return install


def npm_package(archive: bytes) -> sources.Package:
    return sources.Package(
        "npm",
        "tiny@1.0",
        "tiny-1.0.tgz",
        f"sha256:{hashlib.sha256(archive).hexdigest()}",
        len(archive),
    )
