"""Every published format gives the same parts, and a damaged file is refused with a reason."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from hyperadam.data.formats import (
    CSV,
    IDX,
    RECORDS,
    DataError,
    Format,
    read_archive,
    read_folder,
    read_idx,
    read_records,
)

from .conftest import (
    as_deb,
    as_tar,
    as_zip,
    content,
    csv_files,
    idx_files,
    random_parts,
    record_files,
    write,
)

DIGITS = random_parts((1, 4, 4))
PHOTOS = random_parts((3, 32, 32))


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize("below", ["", "tiny", "MNIST/raw"])
@pytest.mark.parametrize(
    ("form", "files", "parts"),
    [
        (IDX, idx_files(DIGITS), DIGITS),
        (CSV, csv_files(DIGITS), DIGITS),
        (CSV, csv_files(DIGITS, header=False), DIGITS),
        (RECORDS, record_files(PHOTOS), PHOTOS),
    ],
    ids=["idx", "csv", "csv without header", "records"],
)
def test_folder(
    tmp_path: Path, form: Format, files: dict[str, bytes], parts, gzipped: bool, below: str
) -> None:
    write(tmp_path / below, files, gzipped)
    found = read_folder(tmp_path, (form,))
    assert found is not None
    assert content(found) == content(parts)


@pytest.mark.parametrize("pack", [as_tar, as_zip, as_deb])
@pytest.mark.parametrize(
    ("form", "files", "parts"),
    [(CSV, csv_files(DIGITS), DIGITS), (RECORDS, record_files(PHOTOS), PHOTOS)],
)
def test_archive(tmp_path: Path, pack, form: Format, files: dict[str, bytes], parts) -> None:
    (tmp_path / "all.bin").write_bytes(pack(files))
    found = read_folder(tmp_path, (form,), ("all.bin",))
    assert found is not None
    assert content(found) == content(parts)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["all.bin"]  # nothing was extracted


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert read_folder(tmp_path, (IDX, CSV), ("all.zip",)) is None


def test_missing_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, idx_files(DIGITS))
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="but not t10k-labels-idx1-ubyte"):
        read_folder(tmp_path, (IDX, CSV))


@pytest.mark.parametrize("pack", [as_tar, as_zip, as_deb])
def test_truncated_archive(tmp_path: Path, pack) -> None:
    data = pack(csv_files(random_parts((1, 28, 28), train=50)))
    (tmp_path / "all.bin").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="truncated or damaged"):
        read_archive(tmp_path / "all.bin", (CSV,))


def test_debian_package_without_data(tmp_path: Path) -> None:
    (tmp_path / "all.bin").write_bytes(as_deb({}).replace(b"data.tar", b"else.tar"))
    with pytest.raises(DataError, match="no data member"):
        read_archive(tmp_path / "all.bin", (CSV,))


def test_archive_without_the_files(tmp_path: Path) -> None:
    (tmp_path / "all.bin").write_bytes(as_zip({"readme": b""}))
    with pytest.raises(DataError, match="does not hold mnist_train"):
        read_archive(tmp_path / "all.bin", (CSV,))


@pytest.mark.parametrize("cut", [2, 6, 15, -1])
def test_truncated_idx(tmp_path: Path, cut: int) -> None:
    files = idx_files(DIGITS)
    files["train-images-idx3-ubyte"] = files["train-images-idx3-ubyte"][:cut]
    write(tmp_path, files)
    with pytest.raises(DataError, match="cannot be read"):
        read_folder(tmp_path, (IDX,))


def test_truncated_gzip(tmp_path: Path) -> None:
    write(tmp_path, idx_files(DIGITS), gzipped=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match="cannot be read"):
        read_folder(tmp_path, (IDX,))


@pytest.mark.parametrize("line", [b"3,1,2\r\n", b"1,2,three\r\n", b"1" + b",256" * 16])
def test_damaged_csv(tmp_path: Path, line: bytes) -> None:
    files = csv_files(DIGITS)
    files["mnist_test.csv"] += line
    write(tmp_path, files)
    with pytest.raises(DataError, match="cannot be read"):
        read_folder(tmp_path, (CSV,))


def test_idx_of_other_type_is_refused() -> None:
    with pytest.raises(ValueError, match="not an idx file of bytes"):
        read_idx(bytes([0, 0, 0x0D, 1, 0, 0, 0, 1, 0, 0, 0, 0]))  # floats
    with pytest.raises(ValueError, match="not an idx file"):
        read_idx(gzip.compress(b""))


def test_records_must_be_whole() -> None:
    with pytest.raises(ValueError, match="whole number of records"):
        read_records(bytes(3072))
    images, labels = read_records(bytes([7]) + bytes(range(256)) * 12)
    assert labels.tolist() == [7]
    assert np.array_equal(images[0, :256], np.arange(256))
