"""Builds the C++ kernels with sanitizers, and runs the kernels' and the optimizers' tests on them.

    python tests/kernels/sanitize.py [pytest's arguments]

An error of theirs stops the process it happens in, and so fails the run. Python itself leaks, so leaks are not looked for.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
NATIVE = Path("src/hyperadam/kernels/native")
#: The lanes of an instruction set, and what switches it on; the optimizer is on, for the code that is shipped is what is tried.
LANES = {"portable": "-DHYPERADAM_LANES=4", "avx2": "-DHYPERADAM_LANES=8 -mavx2 -mfma"}
FLAGS = (
    "-O1 -g -std=c++17 -fopenmp -fPIC -shared -fsanitize=address,undefined -fno-sanitize-recover=all "
    "-fno-omit-frame-pointer -fno-math-errno -ffp-contract=fast"
)
TESTS = [
    "tests/kernels/test_agreement.py",
    "tests/kernels/test_directions.py",
    "tests/kernels/test_lstm.py",
    "tests/kernels/test_tensors.py",
    "tests/optim/test_learned_step.py",
]


def main() -> int:
    compiler = shutil.which("g++")
    if compiler is None:
        sys.exit("sanitize: no g++ on this machine")
    runtimes = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("src", "tests"):
            shutil.copytree(
                ROOT / name, tree / name, ignore=shutil.ignore_patterns("*.so", "__pycache__")
            )
        shutil.copy(ROOT / "pyproject.toml", tree)
        for name, lanes in LANES.items():
            sources = sorted(map(str, (tree / NATIVE).glob("*.cpp")))
            target = str(tree / NATIVE / f"{name}.so")
            subprocess.run(
                [compiler, *FLAGS.split(), *lanes.split(), "-o", target, *sources], check=True
            )
        environment = os.environ | {
            "PYTHONPATH": str(tree / "src"),
            "LD_PRELOAD": " ".join(runtimes),
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        arguments = [*TESTS, "-k", "avx2 or portable", *sys.argv[1:]]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *arguments], cwd=tree, env=environment
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
