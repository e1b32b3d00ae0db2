"""The published recipe on the page: how far it came, and which published numbers are reached."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hyperadam.cli import main
from hyperadam.experiments import weights_sha256
from hyperadam.files import Damaged
from hyperadam.meta import checkpoint
from hyperadam.report.curves import decode
from hyperadam.report.paper import document
from hyperadam.report.recipe import (
    FILE,
    Progress,
    Reach,
    RecipeSection,
    numbers,
    reach,
    read_progress,
    recipe_section,
)
from hyperadam.report.render import page
from hyperadam.results import Result
from hyperadam.weights import load_rule

from ..cli.test_report import fill
from .synthetic import ACTIVATIONS, loaded, make, results
from .test_paper import parts

RUN = Path(__file__).parents[2] / "results" / "published"
WITH_COLUMN = replace(ACTIVATIONS, optimizers=(*ACTIVATIONS.optimizers, "hyperadam-published"))
CURVE = "update,plain,scaled\n0,2.0,2.0\n30000,0.5,0.7\n60000,0.7,0.7\n90000,0.4,0.6\n91234,,\n"


def write(folder: Path, text: str = CURVE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(text, encoding="utf-8")
    return folder


def with_losses(losses: list[float]) -> Result:
    made = make("mnist-mlp", "hyperadam-published", 100, len(losses))
    return replace(made, final_loss=torch.tensor(losses))


def test_progress(tmp_path: Path) -> None:
    assert read_progress(tmp_path) is None
    found = read_progress(write(tmp_path))
    assert found is not None
    assert (found.updates, found.planned) == (91_234, 350_000)
    assert [point.update for point in found.points] == [0, 30_000, 60_000, 90_000]
    assert (found.best.update, found.best.score) == (90_000, 0.5)
    assert (found.before.update, found.before.score) == (30_000, pytest.approx(0.6))
    assert found.gain == pytest.approx(1 / 6)


def test_a_run_shorter_than_the_patience_is_compared_with_its_start(tmp_path: Path) -> None:
    found = read_progress(write(tmp_path, "update,plain,scaled\n0,2.0,2.0\n500,1.0,1.0\n"))
    assert found is not None
    assert (found.updates, found.before.update, found.gain) == (500, 0, 0.5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "update,plain\n0,2.0\n",
        "update,plain,scaled\n",
        "update,plain,scaled\n500,1.0,1.0\n",
        "update,plain,scaled\n0,2.0,2.0\n1000,1.0,1.0\n500,1.0,1.0\n",
        "update,plain,scaled\n0,2.0,two\n",
        "update,plain,scaled\n0,2.0,2.0\n\n",
    ],
)
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(Damaged, match=FILE):
        read_progress(write(tmp_path, text))


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([0.33, 0.33], Reach.YES),
        ([0.30, 0.3695], Reach.YES),  # 0.33475 is 0.33 as the paper rounds
        ([0.30, 0.375], Reach.UNCLEAR),
        ([0.4], Reach.UNCLEAR),
        ([0.40, 0.41, 0.42], Reach.NO),
        ([0.1, 0.1, float("inf")], Reach.NO),
    ],
)
def test_whether_a_number_is_reached(losses: list[float], expected: Reach) -> None:
    found = reach(with_losses(losses), "final_loss", 0.33)
    assert found.reach is expected
    if losses == [0.40, 0.41, 0.42]:
        assert found.short == "24 % higher"
    if losses[-1] == float("inf"):
        assert found.text == "diverged in 1 of 3"


def test_accuracies_are_better_the_higher_they_are() -> None:
    made = make("mnist-mlp", "hyperadam-published", 100, 3, test=True)
    test = {**(made.test or {}), "top1": torch.tensor([0.98, 0.981, 0.982])}
    made = replace(made, test=test)
    assert reach(made, "test_top1", 0.981).reach is Reach.YES
    found = reach(made, "test_top1", 0.9902)
    assert (found.reach, found.short) == (Reach.NO, "0.9 points lower")
    assert reach(make("mnist-mlp", "adam", 100, 3), "test_top1", 0.5).reach is Reach.MISSING
    assert reach(None, "final_loss", 0.5).reach is Reach.MISSING


def test_the_page_has_the_curve_the_updates_and_every_number(tmp_path: Path) -> None:
    found = [(WITH_COLUMN, loaded(results(WITH_COLUMN)))]
    made = recipe_section(found, write(tmp_path))
    assert made is not None
    (number,) = numbers(found)
    assert (number.task, number.published) == ("mnist-mlp", 0.33)
    text = page(document(found, recipe=made))
    words = " ".join(parts(text).text.split())
    assert "91,234 of its 350,000 updates" in words
    assert "They brought 16.7 %." in words
    assert 'id="recipe"' in text
    assert 'href="#recipe"' in text
    assert number.ours["hyperadam-published"].text in words
    assert "1 of 1 published numbers are reached" in words
    (panel,) = made.panels
    assert f'data-panel="{panel.id}"' in text
    drawn = decode(panel.data["series"][0]["mean"])
    assert drawn.tolist() == pytest.approx([2.0, 0.5, 0.7, 0.4], rel=1e-3)
    assert (panel.data["first"], panel.data["size"]) == (0, 30_000)


def test_what_is_not_measured_is_shown_as_such(tmp_path: Path) -> None:
    found = [(WITH_COLUMN, loaded(results(ACTIVATIONS)))]
    made = recipe_section(found, write(tmp_path))
    assert made is not None
    assert made.reached("hyperadam-published")[Reach.MISSING] == 1
    text = page(document(found, recipe=made))
    assert "0 of 1 published numbers are reached, 1 not measured." in text
    assert "Measured so far: 44 of 48 cells." in text
    assert recipe_section(found, tmp_path / "elsewhere") is None
    assert 'id="recipe"' not in page(document(found))


def test_report_leaves_out_what_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path)
    write(tmp_path / "published")
    assert main(["report", "--results", str(tmp_path)]) == 0
    assert "91,234 of its 350,000" in (tmp_path / "report.html").read_text(encoding="utf-8")
    write(tmp_path / "published", "update\n")
    assert main(["report", "--results", str(tmp_path)]) == 1
    assert "the published recipe is left out" in capsys.readouterr().err
    assert 'id="recipe"' not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_run_is_what_its_checkpoint_says(tmp_path: Path) -> None:
    """Validation, updates and best weights of the real run, each against the others."""
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(lzma.decompress((RUN / "checkpoint.pt.xz").read_bytes()))
    content = checkpoint.read(path)
    progress = read_progress(RUN)
    assert progress is not None
    assert progress.updates == content["update"]
    rounded = [(n, round(a, 4), round(b, 4)) for n, a, b in content["curve"]]
    assert [tuple(point) for point in progress.points] == rounded
    best, shipped = load_rule(RUN / "best.safetensors"), load_rule("hyperadam-published")
    assert weights_sha256(best) == weights_sha256(shipped)
    assert best.provenance["updates"] == progress.best.update
    changed = {k for k, v in shipped.provenance.items() if best.provenance.get(k) != v}
    assert changed == {"what"}


def test_sentences_say_both(tmp_path: Path) -> None:
    progress = read_progress(write(tmp_path))
    assert isinstance(progress, Progress)
    last = RecipeSection(progress, numbers([(WITH_COLUMN, loaded(results(WITH_COLUMN)))]))
    assert "hyperadam-paper: 1 of 1" in last.sentences[-1]
