"""A label may be anything: in figures, tables and pages it is text, and nothing else."""

from __future__ import annotations

import csv
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hyperadam.experiments.paper.experiment import Figure
from hyperadam.report import write_report
from hyperadam.report.experiment import write_experiment
from hyperadam.report.paper import document
from hyperadam.report.plain import in_csv, in_figure, in_markdown
from hyperadam.report.render import page

from ..experiments.tiny import result
from .synthetic import bare, loaded, make

ODD = (
    r"$\frac$",
    "<b>bold</b>",
    "=cmd|' /C calc'!A0",
    "<script>alert(1)</script>",
    "[here](javascript:alert(1))",
    "a|b",
    "_hidden",
    "$",
)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def check(folder: Path, html: str, label: str) -> None:
    """Tables and page of ``folder`` have the label as text."""
    markdown = (folder / "table.md").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(markdown)
    assert not tags.tags, "no HTML in Markdown"
    assert "](" not in markdown.replace("\\]", "")
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1, "no cell is split"
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert label in cells or f"'{label}" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "@"))]
    seen = Tags()
    seen.feed(html)
    assert label in seen.text
    assert label not in html or not label.startswith("<")


@pytest.mark.parametrize("label", ODD)
def test_a_comparison_with_an_odd_label(label: str, tmp_path: Path) -> None:
    found = [result([0.3, 0.31, 0.29], "adam"), result([0.2, 0.21, 0.19], "mine", label=label)]
    report = write_report([*found, result([0.5], "x", task=label)], tmp_path, label, label)
    check(tmp_path, report.page.read_text(encoding="utf-8"), label)
    assert report.figure is not None
    svg = Tags()
    svg.feed(report.figure.read_text(encoding="utf-8"))
    assert svg.text.count(label) >= 2, "the curve's name and the panel's title"
    assert "b" not in svg.tags


@pytest.mark.parametrize("label", ODD)
def test_an_experiment_with_an_odd_label(label: str, tmp_path: Path) -> None:
    tasks = ("t", "u", "v", "w", "x", label)  # so many that they are drawn by task, too
    spec = bare(
        tasks=tasks,
        optimizers=("adam", label),
        runs=3,
        figures=(Figure(label, label, 100),),
    )
    results = [make(task, name, 100, 3) for task in tasks for name in spec.optimizers]
    write_experiment(spec, loaded(results), tmp_path)
    html = page(document([(spec, loaded(results))]))
    check(tmp_path, html, label)
    for name in ("curves", "tasks"):
        svg = Tags()
        svg.feed((tmp_path / f"{name}.svg").read_text(encoding="utf-8"))
        assert svg.text.count(label) >= 2
        assert not svg.tags & {"b", "script"}


def test_the_usual_labels_stay_as_they_are() -> None:
    for label in ("adam@0.01", "hyperadam-paper", "no-lstm", "hyperadam+horizon", "mnist-mlp-2x20"):
        assert in_markdown(label) == in_csv(label) == in_figure(label) == label
