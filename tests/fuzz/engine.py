"""Runs a reader on many inputs: by hypothesis, or by atheris, which looks for inputs that reach new code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.readers import READERS, Reader

ROOT = Path(__file__).parents[2]


class Tally(NamedTuple):
    """How many inputs a reader got, how many it refused, and the first that it failed on."""

    inputs: int
    refused: int
    finding: str | None
    seconds: float


class Counted:
    """A reader that counts: each input in a folder that was empty before."""

    def __init__(self, reader: Reader, folder: Path) -> None:
        self.reader, self.folder = reader, folder
        self.inputs = self.refused = 0
        torch.set_num_threads(1)  # the numbers are few

    def __call__(self, given: Any) -> None:
        for left in self.folder.iterdir():
            left.unlink()
        self.inputs += 1
        try:
            self.reader.read(given, self.folder)
        except self.reader.refused:
            self.refused += 1


def with_hypothesis(name: str, inputs: int, same: bool = False) -> Tally:
    """So many inputs from hypothesis; the ``same`` ones each time, or others."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counted = Counted(READERS[name], Path(folder))
        test = as_property(counted, inputs, same)
        try:
            test()
            finding = None
        except Exception as error:
            notes = " ".join(getattr(error, "__notes__", []))
            finding = f"{type(error).__name__}: {error} {notes}"
    return Tally(counted.inputs, counted.refused, finding, time.monotonic() - began)


def as_property(counted: Counted, inputs: int, same: bool) -> Any:
    """The test that hypothesis runs, and whose inputs atheris can draw."""
    every = settings(
        max_examples=inputs,
        database=None,
        deadline=None,
        derandomize=same,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    return every(given(counted.reader.inputs())(lambda given: counted(given)))


def with_atheris(name: str, inputs: int) -> Tally:
    """So many inputs from atheris, in a process of its own: it never comes back from its loop."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.coverage", name, str(inputs), str(report)],
            capture_output=True,
            text=True,
            errors="replace",
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)])},
        )
        found = {"inputs": 0, "refused": 0, "finding": None}
        if report.exists():
            found = json.loads(report.read_text())
        if done.returncode and found["finding"] is None:
            found["finding"] = f"atheris ended with {done.returncode}: {done.stderr[-2000:]}"
    return Tally(**found, seconds=time.monotonic() - began)
