"""File names made of anything, and the writer of :mod:`hyperadam.files` by its older names."""

from __future__ import annotations

import re
from pathlib import Path

from hyperadam.files import write_atomically
from hyperadam.files.atomic import open_atomically as atomic_write

__all__ = ["atomic_write", "safe_name", "write_text"]


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_atomically(path, text)


def safe_name(text: str) -> str:
    """``text`` as a part of a file name on any system."""
    return re.sub(r"[^\w@+-]|^-", "_", text)
