"""Checkpoints that survive a crash: written whole or not at all, checked when read, the previous one kept."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch


def save(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` (tensors and plain types) with its checksum; what was there becomes ``path.previous``."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("wb") as file:
        file.write(hashlib.sha256(payload).digest() + payload)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        os.replace(path, previous(path))
    os.replace(temporary, path)


def load(path: Path) -> list[dict[str, Any]]:
    """The intact checkpoints at ``path``, newest first; none if there never was one. Raises if all are damaged."""
    candidates = [file for file in (path, previous(path)) if file.exists()]
    intact = []
    for file in candidates:
        data = file.read_bytes()
        digest, payload = data[:32], data[32:]
        if hashlib.sha256(payload).digest() == digest:
            intact.append(torch.load(io.BytesIO(payload), weights_only=True))
    if candidates and not intact:
        raise OSError(f"{' and '.join(map(str, candidates))}: damaged; remove them to start anew")
    return intact


def previous(path: Path) -> Path:
    return path.with_name(path.name + ".previous")
