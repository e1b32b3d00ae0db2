"""The text that comes with Python: all of it printable but a little, and the same whoever reads it."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

import pytest
import torch

from hyperadam.data import DataError, text


def test_numbers() -> None:
    assert text._numbers(b" ~\n\t\x00\xff").tolist() == [0, 94, 95, 96, 97, 97]


def test_library_text() -> None:
    numbers, sha256 = text.library_text()
    assert numbers.dtype == torch.int64
    assert int(numbers.min()) >= 0
    assert int(numbers.max()) < text.KINDS
    assert len(numbers) > 250_000
    assert (numbers == text.KINDS - 1).float().mean() < 0.001
    assert (numbers == 95).float().mean() > 0.02  # lines
    folder = Path(sysconfig.get_paths()["stdlib"])
    content = b"".join((folder / name).read_bytes() for name in text.FILES)
    assert hashlib.sha256(content).hexdigest() == sha256
    start = "".join(chr(32 + n) if n < 95 else "\n" for n in numbers[:30].tolist())
    assert content.decode().startswith(start)


def test_a_python_without_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    text.library_text.cache_clear()
    with pytest.raises(DataError, match="this Python has no sources of its library"):
        text.library_text()
