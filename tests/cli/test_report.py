"""``hyperadam report``: from result files to a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hyperadam.cli import main
from hyperadam.experiments.paper.runner import Place
from hyperadam.experiments.paper.specs import EXPERIMENTS

from ..report.synthetic import make


def fill(folder: Path, quick: bool = False, most: int = 6) -> None:
    """Results for the first cells of an experiment, where ``reproduce`` would put them."""
    place = Place(folder, quick)
    store = place.store
    for cell in place.cells(EXPERIMENTS["activations"])[:most]:
        made = make(cell.task, cell.optimizer.name, cell.steps, len(cell.seeds))
        store.add(replace(made, settings=cell.settings()))


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    assert main(["report", "--results", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    out = capsys.readouterr().out
    assert "report.html" in out
    assert "6 of 52" in " ".join(out.split())
    assert "Measured so far: 6 of 52 cells" in page
    assert str(tmp_path) not in page
    assert "computed: 6 of 52 cells" in (tmp_path / "activations" / "table.md").read_text(
        encoding="utf-8"
    )
    assert not (tmp_path / "lstm").exists(), "no table of nothing"
    assert main(["report", "--results", str(tmp_path), "--out", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def damage(path: Path) -> None:
    """Flip a bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_a_damaged_result_is_named_and_the_rest_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path)
    assert main(["report", "--results", str(tmp_path)]) == 0
    capsys.readouterr()
    path = tmp_path / "cells" / "mnist-mlp" / "momentum-100.npz"
    damage(path)
    assert main(["report", "--results", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "5 of 52" in " ".join(out.split())
    lines = err.splitlines()
    assert set(lines) == {
        f"hyperadam: mnist-mlp  momentum  100 steps: {path} is damaged: "
        "its checksum is not that of its content"
    }
    table = (tmp_path / "activations" / "table.md").read_text(encoding="utf-8")
    assert "| momentum | damaged |" in table
    assert "final_loss,mnist-mlp,100,momentum,0,0,damaged," in (
        tmp_path / "activations" / "table.csv"
    ).read_text(encoding="utf-8")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert ">damaged</td>" in page
    assert "Measured so far: 5 of 52 cells" in page


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b'{"format": null}'])
def test_a_damaged_part_of_the_suite_is_named_and_the_rest_is_made(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path)
    (tmp_path / "suite" / "runs").mkdir(parents=True)
    (tmp_path / "suite" / "runs" / "tabular.100.json").write_bytes(content)
    assert main(["report", "--results", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hyperadam: the suite is left out: ")
    assert "tabular.100.json" in line
    assert 'id="suite"' not in (tmp_path / "report.html").read_text(encoding="utf-8")


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
