"""Progress on a terminal and elsewhere, and tables."""

from __future__ import annotations

import sys

import pytest

from hyperadam.commands import terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test sets."""
    now = [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def test_progress_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    line = terminal.ProgressLine()
    assert line.live
    steps = (("a", 0.5, 0), ("a", 0.6, 10), ("b", 0.75, 20), ("c", 0.0, 200), ("c", 0.1211, 210))
    seen = []
    for label, share, at in steps:
        clock[0] = 100.0 + at
        line(label, share, ", well")
        seen.append(capsys.readouterr().err)
    for text, words in zip(
        seen,
        (
            ["a, well", "50%"],
            ["60%", "0:40 left"],
            ["b, well", "75%", "0:20 left"],
            ["c, well", "0%"],
            ["12%", "1:13 left"],
        ),
        strict=True,
    ):
        assert all(word in text for word in words), text
        assert "\n" not in text.strip("\n")
    assert "left" not in seen[0] + seen[3], "nothing is known yet"
    line.close()
    assert "\x1b[2K" in capsys.readouterr().err, "the line is cleared"


def test_progress_elsewhere_is_told_now_and_then(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    line = terminal.ProgressLine()
    assert not line.live
    for second in range(100):
        clock[0] = 100.0 + second
        line("first" if second < 50 else "second", second / 100, f", step {second}")
    line.close()
    assert capsys.readouterr().err.splitlines() == [
        "first",
        "first, step 30   30%  1:10 left",
        "second",
        "second, step 80   80%  0:20 left",
    ]


def test_progress_elsewhere_without_announcements(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    """Of many jobs only those that have ended are told, and every half minute how far all are."""
    line = terminal.ProgressLine(announce=False)
    for second in range(70):
        clock[0] = 100.0 + second
        line(f"job {second // 2}", second / 100)
        if second == 40:
            line.say("job 20 has ended")
    assert capsys.readouterr().err.splitlines() == [
        "job 15   30%  1:10 left",
        "job 20 has ended",
    ]


def test_times() -> None:
    assert [terminal.clock(x) for x in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]


def test_tables_are_never_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [["[bold]x", "1"], ["y" * 200, "12,345"]]
    terminal.show_table(rows, ["name", "number"], right=[1])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].split() == ["name", "number"]
    assert lines[2].split() == ["[bold]x", "1"], "brackets are no mark-up"
    assert lines[3].split() == ["y" * 200, "12,345"]
    assert lines[2].endswith("     1"), "numbers stand on the right"
    terminal.show_table(rows)
    assert len(capsys.readouterr().out.splitlines()) == 2, "no header, no line"
