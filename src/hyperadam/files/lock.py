"""One process at work in a folder; a second one is told who is there."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from hyperadam.files.atomic import remove_leftovers, write_atomically

#: Tells this process from all others, also from one with its number in another container.
_MARK = secrets.token_hex(8)


class InUse(OSError):
    """Another process is at work in the folder; the message names it."""


class Lock:
    """Hold a folder for as long as a ``with`` block lasts.

    The system lets go of the lock when its process dies, however it dies: there is nothing to clean
    up, and what it left unfinished is removed. Within one process locks may be nested. In the
    folder lie ``.lock``, which stays, and ``.lock.owner``, which says who is there.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._owner = self.folder / ".lock.owner"
        self._lock = FileLock(self.folder / ".lock", timeout=0)

    def __enter__(self) -> Lock:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout:
            if self._read().get("mark") == _mark():
                return self
            raise InUse(errno.EBUSY, self._refusal(), str(self.folder)) from None
        try:
            remove_leftovers(self.folder)
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "mark": _mark()}
            since = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
            write_atomically(self._owner, json.dumps(owner | {"since": since}))
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                self._owner.unlink()
            self._lock.release()

    def _read(self) -> dict[str, object]:
        """What the owner says of itself; nothing if it has not come to that yet."""
        try:
            owner = json.loads(self._owner.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return owner if isinstance(owner, dict) else {}

    def _refusal(self) -> str:
        owner = self._read()
        who = "another process"
        if owner:
            who = "process {pid} on {host}, since {since},".format_map(
                {key: owner.get(key, "unknown") for key in ("pid", "host", "since")}
            )
        return f"{who} is at work here: wait until it ends, or choose another folder"


def _mark() -> str:
    """Of this process: one that was forked off it is another."""
    return f"{_MARK}-{os.getpid()}"
