"""The Triton kernel without a GPU: interpreted, held to the rule; and compiled, for three GPUs.

Both take processes of their own: whether Triton interprets is settled when it is first imported."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MISSING = importlib.util.find_spec("triton") is None
needs_triton = pytest.mark.skipif(MISSING, reason="triton is not installed")
TARGETS = ("cuda:80:32", "cuda:90:32", "hip:gfx942:64")


def run(*command, **variables):
    """What the command prints, with variables of its own; a failure shows all of it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=HERE.parents[1],
        env={**environment, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_package_does_not_import_triton():
    """Not even what torch has not imported."""
    run(
        "-c",
        "import sys, torch; torchs = 'triton' in sys.modules; import hyperadam.cli; "
        "assert torchs or 'triton' not in sys.modules; "
        "assert not any(name.startswith('hyperadam.kernels.triton') for name in sys.modules)",
    )


@needs_triton
def test_interpreted_it_equals_the_rule():
    # numpy, which interprets, warns where a sigmoid's exponential overflows
    options = ("-p", "no:cacheprovider", "-o", "filterwarnings=")
    run("-m", "pytest", *options, str(HERE / "triton_interpreted.py"), TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("triton"))
    return json.loads(run(str(HERE / "triton_compiled.py"), *TARGETS, TRITON_CACHE_DIR=cache))


@needs_triton
@pytest.mark.parametrize("target", TARGETS)
def test_it_compiles_and_fits_the_registers(target, compiled):
    assert len(compiled[target]) == (10 if target == TARGETS[0] else 4)
    for name, program in compiled[target].items():
        print(target, name, program)
        assert program["bytes"] > 0, name
        # of some 250 registers a thread, 1000 bytes
        assert program["spilled"] <= 64, (name, program)
        # what every GPU grants a program that asks for nothing
        assert program["shared"] <= 48 * 1024, (name, program)
