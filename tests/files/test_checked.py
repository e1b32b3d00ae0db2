"""Checked files: every damage is found, and the file named."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperadam.files import Damaged, read_checked, write_checked
from tests.files.faults import no_room


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@given(content=st.binary(max_size=200))
def test_round_trip(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("checked") / "file"
    write_checked(path, content)
    assert read_checked(path) == content


def test_libraries_write_to_it(path: Path) -> None:
    x = torch.rand(1000)
    write_checked(path, lambda file: torch.save(x, file))
    assert torch.equal(torch.load(io.BytesIO(read_checked(path)), weights_only=True), x)
    write_checked(path, lambda file: np.savez_compressed(file, x=x.numpy()))
    with np.load(io.BytesIO(read_checked(path))) as arrays:
        assert (arrays["x"] == x.numpy()).all()


def test_every_flipped_bit_and_every_cut_is_found(path: Path) -> None:
    write_checked(path, b"twelve bytes")
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(Damaged, match=f"{path} is damaged"):
            read_checked(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(Damaged, match=f"{path} is damaged"):
            read_checked(path)


def test_what_is_too_large_is_not_read(path: Path) -> None:
    write_checked(path, b"123")
    assert read_checked(path, largest=3) == b"123"
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a hole: it could not be read into memory
    with pytest.raises(Damaged, match=r"file has 1,099,511,627,744 bytes of content, expected"):
        read_checked(path, largest=3)


def test_where_there_is_no_room_the_old_content_stays(path: Path) -> None:
    write_checked(path, b"old")
    with no_room(10_000), pytest.raises(OSError, match="File too large") as caught:
        write_checked(path, lambda file: torch.save(torch.rand(50_000), file))
    assert caught.value.filename == str(path)
    assert read_checked(path) == b"old"
