"""Reports: tables, figures and pages, made from results alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hyperadam.files import write_atomically
from hyperadam.report.figures import draw_curves
from hyperadam.report.render import embedded, fill
from hyperadam.report.statistics import contrast, summarize
from hyperadam.report.tables import Table, as_csv, as_markdown, as_records, as_text, tabulate
from hyperadam.results import Result

__all__ = [
    "Report",
    "Table",
    "as_csv",
    "as_markdown",
    "as_records",
    "as_text",
    "contrast",
    "draw_curves",
    "summarize",
    "tabulate",
    "write_report",
]

NOTES = [
    "Final loss: the mean, over the batches that a run was trained on, of the loss at its final "
    "parameters; then mean ± "
    "standard error over runs. The lowest mean of a task is bold. Runs of one seed are compared "
    "with each other, by Student's paired "
    "t-test: p is how likely chance alone makes so large a difference. It is clear at p ≤ .05, if "
    "it is at least 1 % of the loss.",
]


class Report(NamedTuple):
    """The files of a report; there is no figure without matplotlib."""

    table: Table
    page: Path
    figure: Path | None
    data: Path


def write_report(
    results: Sequence[Result], folder: Path, title: str, reference: str = "adam", command: str = ""
) -> Report:
    """Write ``table.md``, ``table.csv``, ``summary.json``, ``curves.svg``, ``curves.png`` and
    ``index.html``.

    ``reference`` is the optimizer that the others are compared with; ``command`` is what re-makes
    the report.
    """
    table = tabulate(results, reference)
    try:
        figure = draw_curves(results, folder / "curves")[0]
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        figure = None
    write_atomically(folder / "table.md", as_markdown(table))
    write_atomically(folder / "table.csv", as_csv(table))
    summary = {
        "title": title,
        "command": command,
        "reference": table.reference,
        "rows": as_records(table),
    }
    write_atomically(folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    runs = " or ".join(f"{n:,}" for n in sorted({result.runs for result in results}))
    steps = " or ".join(f"{n:,}" for n in sorted({result.steps for result in results}))
    again = [f"Made by: {command}"] if command else []
    page = fill(
        "comparison.html",
        title=title,
        summary=f"{runs} runs of {steps} steps each.",
        table=table,
        figure=embedded(figure) if figure else "",
        tasks=", ".join(dict.fromkeys(row.result.task for row in table.rows)),
        notes=[*NOTES, *again],
    )
    write_atomically(folder / "index.html", page)
    return Report(table, folder / "index.html", figure, folder / "summary.json")
