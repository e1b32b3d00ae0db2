"""Files inside zip, tar and Debian archives from anywhere, read in place with bounded memory.

Nothing is extracted, no link is followed, and no more is unpacked than was asked for.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Protocol

AR = b"!<arch>\n"
GZIP, BZIP2, XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0"
#: A tar archive is made of blocks of so many bytes.
BLOCK = 512
#: Bytes that are skipped at a time.
CHUNK = 1 << 20
#: The largest list of contents of a zip archive, and the longest name in a tar archive, in bytes.
LARGEST_DIRECTORY, LONGEST_NAME = 1 << 22, 1 << 16
#: What an archive may hold besides the files that are asked for, unpacked, in bytes.
BESIDES = 1 << 28


class Readable(Protocol):
    """All that is asked of a file to unpack."""

    def read(self, size: int, /) -> bytes: ...


class ArchiveError(ValueError):
    """An archive that is not taken: the reason."""


def read_members(path: Path, limits: Mapping[str, int], most: int) -> Iterator[tuple[str, bytes]]:
    """The files whose names, without folders and ``.gz``, are in ``limits``, each at most so large,
    and all together at most ``most`` bytes.

    Each name is read once. Raises :class:`ArchiveError`, or whatever damaged files make readers raise.
    """
    everything = most + BESIDES
    if (size := path.stat().st_size) > everything:
        raise ArchiveError(f"it has {size:,} bytes, expected at most {everything:,}")
    with path.open("rb") as file:
        wanted = dict(limits)
        zipped = zipfile.is_zipfile(file)
        for name, data in _zip(file, wanted) if zipped else _tar(file, wanted, everything):
            del wanted[name]  # of a name that is there twice, the first
            if (most := most - len(data)) < 0:
                raise ArchiveError("its files have more bytes than the dataset needs")
            yield name, data


def read_at_most(file: Readable, limit: int, name: str) -> bytes:
    """All of ``file``, refused if that is more than ``limit`` bytes."""
    data = file.read(limit + 1)
    if len(data) > limit:
        raise ArchiveError(f"{name} has more than the {limit:,} bytes that the dataset needs")
    return data


def unzipped(data: bytes, limit: int, name: str) -> bytes:
    """What is in ``data``, which may be gzipped: at most ``limit`` bytes."""
    file = io.BytesIO(data)
    return read_at_most(gzip.GzipFile(fileobj=file) if data.startswith(GZIP) else file, limit, name)


def _bare(member: str) -> str:
    """The file's own name; whether it is gzipped shows in its first bytes."""
    return member.rsplit("/", 1)[-1].removesuffix(".gz")


# Zip ------------------------------------------------------------------------------------------------


def _zip(file: IO[bytes], limits: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    _check_directory(file)
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = _bare(info.filename)
            if name not in limits or info.is_dir():
                continue
            if stat.S_ISLNK(info.external_attr >> 16):
                raise ArchiveError(f"{name} in it is a link, expected a file")
            if info.flag_bits & 1:
                raise ArchiveError(f"{name} in it is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ArchiveError(f"{name} in it has an unknown compression, {info.compress_type}")
            with archive.open(info) as stream:
                yield name, read_at_most(stream, limits[name], name)


def _check_directory(file: IO[bytes]) -> None:
    """Refuse a list of contents that would take much memory: it is read in one piece."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - LONGEST_NAME - 100))
    tail = file.read()
    end = tail.rfind(b"PK\5\6")
    directory = int.from_bytes(tail[end + 12 : end + 16], "little")
    if directory > LARGEST_DIRECTORY or tail[max(0, end - 20) : end].startswith(b"PK\6\7"):
        raise ArchiveError("its list of contents is too long")


# Tar ------------------------------------------------------------------------------------------------


def _tar(file: IO[bytes], limits: Mapping[str, int], most: int) -> Iterator[tuple[str, bytes]]:
    stream = _Bounded(_uncompressed(_tar_inside(file)), most)
    long_name = None
    while (header := stream.read(BLOCK)).strip(b"\0"):
        size, kind = _check_header(header)
        name = _bare(long_name or _text(header[:100]))
        if kind in b"Lx":  # the next one's name, if it is long
            body = stream.exactly(size if size <= LONGEST_NAME else 0)
            long_name = _long_name(kind, body) or long_name
            stream.skip(size - len(body) + -size % BLOCK)
            continue
        long_name = None
        if name in limits and kind in b"12":
            raise ArchiveError(f"{name} in it is a link, expected a file")
        if name in limits and kind in b"0\0" and size > 0:
            if size > limits[name]:
                raise ArchiveError(
                    f"{name} has {size:,} bytes, and the dataset needs {limits[name]:,} at most"
                )
            yield name, stream.exactly(size)
            stream.skip(-size % BLOCK)
        else:
            stream.skip(size + -size % BLOCK)


def _check_header(header: bytes) -> tuple[int, bytes]:
    """The size of a member in bytes, and its kind: a file ``0``, a link ``1`` or ``2``, and so on."""
    if len(header) < BLOCK:
        raise EOFError("it ends within a header")
    try:
        total = int(header[148:156].strip(b" \0"), 8)
        size = int(header[124:136].strip(b" \0") or b"0", 8)
    except ValueError:
        total = size = -1
    if total != sum(header[:148]) + sum(header[156:]) + 8 * ord(" ") or size < 0:
        raise ArchiveError(
            "it is truncated or damaged, or no zip or tar archive, or of unknown compression"
        )
    return size, header[156:157]


def _long_name(kind: bytes, body: bytes) -> str | None:
    """The name in GNU's way, ``L``, or that of POSIX, ``x``: lines of a length, a key and a value."""
    if kind == b"L":
        return _text(body)
    lines = (line.partition(b" ")[2].partition(b"=") for line in body.split(b"\n"))
    return next((_text(value) for key, _, value in lines if key == b"path"), None)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")


def _uncompressed(file: IO[bytes]) -> Readable:
    start = file.read(len(XZ))
    file.seek(-len(start), io.SEEK_CUR)
    if start.startswith(GZIP):
        return gzip.GzipFile(fileobj=file)
    if start.startswith(BZIP2):
        return bz2.BZ2File(file)
    return lzma.LZMAFile(file) if start.startswith(XZ) else file


def _tar_inside(file: IO[bytes]) -> IO[bytes]:
    """The tar archive in a file: the file itself, or of a Debian package, which is an ``ar``
    archive, its ``data`` member."""
    file.seek(0)
    if file.read(len(AR)) != AR:
        file.seek(0)
        return file
    while len(header := file.read(60)) == 60:  # name (16), times and rights, size (10 from 48)
        if not (digits := header[48:58].strip()).isdigit():
            raise ArchiveError("it is damaged: a member of it has no size")
        size = int(digits)
        if header.startswith(b"data.tar"):
            return io.BytesIO(file.read(size))
        file.seek(size + size % 2, io.SEEK_CUR)  # members start at even places
    raise ArchiveError("it is a Debian package with no data member")


class _Bounded:
    """A stream that may be read to the end, but not further than ``most`` bytes."""

    def __init__(self, file: Readable, most: int) -> None:
        self.file, self.left = file, most

    def read(self, size: int) -> bytes:
        self.left -= size
        if self.left < 0:
            raise ArchiveError("it unpacks to far more than the dataset needs")
        return self.file.read(size)

    def exactly(self, size: int) -> bytes:
        data = self.read(size)
        if len(data) < size:
            raise EOFError("it ends within a file")
        return data

    def skip(self, size: int) -> None:
        while size > 0:
            size -= len(self.exactly(min(size, CHUNK)))
