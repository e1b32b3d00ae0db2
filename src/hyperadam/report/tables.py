"""Tables of results: plain text for terminals, Markdown, CSV, and the same as data for JSON and
HTML."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from hyperadam.report.plain import in_csv, in_markdown
from hyperadam.report.statistics import Contrast, Summary, contrast, in_words, summarize, written
from hyperadam.results import Result


class Row(NamedTuple):
    """A task and an optimizer. ``against`` compares it with the reference, which itself has none;
    ``best`` marks the lowest mean of the task; ``test`` are means over runs on the test set."""

    result: Result
    summary: Summary
    against: Contrast | None
    best: bool
    test: dict[str, float]


class Table(NamedTuple):
    """Rows, and the label of the optimizer that the others are compared with, if there are
    others."""

    rows: list[Row]
    reference: str | None

    @property
    def header(self) -> list[str]:
        """Column titles of :meth:`cells`."""
        test = [f"test {name}" for name in self.rows[0].test] if self.rows else []
        return [
            "task",
            "optimizer",
            "lr",
            "final loss",
            *test,
            *([f"against {self.reference}"] if self.reference else []),
        ]

    def cells(self, row: Row) -> list[str]:
        """A row as people read it."""
        result = row.result
        test = [f"{value:.4f}" for value in row.test.values()]
        rate = f"{result.lr:.4g} ({result.lr_source})"
        return [
            result.task,
            result.label,
            rate,
            loss(row.summary),
            *test,
            *([verdict(row.against)] if self.reference else []),
        ]


def tabulate(results: Sequence[Result], reference: str = "adam") -> Table:
    """Results grouped by task, each compared with the optimizer called ``reference``, if it is
    among those of its task."""
    labels = {result.label for result in results}
    chosen = reference if reference in labels and len(labels) > 1 else None
    rows = []
    for task in dict.fromkeys(result.task for result in results):
        group = [result for result in results if result.task == task]
        lowest = min(summarize(result).mean for result in group)
        other = next((result for result in group if result.label == chosen), None)
        for result in group:
            summary = summarize(result)
            against = contrast(result, other) if other is not None and other is not result else None
            best = len(group) > 1 and summary.mean == lowest < math.inf
            test = (
                {name: float(x.double().mean()) for name, x in result.test.items()}
                if result.test
                else {}
            )
            rows.append(Row(result, summary, against, best, test))
    return Table(rows, chosen)


def loss(summary: Summary) -> str:
    """``0.2490 ± 0.0021``: as many digits as the standard error bears, and how many runs
    diverged."""
    if summary.diverged:
        return f"diverged in {summary.diverged} of {summary.runs}"
    return written(summary.mean, summary.standard_error)


def verdict(against: Contrast | None) -> str:
    """How a row differs from the reference; nothing where there is nothing to compare."""
    return in_words(against) if against else ""


def as_text(table: Table) -> str:
    """Aligned columns; the best of a task has a star, and a task is named once."""
    lines = [table.header]
    for row in table.rows:
        cells = table.cells(row)
        cells[3] += " *" if row.best else ""
        repeated = len(lines) > 1 and row.result.task == table.rows[len(lines) - 2].result.task
        lines.append(["" if repeated else cells[0], *cells[1:]])
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.header))]
    drawn = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([drawn[0], "─" * max(map(len, drawn)), *drawn[1:]])


def as_markdown(table: Table) -> str:
    """A Markdown table; the best of a task is bold."""
    lines = [[in_markdown(title) for title in table.header], ["---"] * len(table.header)]
    for row in table.rows:
        cells = table.cells(row)
        cells = [in_markdown(cell) for cell in cells]
        cells[3] = f"**{cells[3]}**" if row.best else cells[3]
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def as_records(table: Table) -> list[dict[str, Any]]:
    """Rows as plain numbers for JSON; what is not finite is ``None``."""
    records = []
    for row in table.rows:
        result, summary, against = row.result, row.summary, row.against
        record: dict[str, Any] = {
            "task": result.task,
            "optimizer": result.label,
            "lr": result.lr,
            "lr_source": result.lr_source,
            "steps": result.steps,
            "runs": summary.runs,
            "diverged": summary.diverged,
            "final_loss": _finite(summary.mean),
            "standard_error": _finite(summary.standard_error),
            "best": row.best,
            **{f"test_{name}": _finite(value) for name, value in row.test.items()},
        }
        if table.reference:
            record["difference"] = _finite(against.difference) if against else None
            record["p"] = _finite(against.p) if against else None
            record["pairs"] = against.pairs if against else None
        records.append(record)
    return records


def as_csv(table: Table) -> str:
    """Comma-separated values of :func:`as_records`."""
    records = as_records(table)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({k: in_csv(v) if isinstance(v, str) else v for k, v in record.items()})
    return text.getvalue()


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
