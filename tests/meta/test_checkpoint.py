"""Checkpoints: the newest that is intact and that all ranks have, and a line for what is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from hyperadam.files import Damaged, write_checked
from hyperadam.meta.checkpoint import Checkpoints, read
from tests.files.faults import no_room


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "c.pt")


def content(update: int) -> dict:
    return {"update": update, "x": torch.full((3,), float(update))}


def updates(kept: Checkpoints) -> list[int]:
    return [found["update"] for found in Checkpoints(kept.path).load()[0]]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def test_the_last_two_are_kept(kept: Checkpoints) -> None:
    assert kept.load() == ([], [])
    for update in (2, 4, 6):
        kept.save(content(update))
    assert updates(kept) == [6, 4]
    assert kept.load()[0][1]["x"].tolist() == [4, 4, 4]


def test_the_same_update_is_not_kept_twice(kept: Checkpoints) -> None:
    for update in (2, 4, 4):
        kept.save(content(update))
    assert updates(kept) == [4, 2]


@pytest.mark.parametrize("fault", ["left behind", "damaged", "missing"])
def test_what_training_went_on_from_outlives_the_next_save(kept: Checkpoints, fault: str) -> None:
    """However often a rank saves 6 before another comes to it, 4 stays."""
    kept.save(content(4))
    kept.save(content(6))
    if fault == "damaged":
        flip(kept.path)
    if fault == "missing":
        kept.path.unlink()
    for _ in range(3):
        kept = Checkpoints(kept.path)
        kept.load()
        kept.go_on_from(4)
        kept.save(content(6))
        assert updates(kept) == [6, 4]
    kept.save(content(8))
    assert updates(kept) == [8, 6]


def test_a_damaged_one_is_named_and_the_other_is_there(kept: Checkpoints) -> None:
    kept.save(content(1))
    kept.save(content(2))
    flip(kept.path)
    (found,), faults = kept.load()
    assert found["update"] == 1
    assert faults == [f"{kept.path} is damaged: its checksum is not that of its content"]


@pytest.mark.parametrize(
    "wrong", [{}, {"update": "6"}, {"update": True}, [3], torch.ones(3)], ids=repr
)
def test_what_says_no_update_is_damaged(kept: Checkpoints, wrong: object) -> None:
    write_checked(kept.path, lambda file: torch.save(wrong, file))
    with pytest.raises(Damaged, match="does not say of which update"):
        read(kept.path)


def test_a_whole_file_that_torch_cannot_read_is_damaged(kept: Checkpoints) -> None:
    for payload in (b"", b"PK\x03\x04", b"\x80\x02K\x01.", bytes(1000)):
        write_checked(kept.path, payload)
        with pytest.raises(Damaged, match=f"{kept.path} is damaged: "):
            read(kept.path)


def test_no_pickled_code_is_run(kept: Checkpoints, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> object:
            return os.mkdir, (str(tmp_path / "evil"),)

    write_checked(kept.path, lambda file: torch.save({"update": 1, "x": Evil()}, file))
    with pytest.raises(Damaged, match="is damaged"):
        read(kept.path)
    assert not (tmp_path / "evil").exists()


def test_where_there_is_no_room_both_stay(kept: Checkpoints) -> None:
    kept.save(content(2))
    kept.save(content(4))
    with no_room(500), pytest.raises(OSError, match="File too large") as caught:
        kept.save(content(6))
    assert caught.value.filename == str(kept.path)
    assert updates(kept) == [4, 2]
