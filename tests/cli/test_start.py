"""What the command line needs to start: nothing for help, and one line about what is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Commands whose options do not depend on what experiments and presets there are.
LIGHT = ("demo", "train", "compare", "inspect", "report", "tasks", "data", "weights")

#: Runs the command line where some modules cannot be imported, and says which were.
SCRIPT = """
import sys
hidden = set({hidden!r})
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
from hyperadam.cli import main
try:
    status = main({words!r})
except SystemExit as end:
    status = end.code
print("loaded:", *sorted({{"torch", "numpy", "rich", "matplotlib"}} & set(sys.modules)))
sys.exit(status)
"""


def start(words: str, *hidden: str) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(hidden=hidden, words=words.split())
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("words", ["--version", "--help", *(f"{name} --help" for name in LIGHT)])
def test_help_needs_nothing(words: str) -> None:
    """A torch that is imported would be the most of the time that help takes."""
    done = start(words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_a_wrong_command_needs_nothing() -> None:
    done = start("tian")
    assert done.returncode == 2
    assert "invalid choice: 'tian'" in done.stderr
    assert done.stdout == "loaded:\n"


@pytest.mark.parametrize(
    ("words", "hidden"),
    [
        ("train sine-lstm", "rich"),
        ("tune sine-lstm", "rich"),
        ("tasks", "platformdirs"),
        ("data list", "filelock"),
        ("inspect sine-lstm --steps 2", "matplotlib"),
    ],
)
def test_a_command_that_lacks_a_module_says_so(words: str, hidden: str, tmp_path: Path) -> None:
    out = f"{words} --out {tmp_path}" if words.startswith("inspect") else words
    done = start(out, hidden)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    expected = f"this command needs {hidden}, which is not there: pip install 'hyperadam[lab]'"
    assert lines[-1] == f"hyperadam: {expected}"
    assert all(line == "training" for line in lines[:-1])


def test_the_optimizers_need_none_of_it() -> None:
    lab = ("rich", "platformdirs", "filelock", "matplotlib", "dask")
    script = f"""
import sys
hidden = set({lab!r})
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name in hidden:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
import torch, hyperadam
model = torch.nn.Linear(3, 1)
for kind in (hyperadam.HyperAdam, hyperadam.HyperAdam2, hyperadam.RNNprop, hyperadam.DMOptimizer):
    opt = kind(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    print(hyperadam.inspect(opt).look())
    opt.step()
assert all(getattr(hyperadam, name) for name in hyperadam.__all__)
assert set(hyperadam.__all__) <= set(dir(hyperadam))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Inside HyperAdam2, step 1" in done.stdout


def test_the_package_says_what_it_has_not() -> None:
    import hyperadam

    with pytest.raises(AttributeError, match="has no attribute 'HyperAdam3'"):
        hyperadam.HyperAdam3  # noqa: B018
