"""The source archive and the wheel: built and installed without a network, where torch is and little else."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

import hyperadam

ROOT = Path(__file__).parents[2]
VERSION = hyperadam.__version__

#: Put where Python looks at its start: whoever asks for the network is refused.
OFFLINE = """
import socket
def refuse(*_, **__):
    raise OSError("the network was asked for")
socket.socket.connect = socket.create_connection = refuse
"""

LOOP = """
import torch, hyperadam
torch.manual_seed(0)
x = torch.randn(256, 10)
y = torch.sin(x[:, :1])
for kind in (hyperadam.HyperAdam, hyperadam.HyperAdam2, hyperadam.RNNprop, hyperadam.DMOptimizer):
    model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    opt = kind(model.parameters(), total_steps=100)
    losses = []
    for _ in range(100):
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0], (kind, losses[0], losses[-1])
print(hyperadam.__file__)
print(*hyperadam.kernels.available())
print(*hyperadam.list_weights())
"""


def build(what: str, source: Path, out: Path) -> Path:
    """A source archive or a wheel of the package in ``source``, as pip builds them."""
    code = f"from setuptools import build_meta; print(build_meta.build_{what}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, built from a copy: nothing is left in the repository."""
    copy, out = tmp_path_factory.mktemp("copy") / "source", tmp_path_factory.mktemp("dist")
    skipped = shutil.ignore_patterns(".*", "build", "dist", "results", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=skipped)
    return build("sdist", copy, out)


@pytest.fixture(scope="module")
def wheel(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the archive alone."""
    folder, out = tmp_path_factory.mktemp("unpacked"), tmp_path_factory.mktemp("wheel")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return build("wheel", folder / f"hyperadam-{VERSION}", out)


def requirements(name: str, found: dict[str, Any]) -> None:
    """A distribution and all that it needs, of those that are here."""
    try:
        here = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return  # of another platform, or another Python
    if here.name not in found:
        found[here.name] = here
        for line in here.requires or []:
            if "extra ==" not in line:
                requirements(re.split(r"[^\w.-]", line, maxsplit=1)[0], found)


class Environment:
    """A virtual environment that has the wheel, and links to some distributions of this one."""

    def __init__(self, folder: Path, wheel: Path, *distributions: str) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.bin = folder / "bin"
        (self.site,) = folder.glob("lib/python*/site-packages")
        found: dict[str, Any] = {}
        for name in distributions:
            requirements(name, found)
        for distribution in found.values():
            tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}
            for top in tops - {"__pycache__"}:
                there, here = Path(distribution.locate_file(top)), self.site / top
                if there.exists() and not here.exists():
                    here.symlink_to(there)
        (self.site / "sitecustomize.py").write_text(OFFLINE)
        flags = ["--no-index", "--no-deps", "--quiet", "--disable-pip-version-check"]
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", *flags]
        subprocess.run([*pip, str(wheel)], check=True)

    def run(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HYPERADAM"))}
        return subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=cwd,
            capture_output=True,
            text=True,
            env=clean | {"HOME": str(cwd), "OMP_NUM_THREADS": "1"},
            timeout=600,
        )


@pytest.mark.slow
def test_the_archive_has_what_it_takes(archive: Path) -> None:
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    wanted = ("CHANGELOG.md", "constraints.txt", "LICENSE", "README.md", "Makefile", "setup.py")
    native = "src/hyperadam/kernels/native"
    assert names >= {*wanted, f"{native}/cpu.cpp", f"{native}/step.h", "examples/plain_loop.py"}
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


@pytest.mark.slow
def test_the_wheel_has_all_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        metadata = file.read(f"hyperadam-{VERSION}.dist-info/METADATA").decode()
    source = ROOT / "src"
    skipped = {".so", ".cpp", ".h", ".pyc"}
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "hyperadam").rglob("*")
        if path.is_file() and path.suffix not in skipped
    }
    assert expected - names == set()
    plain = [x for x in re.findall(r"Requires-Dist: (.*)", metadata) if "extra ==" not in x]
    assert sorted(re.split(r"\W", x)[0] for x in plain) == ["numpy", "safetensors", "torch"]
    assert f"Version: {VERSION}" in metadata


@pytest.mark.slow
def test_it_works_where_torch_is_and_little_else(wheel: Path, tmp_path: Path) -> None:
    here = Environment(tmp_path / "bare", wheel, "torch", "numpy", "safetensors")
    version = here.run("hyperadam", "--version", cwd=tmp_path)
    assert (version.returncode, version.stdout) == (0, f"hyperadam {VERSION}\n"), version.stderr
    loop = here.run("python", "-c", LOOP, cwd=tmp_path)
    assert loop.returncode == 0, loop.stderr
    home, backends, weights = loop.stdout.splitlines()
    assert Path(home).is_relative_to(here.site)
    assert weights.split() == list(hyperadam.list_weights())
    if shutil.which("c++"):
        assert "portable" in backends.split(), "the step in C++ is in the wheel"
    lacking = here.run("hyperadam", "train", "sine-lstm", cwd=tmp_path)
    assert lacking.returncode == 2
    assert re.fullmatch(
        r"hyperadam: this command needs \w+, which is not there: pip install 'hyperadam\[lab\]'\n",
        lacking.stderr,
    )


@pytest.mark.slow
def test_commands_work_with_the_lab(wheel: Path, tmp_path: Path) -> None:
    lab = ("filelock", "platformdirs", "rich", "matplotlib")
    here = Environment(tmp_path / "lab", wheel, "torch", "numpy", "safetensors", *lab)
    for words in (
        "compare sine-lstm --optimizers hyperadam,adam --steps 3 --runs 2",
        "inspect sine-lstm --steps 3",
        "weights list",
    ):
        done = here.run("hyperadam", *words.split(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / "compare" / "curves.png").is_file()
    assert (tmp_path / "inside" / "index.html").is_file()
