"""The writers of :mod:`hyperadam.files` by their older names."""

from __future__ import annotations

from pathlib import Path

from hyperadam.files import write_atomically
from hyperadam.files.atomic import open_atomically as atomic_write
from hyperadam.files.names import safe_name

__all__ = ["atomic_write", "safe_name", "write_text"]


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_atomically(path, text)
