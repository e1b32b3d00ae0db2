"""Figures and pages: written whole, the same for the same results, legible, and with nothing to load from elsewhere."""

from __future__ import annotations

import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from hyperadam.report import draw_curves, write_report
from hyperadam.report.figures import EXPLODED, LOOKS, POINTS, blocks, choose_looks, draw_panel

from ..experiments.tiny import result

RESULTS = [
    result([0.3, 0.31, 0.29], "adam"),
    result([0.2, math.inf, 0.19], "hyperadam"),
    result([0.4, 0.4, 0.4], "mine", label="<b>&mine"),
    result([0.5, 0.6, 0.7], "sgd", task="other"),
]


def test_figures_are_the_same_for_the_same_results(tmp_path: Path) -> None:
    paths = draw_curves(RESULTS, tmp_path / "a")
    assert [path.name for path in paths] == ["a.svg", "a.png"]
    svg = paths[0].read_text()
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    for text in (
        "bowl",
        "other",
        "adam",
        "hyperadam, 1 of 3 diverged",
        "training loss",
        "mean of 3 runs",
    ):
        assert f">{text}" in svg or text in svg
    assert LOOKS["adam"].colour.lower() in svg.lower()
    again = draw_curves(RESULTS, tmp_path / "b")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]


@pytest.mark.parametrize("tasks", [1, 4, 5])
def test_any_number_of_panels_and_runs(tmp_path: Path, tasks: int) -> None:
    svg, _ = draw_curves(
        [result([0.1 * n], task=f"task-{n}") for n in range(tasks)], tmp_path / "a"
    )
    assert all(f"task-{n}<" in svg.read_text() for n in range(tasks))
    assert "band" not in svg.read_text(), "one run has no spread"


def test_every_run_diverged(tmp_path: Path) -> None:
    assert all(
        path.stat().st_size for path in draw_curves([result([math.inf, math.inf])], tmp_path / "a")
    )


def test_what_explodes_leaves_the_panel_and_a_loss_of_zero_does_not_make_it_linear() -> None:
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    calm, wild = result([0.1], "adam", steps=2 * POINTS), result([1.0], "sgd", steps=2 * POINTS)
    start = max(float(blocks(r.losses)[1][0, 0]) for r in (calm, wild))
    wild.losses[0, 10:20] = 1e9
    calm.losses[0, -1] = 0.0
    draw_panel(axis, "bowl", [calm, wild], choose_looks([calm, wild]))
    low, high = axis.get_ylim()
    assert axis.get_yscale() == "log"
    assert high == pytest.approx(EXPLODED * start)
    assert 0 < low < float(blocks(calm.losses)[1].min()), "all of the other curve is seen"


def test_an_optimizer_keeps_its_look() -> None:
    assert len(set(LOOKS.values())) == len(LOOKS)
    alone, among = choose_looks(RESULTS[:1]), choose_looks(RESULTS)
    assert alone["adam"] == among["adam"] == LOOKS["adam"]
    rates = choose_looks([result([1.0], "adam", label=f"adam@{n}") for n in range(30)])
    assert rates["adam@0"] == LOOKS["adam"]
    assert len({rates[f"adam@{n}"] for n in range(13)}) == 13


def test_long_curves_are_means_over_blocks() -> None:
    losses = torch.arange(2 * 1000.0).view(2, 1000)
    steps, means = blocks(losses, points=400)
    assert means.shape == (2, 333)
    assert means[0, :2].tolist() == [1.0, 4.0]
    assert steps[:2].tolist() == [2.0, 5.0]
    short, same = blocks(losses[:, :10])
    assert short.tolist() == list(range(1, 11))
    assert torch.equal(same.float(), losses[:, :10])
    assert blocks(losses)[1].shape[1] <= POINTS


class Checker(HTMLParser):
    """Counts tags, and collects all that a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value for name, value in attributes if name in ("src", "href") and value]

    def handle_data(self, text: str) -> None:
        self.text += text


def test_the_report(tmp_path: Path) -> None:
    report = write_report(RESULTS, tmp_path / "out", "A & B", command="hyperadam compare bowl")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("table.md", "table.csv", "summary.json", "curves.svg", "curves.png", "index.html")
    }
    page = report.page.read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(page)
    assert checker.tags.count("tr") == 1 + len(RESULTS)
    assert "<b>" not in page, "labels are text"
    assert "<b>&mine" in checker.text
    assert "A & B" in checker.text
    assert "hyperadam compare bowl" in checker.text
    assert "diverged in 1 of 3" in checker.text
    assert all(load.startswith(("#", "data:,")) for load in checker.loads)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert checker.tags.count("figure") == 2, "one for each task"
    summary = json.loads(report.data.read_text())
    assert [row["optimizer"] for row in summary["rows"]] == [r.label for r in RESULTS]


def test_without_matplotlib_there_is_everything_but_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)

    class NoMatplotlib:
        """Finds nothing, and says so for matplotlib."""

        def find_spec(self, name: str, *rest: object) -> None:
            if name.split(".")[0] == "matplotlib":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [NoMatplotlib(), *sys.meta_path])
    report = write_report(RESULTS, tmp_path, "title")
    assert report.figure is None
    assert (tmp_path / "table.md").is_file()
