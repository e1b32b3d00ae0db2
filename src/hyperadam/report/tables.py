"""Tables of texts, and how they are written: for terminals, as Markdown, as CSV. HTML is the
templates' business."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hyperadam.report.plain import in_csv, in_markdown


class Cell(NamedTuple):
    """A text in a table.

    Attributes:
        best: whether it is the best of its column or row; ``tied``: it is not clearly behind.
        rest: the same number of those runs that did not diverge.
        paper: the paper's number.
        kind: ``missing`` or ``diverged`` where there is no number.
        why: what is wrong, for those who point at it.
    """

    text: str
    best: bool = False
    tied: bool = False
    rest: str = ""
    paper: str = ""
    kind: str = ""
    why: str = ""


class Grid(NamedTuple):
    """A table: its columns have titles, and each row as many cells."""

    title: str
    header: list[str]
    rows: list[list[Cell]]


def texts(*given: str) -> list[Cell]:
    """Cells of which nothing is marked."""
    return [Cell(text) for text in given]


def as_markdown(grid: Grid) -> str:
    """A Markdown table; the best is bold."""
    lines = [[in_markdown(title) for title in grid.header], ["---"] * len(grid.header)]
    lines += [[_markdown(cell) for cell in row] for row in grid.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _markdown(cell: Cell) -> str:
    text = in_markdown(cell.text)
    text = f"**{text}**" if cell.best else f"{text}{' ≈' if cell.tied else ''}"
    rest = f", else {cell.rest}" if cell.rest else ""
    return f"{text}{rest}{f' ({cell.paper})' if cell.paper else ''}"


def as_lines(grid: Grid) -> list[list[str]]:
    """The rows as a terminal shows them: the best has a star, and what stands in the first column
    is not repeated."""
    lines, above = [], None
    for first, *rest in grid.rows:
        shown = [f"{cell.text}{' *' if cell.best else ''}" for cell in rest]
        lines.append(["" if first.text == above else first.text, *shown])
        above = first.text
    return lines


def as_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Comma-separated values, in which no text is a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (header, *rows):
        writer.writerow([in_csv(cell) if isinstance(cell, str) else cell for cell in row])
    return text.getvalue()
