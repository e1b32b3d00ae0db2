"""Files that know when they are damaged: 32 bytes of SHA-256, then the content."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import IO, Any, cast

from hyperadam.files.atomic import Content, open_atomically

#: Bytes of a SHA-256.
DIGEST = 32


class Damaged(ValueError):
    """A file is not what was written; the message names it."""


def write_checked(path: str | Path, content: Content, previous: Path | None = None) -> None:
    """Write ``content`` behind its checksum, whole or not at all.

    A function gets a file that can be written to and nothing else. What was there before becomes
    ``previous``, if that is given.
    """
    with open_atomically(Path(path), previous) as file:
        file.write(bytes(DIGEST))
        hashing = _Hashing(file)
        if callable(content):
            content(cast(IO[bytes], hashing))
        else:
            hashing.write(content.encode() if isinstance(content, str) else content)
        file.seek(0)
        file.write(hashing.sha256.digest())


def read_checked(path: str | Path, largest: int | None = None) -> bytes:
    """The content of a file that :func:`write_checked` wrote.

    Raises :class:`Damaged` if it is another, or has more than ``largest`` bytes: it is then not
    even read. An ``OSError`` says that there is none, or that it may not be read.
    """
    path = Path(path)
    size = path.stat().st_size - DIGEST
    if size < 0:
        raise Damaged(f"{path} is damaged: it is cut short")
    if largest is not None and size > largest:
        raise Damaged(f"{path} has {size:,} bytes of content, expected at most {largest:,}")
    with path.open("rb") as file:
        digest, content = file.read(DIGEST), file.read()
    if hashlib.sha256(content).digest() != digest:
        raise Damaged(f"{path} is damaged: its checksum is not that of its content")
    return content


class _Hashing(io.RawIOBase):
    """The writing half of a file, which hashes what passes."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.sha256 = file, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        return self.file.write(data)
