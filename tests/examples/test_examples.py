"""Every script in ``examples/`` runs as a user runs it, and what it prints says that it learned."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))

#: What a script imports beyond torch.
NEEDS = {
    "accelerate_loop": ["accelerate"],
    "hf_trainer": ["transformers", "accelerate"],
    "lightning_module": ["lightning"],
    "skorch_classifier": ["skorch"],
    "tensorboard_log": ["tensorboard", "matplotlib"],
}

#: The last loss is at most this part of the first. About twice what the scripts reach.
FACTOR = {
    "accelerate_loop": 0.1,
    "checkpoint": 0.03,
    "compile_step": 0.03,
    "ddp": 0.03,
    "distributed_checkpoint": 0.03,
    "fsdp2": 0.03,
    "hf_trainer": 0.1,
    "lightning_module": 0.25,
    "mixed_precision": 0.03,
    "own_task": 0.4,
    "plain_loop": 0.2,
    "schedulers": 0.03,
    "skorch_classifier": 0.6,
    "tensorboard_log": 0.2,
    "total_steps": 0.08,
}

#: What else a script shows.
SAYS = {
    "checkpoint": "same bits: True",
    "compile_step": "step 199 took",
    "ddp": "ranks have the same bits: True",
    "fsdp2": "moments (20, 33, 10), (20, 17, 10) of them on rank 0",
    "own_task": "losses (5,), gradients (5, 385)",
    "mixed_precision": "step 50 skipped, scale 65536 -> 32768",
    "schedulers": "step 80: lr 0.0095",
    "skorch_classifier": "accuracy 0.9",
    "tensorboard_log": "among them 0.weight/log_step: True",
    "total_steps": "step 320 of 320",
}

SLOW = {"compile_step"}  # compiles C++


def marked(script: Path) -> object:
    marks = [pytest.mark.slow] if script.stem in SLOW else []
    return pytest.param(script, id=script.stem, marks=marks)


def test_every_script_has_its_factor() -> None:
    assert {script.stem for script in SCRIPTS} >= FACTOR.keys()
    assert NEEDS.keys() | SAYS.keys() | SLOW <= FACTOR.keys()


@pytest.mark.parametrize("script", [marked(script) for script in SCRIPTS])
def test_example(script: Path, tmp_path: Path) -> None:
    for library in NEEDS.get(script.stem, []):
        if find_spec(library) is None:  # importing it here would cost seconds and is not needed
            pytest.skip(f"needs {library}")
    path = os.pathsep.join(filter(None, sys.path))  # the script sees the package that we test
    child = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    assert child.returncode == 0, child.stderr
    last = child.stdout.strip().splitlines()[-1]
    match = re.fullmatch(r"loss (\d+\.\d+) -> (\d+\.\d+)", last)
    assert match, f"the last line was {last!r}"
    start, end = map(float, match.groups())
    # another one's script without a factor must at least learn
    assert end < FACTOR.get(script.stem, 0.5) * start, last
    assert SAYS.get(script.stem, "") in child.stdout, child.stdout
    assert not list(tmp_path.iterdir()), "a script leaves nothing behind"
