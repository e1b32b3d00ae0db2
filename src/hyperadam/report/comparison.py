"""Results of a few optimizers on a few tasks, each beside one that they are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hyperadam.report.statistics import Contrast, Summary, contrast, in_words, summarize, written
from hyperadam.report.tables import Cell, Grid, texts
from hyperadam.results import Result


class Row(NamedTuple):
    """A task and an optimizer. ``against`` compares it with the reference, which itself has none;
    ``best`` marks the lowest mean of the task; ``test`` are means over runs on the test set."""

    result: Result
    summary: Summary
    against: Contrast | None
    best: bool
    test: dict[str, float]


class Comparison(NamedTuple):
    """Rows, and the label of the optimizer that the others are compared with, if there are
    others."""

    rows: list[Row]
    reference: str | None

    def grid(self, call: Callable[[str], str] = str) -> Grid:
        """As people read it; ``call`` names the optimizer that the others are compared with."""
        test = [f"test {name}" for name in self.rows[0].test] if self.rows else []
        against = [f"against {call(self.reference)}"] if self.reference else []
        header = ["task", "optimizer", "lr", "final loss", *test, *against]
        return Grid("Final losses", header, [self._cells(row) for row in self.rows])

    def _cells(self, row: Row) -> list[Cell]:
        result = row.result
        against = [in_words(row.against) if row.against else ""] if self.reference else []
        return [
            *texts(result.task, result.label, f"{result.lr:.4g} ({result.lr_source})"),
            Cell(loss(row.summary), best=row.best),
            *texts(*(f"{value:.4f}" for value in row.test.values()), *against),
        ]


def compare(results: Sequence[Result], reference: str = "adam") -> Comparison:
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
            test = {name: float(x.double().mean()) for name, x in (result.test or {}).items()}
            rows.append(Row(result, summary, against, best, test))
    return Comparison(rows, chosen)


def loss(summary: Summary) -> str:
    """``0.2490 ± 0.0021``: as many digits as the standard error bears, and how many runs
    diverged."""
    if summary.diverged:
        return f"diverged in {summary.diverged} of {summary.runs}"
    return written(summary.mean, summary.standard_error)


def records(table: Comparison) -> list[dict[str, Any]]:
    """Rows as plain numbers for JSON; what is not finite is ``None``."""
    found = []
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
        found.append(record)
    return found


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
