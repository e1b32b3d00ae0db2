"""``hyperadam report``: from result files to a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hyperadam.cli import main
from hyperadam.experiments.runner import Place
from hyperadam.experiments.specs import EXPERIMENTS

from ..report.synthetic import make


def fill(folder: Path, quick: bool = False, most: int = 6) -> None:
    """Results for the first cells of an experiment, where ``reproduce`` would put them."""
    place = Place(folder, quick)
    store = place.store
    for cell in place.cells(EXPERIMENTS["activations"])[:most]:
        made = make(cell.task, cell.optimizer.name, cell.steps, len(cell.seeds))
        replace(made, settings=cell.settings(), label=cell.optimizer.label).save(store.path(cell))


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    assert main(["report", "--results", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    out = capsys.readouterr().out
    assert "report.html" in out
    assert "6 of 44" in " ".join(out.split())
    assert "Measured so far: 6 of 44 cells" in page
    assert str(tmp_path) not in page
    assert "computed: 6 of 44 cells" in (tmp_path / "activations" / "table.md").read_text(
        encoding="utf-8"
    )
    assert not (tmp_path / "lstm").exists(), "no table of nothing"
    assert main(["report", "--results", str(tmp_path), "--out", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_a_coarse_report(tmp_path: Path) -> None:
    fill(tmp_path, quick=True)
    assert main(["report", "--results", str(tmp_path), "--quick"]) == 0
    assert "A coarse version" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_without_results_it_says_how_to_make_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--results", str(tmp_path)]) == 2
    assert "hyperadam reproduce all" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
