"""A user's own module: its errors are the user's, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hyperadam.cli import main

GOOD = """
from hyperadam import tasks
import helper

class Mine(tasks.Task):
    def __init__(self):
        super().__init__(p=3)
    def batch(self, seeds, step):
        return (helper.numbers(len(seeds)),)
    def losses(self, params, batch):
        return (params - batch[0]).square().sum(-1)

tasks.register("{name}", Mine)
"""
HELPER = """
import torch
def numbers(n):
    {line}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    return tmp_path


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("broken_name", "import torch\n\nx = no_such_name\n", "broken_name.py, line 3: NameError"),
        ("broken_syntax", "x = 1\ny = (\n", "broken_syntax.py, line 2: SyntaxError"),
        (
            "broken_call",
            "import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)\n",
            "broken_call.py, line 2",
        ),
        (
            "broken_import",
            "import no_such_library\n",
            "broken_import.py, line 1: ModuleNotFoundError",
        ),
        (
            "broken_task",
            "from hyperadam import tasks\ntasks.register('mnist-mlp', None)\n",
            "a task is already called 'mnist-mlp'",
        ),
    ],
)
@pytest.mark.parametrize("command", ["tasks", "train sine-lstm"])
def test_errors_on_import(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, message: str, command: str
) -> None:
    (here / f"{name}.py").write_text(text)
    assert main([*command.split(), "--import", name]) == 2
    line = one_line(capsys)
    assert line.startswith(f"hyperadam: --import {name}: ")
    assert message in line
    assert "bug" not in line


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("late_name", "return tensor(n)", "NameError: name 'tensor' is not defined"),
        (
            "late_shape",
            "return torch.ones(n, 2) @ torch.ones(n + 5, 2)",
            "RuntimeError: mat1 and mat2",
        ),
    ],
)
def test_errors_at_work(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    line: str,
    message: str,
) -> None:
    (here / f"{name}.py").write_text(
        GOOD.format(name=name.replace("_", "-")).replace("helper", f"{name}_helper")
    )
    (here / f"{name}_helper.py").write_text(HELPER.format(line=line))
    command = ["train", name.replace("_", "-"), "--import", name, "--steps", "2", "--runs", "1"]
    assert main(command) == 2
    told = one_line(capsys)
    assert told.startswith(f"hyperadam: --import {name}: {name}_helper.py, line 4: {message}")
    assert "bug" not in told
