"""Files that are there whole or not at all, and file names made of anything."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A binary file to write to, which becomes ``path`` at the end of the block, and nothing if the block fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # in the same folder, hence on the same disk: only there is a move one step
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            raise OSError(
                error.errno, error.strerror, str(path)
            ) from error  # say what could not be written
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with atomic_write(path) as file:
        file.write(text.encode())


def safe_name(text: str) -> str:
    """``text`` as a part of a file name on any system."""
    return re.sub(r"[^\w@+-]|^-", "_", text)
