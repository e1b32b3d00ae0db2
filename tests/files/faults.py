"""Faults of the file system that are real: the system itself refuses to write."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def no_room(size: int) -> Iterator[None]:
    """Within the block no file grows beyond ``size`` bytes: writing more is an ``OSError``, EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def python(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    """A process of its own that runs ``code``, and can import the tests."""
    script = f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'src')]!r}\n"
    return subprocess.Popen(
        [sys.executable, "-c", script + textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
