"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias

#: What a file is to hold: bytes, text (UTF-8), or a function that writes to a binary file.
Content: TypeAlias = bytes | bytearray | str | Callable[[IO[bytes]], Any]

#: How the names of unfinished files end. No two are ever the same.
PARTIAL = ".partial"


def write_atomically(path: str | Path, content: Content) -> None:
    """Write ``path``, and the folders it needs, whole or not at all.

    If that fails, on a full disk for example, what was there before is still there, and the
    ``OSError`` names ``path``, whatever a function in between made of it.
    """
    with open_atomically(Path(path)) as file:
        if callable(content):
            content(file)
        else:
            file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def open_atomically(path: Path, previous: Path | None = None) -> Iterator[IO[bytes]]:
    """A binary file that becomes ``path`` at the end of the block, and nothing if it fails.

    What was there before becomes ``previous``, if that is given.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    if target.exists() and not target.is_file():  # a device must not be replaced by a file
        raise OSError(errno.EINVAL, "exists, and is not a regular file", str(path))
    # in the same folder, hence on the same disk: only there is a move one step
    partial = target.with_name(f".{target.name[:40]}-{secrets.token_hex(8)}{PARTIAL}")
    raw: _Remembering | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        raw = _Remembering(partial, "xb")
        with io.BufferedWriter(raw) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and target.exists():
            os.replace(target, previous)
        os.replace(partial, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        failure = raw.failure if raw and raw.failure else error
        if isinstance(failure, OSError) and failure.filename in (None, str(partial)):
            raise OSError(failure.errno, failure.strerror, str(path)) from error
        raise failure from (None if failure is error else error)
    _sync_folder(target.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left unfinished. For who holds the folder's lock: nobody else
    is writing there."""
    for left in folder.glob(f".*{PARTIAL}"):
        with contextlib.suppress(OSError):
            left.unlink()


class _Remembering(io.FileIO):
    """A file that remembers why it could not be written: libraries that are handed a file may
    raise something else instead."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = self.failure or error
            raise


def _sync_folder(folder: Path) -> None:
    """Make a new name survive a power failure, where the system can do that."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
