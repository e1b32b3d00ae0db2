"""``python -m tests.fuzz [--inputs N] [READER …]``: feeds every reader, and says what came of it."""

from __future__ import annotations

import argparse
import importlib.util
import sys

from tests.fuzz.engine import with_atheris, with_hypothesis
from tests.fuzz.readers import READERS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"of {', '.join(READERS)}")
    parser.add_argument("--inputs", type=int, default=100_000, metavar="N", help="for each reader")
    options = parser.parse_args()
    if unknown := set(options.readers) - set(READERS):
        parser.error(f"no reader is called {', '.join(sorted(unknown))}")
    engines = {"hypothesis": with_hypothesis}
    if importlib.util.find_spec("atheris"):
        engines["atheris"] = with_atheris
    else:
        print("atheris is not installed: hypothesis alone")
    findings = []
    print(f"{'reader':12} {'engine':10} {'inputs':>8} {'refused':>8} {'seconds':>8}")
    for name in options.readers or READERS:
        for engine, run in engines.items():
            tally = run(name, options.inputs // len(engines))
            told = "" if tally.finding is None else "  FAILED"
            print(
                f"{name:12} {engine:10} {tally.inputs:8} {tally.refused:8} {tally.seconds:8.0f}{told}",
                flush=True,
            )
            if tally.finding is not None:
                findings.append(f"{name}, {engine}: {tally.finding}")
    for finding in findings:
        print(f"\n{finding}", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
