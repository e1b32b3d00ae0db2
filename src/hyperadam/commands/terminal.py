"""What commands show: progress that is redrawn on a terminal and told now and then elsewhere, and
tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

#: How often a line on a terminal is drawn anew, in seconds.
REDRAW = 0.1
#: How often a line is written where there is no terminal, in seconds.
NOW_AND_THEN = 30.0
#: Wide enough for any table: what does not fit on a screen is wrapped by it, not cut by us.
WIDE = 10_000


class ProgressLine:
    """What is being done, how much of all is done, and how long the rest will take.

    On a terminal it is one line that is redrawn. Elsewhere there is a line for each thing that
    begins, unless they are not to be announced, and one every half minute."""

    def __init__(self, announce: bool = True) -> None:
        self._announce = announce
        self._start, self._first, self._share = 0.0, 0.0, 2.0
        self._drawn_at, self._label = -1e9, ""
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None

    @property
    def live(self) -> bool:
        """Whether there is a terminal to redraw the line on."""
        return self._console.is_terminal

    def __call__(self, label: str, share: float, detail: str = "") -> None:
        """``label`` is what is being done, ``detail`` how it goes, ``share`` the part of all
        work that is done."""
        now = time.monotonic()
        if share < self._share:  # the first time, or something new begins
            self._start, self._first = now, share
        self._share = share
        done = share - self._first
        left = f"{clock((now - self._start) * (1 - share) / done)} left" if done > 0.01 else ""
        if self.live:
            if now - self._drawn_at >= REDRAW:
                self._draw(label + detail, share, left)
                self._drawn_at = now
        elif label != self._label and self._announce:
            self.say(label)
        elif now - self._drawn_at >= NOW_AND_THEN and self._drawn_at > 0:
            self.say(f"{label}{detail}  {share:4.0%}  {left}".rstrip())
        elif self._drawn_at < 0:
            self._drawn_at = now
        self._label = label

    def say(self, text: str) -> None:
        """A line of its own, which stays."""
        self.close()
        print(text, file=sys.stderr, flush=True)
        self._drawn_at = time.monotonic()

    def close(self) -> None:
        """Clear the line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            self._drawn_at = -1e9

    def _draw(self, label: str, share: float, left: str) -> None:
        if self._bar is None:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(24),
                TextColumn("{task.percentage:3.0f}%"),
                TextColumn("{task.fields[left]}"),
            )
            # drawn when we say so: no thread that draws while others compute
            self._bar = Progress(
                *columns, console=self._console, transient=True, auto_refresh=False
            )
            self._bar.add_task(label, total=1.0, left=left)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=label, completed=share, left=left)
        self._bar.refresh()


def clock(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def show_table(
    rows: Sequence[Sequence[str]], header: Sequence[str] = (), right: Sequence[int] = ()
) -> None:
    """Print rows in columns, of which some are aligned to the ``right``."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=bool(header))
    for column in range(max(map(len, [*rows, header]), default=0)):
        title = Text(header[column] if header else "")
        table.add_column(title, no_wrap=True, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(width=WIDE, highlight=False)
    with console.capture() as drawn:
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()), flush=True)
