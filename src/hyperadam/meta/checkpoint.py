"""Checkpoints that survive a crash: whole or not there, checked when read,
the previous one kept."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from hyperadam.files import Damaged, read_checked, write_checked

#: What a checkpoint holds, tensors and plain types; ``"update"`` says after how many it was made.
Content = dict[str, Any]


class Checkpoints:
    """The two last checkpoints of one rank: ``path``, and ``path.previous``.

    Ranks save at the same updates, and none begins the next update before all have saved. So one of
    a rank's last two is always a checkpoint that all ranks have, if those it did not go on from are
    the first to be overwritten.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.previous = path, path.with_name(path.name + ".previous")
        #: The update in ``path``, if training went on from there or came there; it is kept then.
        self.update: int | None = None

    def save(self, content: Content) -> None:
        """Write ``content``; what is in ``path`` is kept as the previous one if it is earlier."""
        keep = self.update is not None and self.update < content["update"]
        write_checked(
            self.path,
            lambda file: torch.save(content, file),
            previous=self.previous if keep else None,
        )
        self.update = content["update"]

    def load(self) -> tuple[list[Content], list[str]]:
        """The intact checkpoints, newest first, and for each of the others what is
        wrong with it."""
        intact, faults = {}, []
        for file in self.files():
            try:
                intact[file] = read(file)
            except Damaged as error:
                faults.append(str(error))
        self.update = intact[self.path]["update"] if self.path in intact else None
        return sorted(intact.values(), key=lambda content: -content["update"]), faults

    def go_on_from(self, update: int) -> None:
        """Training goes on from that update: if ``path`` is of another, it need not be kept."""
        if self.update != update:
            self.update = None

    def files(self) -> list[Path]:
        """The files that are there."""
        return [file for file in (self.path, self.previous) if file.exists()]


def read(path: Path) -> Content:
    """A checkpoint's content; raises :class:`Damaged` if the file is none."""
    payload = read_checked(path)
    try:
        content = torch.load(io.BytesIO(payload), weights_only=True)
    except Exception as error:  # torch's reader fails in many ways
        raise Damaged(f"{path} is damaged: {_first_line(error)}") from error
    if not isinstance(content, dict) or type(content.get("update")) is not int:
        raise Damaged(f"{path} is damaged: it does not say of which update it is")
    return content


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
