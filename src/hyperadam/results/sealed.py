"""Small records as JSON that a reader can open, with a checksum among the entries."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hyperadam.files import Damaged, write_atomically

#: The entry with the checksum, and the most bytes that a file may have.
SEAL, LARGEST = "sha256", 16 * 2**20


def write_sealed(path: Path, record: dict[str, Any]) -> None:
    """Write a record, whole or not at all."""
    text = json.dumps(record | {SEAL: _digest(record)}, indent=1, allow_nan=False)
    write_atomically(path, text + "\n")


def read_sealed(path: Path, expected: str) -> dict[str, Any]:
    """A record whose entry ``format`` is ``expected``, without the checksum.

    Raises :class:`~hyperadam.files.Damaged`, which names the file, if it is not what was written.
    """
    if (size := path.stat().st_size) > LARGEST:
        raise Damaged(f"{path} is damaged: it has {size:,} bytes, expected at most {LARGEST:,}")
    try:
        record = json.loads(path.read_bytes())
        if record["format"] != expected:
            raise ValueError(f"its format is {record['format']!r}, expected {expected!r}")
        seal = record.pop(SEAL)
        if seal != _digest(record):
            raise ValueError("its checksum is not that of its content")
    except Exception as error:  # a hostile file fails in the reader of JSON in many ways
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise Damaged(f"{path} is damaged ({reason})") from error
    return dict(record)


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
