"""``log.jsonl``: a line of JSON for each meta-update, and none twice, whatever was killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hyperadam.files import write_atomically


class UpdateLog:
    """Lines of the updates from 1 to ``update``, where training goes on, and then of
    those that come.

    What an earlier process wrote of later updates, which are computed anew, is taken away; so is a
    line that it did not finish.
    """

    def __init__(self, path: Path, update: int) -> None:
        self.path = path
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            kept = {number: line for line in lines if 0 < (number := _update(line)) <= update}
            if list(kept.values()) != lines:
                write_atomically(path, b"".join(kept[number] for number in sorted(kept)))
        self.file = path.open("ab", buffering=0)

    def add(self, entry: dict[str, Any]) -> None:
        """Write a line, in one call of the system: a kill does not cut it in two."""
        line = (json.dumps(entry) + "\n").encode()
        try:
            while line:  # a disk that is almost full takes a part, and then says so
                line = line[self.file.write(line) :]
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), str(self.path)) from error

    def close(self) -> None:
        self.file.close()


def _update(line: bytes) -> int:
    """Of which update a line is; 0 if it is none of ours."""
    try:
        entry = json.loads(line) if line.endswith(b"\n") else {}
    except (ValueError, RecursionError):
        return 0
    number = entry.get("update") if isinstance(entry, dict) else None
    return number if type(number) is int else 0
