"""The log of updates: each once, and whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hyperadam.meta.log import UpdateLog
from tests.files.faults import no_room


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def lines(*updates: int) -> str:
    return "".join(json.dumps({"update": update}) + "\n" for update in updates)


@pytest.mark.parametrize(
    "before",
    [
        lines(1, 2, 3),
        lines(1, 2, 3, 4, 5),  # two that are computed anew
        lines(1, 2, 3, 4) + '{"upda',  # and a torn one
        lines(1, 2) + '{"up' + lines(2, 3, 4, 3),  # what older versions left
        lines(1, 2, 3) + "[" * 100_000 + "\n" + "[3]\n" + '{"update": "3"}\n\n',
    ],
)
def test_one_line_an_update(path: Path, before: str) -> None:
    path.write_text(before)
    log = UpdateLog(path, update=3)
    log.add({"update": 4})
    log.close()
    assert path.read_text() == lines(1, 2, 3, 4)


def test_a_whole_log_is_not_written_anew(path: Path) -> None:
    path.write_text(lines(1, 2))
    before = path.stat().st_ino
    UpdateLog(path, update=2).close()
    assert path.stat().st_ino == before


def test_where_there_is_no_room_the_log_is_named(path: Path) -> None:
    log = UpdateLog(path, update=0)
    log.add({"update": 1})
    log.add({"update": 2})
    with no_room(40), pytest.raises(OSError, match="File too large") as caught:
        log.add({"update": 3})
    assert caught.value.filename == str(path)
    log.close()
    UpdateLog(path, update=2).close()
    assert path.read_text() == lines(1, 2)
