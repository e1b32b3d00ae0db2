"""Reports: tables, figures and pages, made from results alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hyperadam.files import write_atomically
from hyperadam.report.comparison import Comparison, compare, records
from hyperadam.report.curves import panel
from hyperadam.report.figures import choose_looks, draw_curves
from hyperadam.report.names import called
from hyperadam.report.render import fill
from hyperadam.report.statistics import contrast, summarize
from hyperadam.report.tables import as_csv, as_markdown
from hyperadam.results import Result

__all__ = [
    "Comparison",
    "Report",
    "compare",
    "contrast",
    "draw_curves",
    "summarize",
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

    table: Comparison
    page: Path
    figure: Path | None
    data: Path


def write_report(
    results: Sequence[Result],
    folder: Path,
    title: str,
    reference: str = "adam",
    command: str = "",
    words: Sequence[str] = (),
    links: Mapping[str, str] | None = None,
) -> Report:
    """Write ``table.md``, ``table.csv``, ``summary.json``, ``curves.svg``, ``curves.png`` and
    ``index.html``.

    ``reference`` is the optimizer that the others are compared with; ``command`` is what re-makes
    the report; ``words`` open the page, and ``links`` lead from it to other pages.
    """
    table = compare(results, reference)
    grid, rows = table.grid(), records(table)
    try:
        figure = draw_curves(results, folder / "curves")[0]
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        figure = None
    write_atomically(folder / "table.md", as_markdown(grid))
    write_atomically(folder / "table.csv", as_csv(list(rows[0]), [list(r.values()) for r in rows]))
    summary = {"title": title, "command": command, "reference": table.reference, "rows": rows}
    write_atomically(folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    runs = " or ".join(f"{n:,}" for n in sorted({result.runs for result in results}))
    steps = " or ".join(f"{n:,}" for n in sorted({result.steps for result in results}))
    tasks = list(dict.fromkeys(result.task for result in results))
    page = fill(
        "comparison.html",
        choose_looks(results),
        [panel(f"task-{n}", t, [r for r in results if r.task == t]) for n, t in enumerate(tasks)],
        title=title,
        summary=f"{runs} runs of {steps} steps each.",
        grid=table.grid(called),
        words=words,
        links=links or {},
        notes=[*NOTES, *([f"Made by: {command}"] if command else [])],
    )
    write_atomically(folder / "index.html", page)
    return Report(table, folder / "index.html", figure, folder / "summary.json")
