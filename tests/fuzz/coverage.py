"""The process of atheris: ``python -m tests.fuzz.coverage READER INPUTS REPORT``.

It draws bytes that reach new code in the package, and hypothesis makes inputs of them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["hyperadam"]):
    import hyperadam.cli  # noqa: F401 - all rooms, watched

from tests.fuzz.engine import Counted, as_property
from tests.fuzz.readers import READERS


def main(name: str, inputs: int, report: Path) -> None:
    warnings.simplefilter("ignore")
    counted = Counted(READERS[name], Path(tempfile.mkdtemp(dir=report.parent)))
    feed = as_property(counted, inputs, same=False).hypothesis.fuzz_one_input

    def end(finding: str | None) -> None:
        found = {"inputs": counted.inputs, "refused": counted.refused, "finding": finding}
        report.write_text(json.dumps(found))
        os._exit(finding is not None)

    def one(data: bytes) -> None:
        try:
            feed(data)
        except Exception as error:
            end(f"{type(error).__name__}: {error} {' '.join(getattr(error, '__notes__', []))}")
        if counted.inputs >= inputs:
            end(None)

    atheris.Setup([sys.argv[0], "-max_len=8192", "-len_control=0", "-rss_limit_mb=8192"], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
