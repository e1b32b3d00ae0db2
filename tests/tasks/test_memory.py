"""Freed memory is kept where the C library lets itself be told, and elsewhere nothing happens."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from hyperadam.tasks import memory

FAULTS = """
import resource, torch
from hyperadam.tasks import memory
assert memory.keep_freed()
def step():
    return [torch.ones(2_000_000) for _ in range(10)]
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_pages_are_fetched_once() -> None:
    run = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True)
    assert int(run.stdout) < 5000  # of the 97,650 that five steps touch


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_other_libraries_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def absent(name: str | None) -> None:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert not memory.keep_freed()
