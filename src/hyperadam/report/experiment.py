"""The tables and figures of one experiment as files: our numbers beside the paper's, what is missing shown as missing."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyperadam.experiments.experiment import Experiment
from hyperadam.experiments.runner import Loaded
from hyperadam.files import write_atomically
from hyperadam.report import measures, paper
from hyperadam.report.figures import draw_by_task, draw_panels
from hyperadam.report.plain import in_csv, in_markdown

#: With more tasks than this, final losses are also drawn by task.
MANY = 5
NOTE = (
    "Mean ± standard error over runs; the best mean of a column is bold, and ≈ marks those that are not clearly behind it. "
    "A difference is clear if a paired t-test over runs of the same seed finds it at 95 % and it is not too small to matter "
    f"({measures.smallest_in_words()}). In brackets the paper's number. – is what has not been computed."
)


def write_experiment(
    experiment: Experiment, loaded: Loaded, folder: Path, quick: bool = False
) -> dict[str, Any]:
    """Write ``table.md``, ``table.csv`` and, with matplotlib, ``curves`` (and ``tasks``) as SVG and PNG; the section."""
    results = loaded.results
    section = paper.section(experiment, results, quick, loaded.damaged)
    write_atomically(folder / "table.md", markdown(section))
    write_atomically(folder / "table.csv", as_csv(experiment, section))
    panels = []
    for figure in experiment.figures:
        by_label = {
            r.label: r
            for r in results
            if (r.task, r.steps) == (figure.task, figure.steps) and r.losses.numel()
        }
        panels.append(
            (
                figure.title,
                [by_label[label] for label in experiment.optimizers if label in by_label],
            )
        )
    try:
        if any(group for _, group in panels):
            draw_panels([panel for panel in panels if panel[1]], folder / "curves")
        if len(experiment.tasks) > MANY and results:
            draw_by_task(results, experiment.tasks, experiment.optimizers, folder / "tasks")
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
    return section


def markdown(section: dict[str, Any]) -> str:
    """The tables and claims of a :func:`~.paper.section` as Markdown."""
    where = f"{section['paper']} of the paper." if section["paper"] else "Not in the paper."
    lines = [f"# {section['title']}", "", f"{where} {section['about']}", ""]
    lines += [f"Made by `{section['command']}`; computed: {paper.extent(section)}.", ""]
    for table in section["tables"]:
        columns = [
            in_markdown(c["task"]) + (f", {c['steps']:,} steps" if c["steps"] > 1 else "")
            for c in table["columns"]
        ]
        title = table["title"][:1].upper() + table["title"][1:]
        lines += [
            f"## {title}",
            "",
            _row(["optimizer", *columns]),
            _row(["---"] * (1 + len(columns))),
        ]
        lines += [
            _row([in_markdown(row["optimizer"]), *map(_text, row["cells"])])
            for row in table["rows"]
        ]
        lines.append("")
    lines += [NOTE, ""]
    if section["claims"]:
        lines += ["## What the paper claims", "", f"{section['chance'].capitalize()}.", ""]
    for claim in section["claims"]:
        finding = in_markdown(claim["finding"])
        lines.append(f"- {claim['text']} **{claim['verdict'].capitalize()}.** {finding}")
        if claim["twin"]:
            lines.append(
                f"  The same said of `{claim['twin']['better']}`: {claim['twin']['verdict']}. "
                + in_markdown(claim["twin"]["finding"])
            )
    return "\n".join(lines).rstrip("\n") + "\n"


def as_csv(experiment: Experiment, section: dict[str, Any]) -> str:
    """The tables as comma-separated values, a line for each number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            "measure",
            "task",
            "steps",
            "optimizer",
            "runs",
            "diverged",
            "ours",
            "paper",
            "best",
            "tied",
            "missing",
        ]
    )
    for table in section["tables"]:
        for row in table["rows"]:
            for column, cell in zip(table["columns"], row["cells"], strict=True):
                key = (column["task"], row["optimizer"], column["steps"], table["measure"])
                numbers = [
                    cell.get("runs", 0),
                    cell.get("diverged", 0),
                    "damaged" if cell.get("damaged") else cell.get("mean", ""),
                    experiment.published.get(key, ""),
                ]
                flags = [int(bool(cell.get(flag))) for flag in ("best", "tied", "missing")]
                names = [table["measure"], in_csv(key[0]), key[2], in_csv(key[1])]
                writer.writerow([*names, *numbers, *flags])
    return text.getvalue()


def _text(cell: dict[str, Any]) -> str:
    published = f" ({cell['paper']})" if "paper" in cell else ""
    if cell["missing"]:
        return f"{'damaged' if cell.get('damaged') else '–'}{published}"
    if cell["diverged"]:
        rest = f", else {cell['rest']}" if "rest" in cell else ""
        count = f" in {cell['diverged']} of {cell['runs']}" if cell["failed"] == "diverged" else ""
        return f"{cell['failed']}{count}{rest}{published}"
    shown = (
        f"**{cell['text']}**" if cell["best"] else cell["text"] + (" ≈" if cell.get("tied") else "")
    )
    return shown + published


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
