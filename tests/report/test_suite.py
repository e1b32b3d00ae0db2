"""The suite's section: every number where it belongs, what is missing named, and a page that holds it all."""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path

import pytest

from hyperadam.experiments.suite.files import Folder, TaskRuns
from hyperadam.experiments.suite.scores import Results
from hyperadam.report import suite as report
from hyperadam.report import suite_figures
from hyperadam.report.paper import document
from hyperadam.report.render import page
from hyperadam.report.tables import Grid
from tests.experiments.suite.small import cell, run, suite

__all__ = ["suite"]

ENVELOPE = "ImageMLP_Cifar10_8_Relu32"


def cells() -> list[TaskRuns]:
    short = cell(
        "curve",
        20,
        {
            "adam": [1.2] * 3,
            "adam-linear": [1.0, 1.1, 0.9],
            "prodigy-cosine": [0.5] * 3,
            "hyperadam": [0.8, 0.9, 1.0],
            "dm": [1.0, math.inf, 1.0],
        },
        envelope=ENVELOPE,
    )
    long = cell(
        "curve",
        1_000,
        {"adam-linear": [1.7] * 3, "hyperadam": [1.6] * 3},
        parameters=200_000,
        envelope=ENVELOPE,
    )
    long.optimizers["adam"] = {"first_rates": [0.1, 0.2]}
    for lr, loss in ((0.1, 2.0), (0.2, 1.75), (0.4, math.inf)):
        long.runs[("adam", lr, 1_000_000)] = run("adam", loss, lr, 1_000_000)
    for seed in range(3):
        long.runs[("adam", 0.2, seed)] = run("adam", 1.75, 0.2, seed)
    return [short, long]


def grid(made: report.SuiteSection, title: str) -> Grid:
    return next(g for g in made.grids if g.title.startswith(title))


def row(found: Grid, *names: str) -> dict[str, str]:
    texts = [[cell.text for cell in row] for row in found.rows]
    cells = next(row for row in texts if tuple(row[: len(names)]) == names)
    return dict(zip(found.header, cells, strict=True))


def test_scores(suite) -> None:
    made = report.section(Results(cells()))
    mine = row(grid(made, "Scores"), "hyperadam")
    assert mine["pairs"] == "2"
    assert mine["at or below tuned constant Adam"] == "2 of 2"
    assert mine["at or below Prodigy, cosine"] == "0 of 1"
    assert mine["runs failed"] == "0 of 6"
    assert "at or below schedule-free AdamW" not in mine, "nobody was there to be compared with"
    linear = row(grid(made, "Scores"), "adam-linear")
    assert linear["at or below tuned linear Adam"] == "–"
    assert linear["training loss / tuned linear Adam's"] == "1"
    lost = row(grid(made, "Scores"), "dm")
    assert lost["runs failed"] == "1 of 3"
    assert lost["training loss / tuned linear Adam's"] == "∞"
    assert row(grid(made, "Scores"), "prodigy-cosine")[
        "training loss / tuned linear Adam's"
    ].startswith("0.5")


def test_losses_by_task(suite) -> None:
    made = report.section(Results(cells()))
    losses = grid(made, "Training loss at the end, 20 steps")
    found = row(losses, "curve")
    assert found["prodigy-cosine"] == "0.5"
    assert [cell.text for row in losses.rows for cell in row if cell.best] == ["0.5"]
    assert found["hyperadam"] == "0.9"
    assert found["dm"] == "diverged in 1"
    assert row(grid(made, "Training loss at the end, 1,000 steps"), "curve")["dm"] == "–"
    assert row(grid(made, "Test loss, 20 steps"), "curve")["hyperadam"] == "1.8"


def test_times(suite) -> None:
    found = grid(report.section(Results(cells())), "Steps and seconds")
    mine = row(found, "hyperadam")
    assert mine["pairs that get there"] == "2 of 2"
    assert float(mine["steps"]) < 1
    assert mine["fewer seconds, of pairs with 100,000 parameters and more"] == "1 of 1"
    assert row(found, "adam")["steps"] == "∞"


def test_speed_ups(suite) -> None:
    found = grid(report.section(Results(cells())), "Speed-up")
    assert found.header == ["optimizer", "1,000 steps"]
    text = row(found, "hyperadam")["1,000 steps"]
    assert re.fullmatch(r"\d\.\d\d \(1 tasks\)", text)
    assert float(text.split()[0]) > float(row(found, "adam")["1,000 steps"].split()[0])


def test_rates(suite) -> None:
    found = row(grid(report.section(Results(cells())), "Tuned rates"), "curve", "1,000", "adam")
    assert found["rate"] == "0.2"
    assert found["rate → loss on the tuning seed"] == "0.1 → 2  0.2 → 1.75  0.4 → diverged"


def test_what_is_missing_is_named(suite) -> None:
    lines = [lack.text() for lack in report.section(Results(cells())).missing]
    assert "again, 20 steps: not computed yet" in lines
    assert "curve, 1,000 steps: no prodigy-cosine, dm" in lines
    assert not any(line.startswith("curve, 20") for line in lines)


def store(folder: Path) -> None:
    for made in cells():
        with Folder(folder / "runs").changing(made.task, made.steps, made.about) as kept:
            kept.optimizers, kept.start, kept.runs = made.optimizers, made.start, made.runs


def test_files(suite, tmp_path: Path) -> None:
    store(tmp_path)
    made = report.write_suite(tmp_path)
    assert made is not None
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "**0.5**" in text
    assert "again, 20 steps: not computed yet" in text
    assert str(tmp_path) not in text
    lines = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert len(lines) == 5 + 3
    mine = next(x for x in lines if x["optimizer"] == "hyperadam" and x["steps"] == "20")
    assert float(mine["loss"]) == pytest.approx(0.9)
    assert float(mine["ratio_to_linear_adam"]) == pytest.approx(0.9)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    report.write_suite(tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == first


def test_nothing_to_compare(suite, tmp_path: Path) -> None:
    assert report.write_suite(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_figures(suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    found = cells()
    for factor in (0.25, 0.5, 2.0, 4.0):
        for seed in range(3):
            lr = 0.1 * factor
            found[1].runs[("hyperadam", lr, seed)] = run("hyperadam", 1.7, lr, seed)
    monkeypatch.setattr(suite_figures, "VARIED_TASKS", ("curve",))
    drawn = suite_figures.draw(Results(found), tmp_path)
    assert [path.name for path in drawn] == [
        f"{name}.{kind}"
        for name in ("ratios", "velodrome", "sensitivity", "curves")
        for kind in ("svg", "png")
    ]
    for path in drawn[::2]:
        assert "HyperAdam" in path.read_text(encoding="utf-8")
        assert path.with_suffix(".png").stat().st_size > 5_000


def test_page(suite, tmp_path: Path) -> None:
    store(tmp_path)
    made = report.write_suite(tmp_path)
    assert made is not None
    whole = page(document([], suite=made))
    assert whole.count("<section") == whole.count("</section>")
    assert "<td>2 of 2</td>" in whole
    assert "★" in whole
    assert 'href="#suite"' in whole
    assert 'src="http' not in whole
    assert ">DMoptimizer<" in whole, "names for people"
    assert 'id="suite"' not in page(document([]))
    assert 'id="answer"' not in page(document([])), "no answer without results"


def test_without_matplotlib(suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path)

    def gone(*args: object) -> None:
        raise ModuleNotFoundError("no matplotlib", name="matplotlib")

    monkeypatch.setattr(suite_figures, "draw", gone)
    made = report.write_suite(tmp_path)
    assert made is not None
    assert made.files == []
    assert (tmp_path / "table.md").is_file()


def test_curves_have_their_seconds(suite) -> None:
    panels = report.section(Results(cells())).panels
    assert [panel.id for panel in panels] == ["suite-curve-1000", "suite-curve-20"]
    series = {s["name"]: s for s in panels[0].data["series"]}
    assert series["hyperadam"]["seconds"] > 0
    assert set(panels[1].data["shown"]) == {
        *("adam", "adam-linear", "prodigy-cosine", "hyperadam", "dm")
    }
