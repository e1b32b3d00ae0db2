"""``hyperadam weights ship``: a weight file becomes one of the package, with its provenance."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hyperadam import HyperAdamRule, load_rule
from hyperadam.cli import main
from hyperadam.weights import list_weights, loader

MADE = {"made_by": "hyperadam meta-train", "settings": {"updates": 3}, "validation": [[0, 1.5]]}


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the package's own."""
    folder = tmp_path / "package"
    folder.mkdir()
    monkeypatch.setattr(loader, "SHIPPED", folder)
    return folder


def best(folder: Path, provenance: dict[str, object]) -> Path:
    torch.manual_seed(0)
    rule = HyperAdamRule(candidates=3)
    rule.provenance = dict(provenance)
    rule.save(folder / "best.safetensors")
    return folder / "best.safetensors"


def test_weights_go_into_the_package(
    tmp_path: Path, package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = best(tmp_path, MADE)
    assert main(["weights", "ship", str(path), "mine", "--what", "a  try"]) == 0
    assert str(package / "mine.safetensors") in capsys.readouterr().out
    assert list_weights() == ["mine"]
    there, here = load_rule("mine"), load_rule(path)
    assert there.provenance == {**MADE, "what": "a try"}
    assert there.config == here.config
    for name, value in here.state_dict().items():
        assert torch.equal(value, there.state_dict()[name])
    assert main(["weights", "list"]) == 0
    assert "a try" in capsys.readouterr().out


def test_what_is_there_stays_unless_told(
    tmp_path: Path, package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = best(tmp_path, MADE)
    (package / "mine.safetensors").write_bytes(b"former")
    assert main(["weights", "ship", str(path), "mine"]) == 2
    assert "there are weights named 'mine'; --replace" in capsys.readouterr().err
    assert (package / "mine.safetensors").read_bytes() == b"former"
    assert main(["weights", "ship", str(path), "mine", "--replace"]) == 0
    assert load_rule("mine").provenance == MADE


@pytest.mark.parametrize("name", ["adam", "Mine", "../mine", "a b", "", "-x"])
def test_names_that_cannot_be(name: str, tmp_path: Path, package: Path) -> None:
    path = best(tmp_path, MADE)
    assert main(["weights", "ship", str(path), "--", name]) == 2
    assert not list(package.iterdir())


@pytest.mark.parametrize("provenance", [{}, {"made_by": "me"}])
def test_weights_from_nowhere_are_refused(
    provenance: dict[str, object],
    tmp_path: Path,
    package: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = best(tmp_path, provenance)
    assert main(["weights", "ship", str(path), "mine"]) == 2
    assert "does not say where it comes from" in capsys.readouterr().err
    path.write_bytes(b"nonsense")
    assert main(["weights", "ship", str(path), "mine"]) == 2
    assert not list(package.iterdir())
