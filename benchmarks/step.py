"""What a step costs beside other optimizers: flat vectors, lists of tensors, periods and back.

    python benchmarks/step.py [--quick] [--out DIR]
    python benchmarks/step.py --again [--out DIR]     # report and figure anew from step.json

Every variant is timed in turn, round after round, and its median taken, so that a busy machine
troubles all alike: in processor time on one thread, in wall time on two. Writes ``step.json``,
``step.md``, ``step.png`` and ``step.svg``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import contenders
import periods
import step_report
from contenders import LISTS, NAIVE, Setup
from hyperadam import kernels
from lists import time_list
from timing import in_turn, machine, matrix_product_rate, versions

SIZES = {"16k": 16_000, "100k": 100_000, "1M": 1_000_000, "4M": 4_000_000, "10M": 10_000_000}
ROUNDS = {"16k": 21, "100k": 15, "1M": 9, "4M": 5, "10M": 5}
LIST_ROUNDS = {"100 tensors of 64": 31, "MLP of 9 hidden layers": 31, "transformer": 7}
QUICK_SIZES, QUICK_ROUNDS = ("16k", "100k"), 5
#: Above the first the naive step is set up alone; from the second on only the best are measured.
TOGETHER, LONGEST = 100_000, 10_000_000
RESULTS = Path(__file__).parent / "results"


def time_flat(setups: Mapping[str, Setup], coordinates: int, rounds: int) -> dict[str, Any]:
    """Seconds a step of each optimizer on one vector."""
    torch.set_num_threads(1)
    apart = [NAIVE] if NAIVE in setups and coordinates > TOGETHER else []
    times: dict[str, Any] = {}
    for group in (apart, [name for name in setups if name not in apart]):
        works = {name: setups[name]([(coordinates,)]) for name in group}
        # seconds and gigabytes a round: a few will do
        times |= in_turn(works, rounds if group != apart else min(rounds, 3))
        works.clear()
        gc.collect()
    return {"coordinates": coordinates, "seconds": {name: times[name] for name in setups}}


def measure(quick: bool) -> dict[str, Any]:
    """All of it, as it is written to ``step.json``."""
    result: dict[str, Any] = {
        "machine": machine(),
        "versions": versions("torch", "schedulefree", "prodigyopt"),
        "quick": quick,
        "backends": kernels.available(),
        "best": contenders.BEST,
        "load": [os.getloadavg()[0]],
        "flat": {},
        "lists": {"1": {}, "2": {}},
    }
    rates = [matrix_product_rate()]
    for name in QUICK_SIZES if quick else SIZES:
        tell(f"{name} coordinates")
        setups = contenders.longest() if SIZES[name] >= LONGEST else contenders.every()
        result["flat"][name] = time_flat(
            setups, SIZES[name], QUICK_ROUNDS if quick else ROUNDS[name]
        )
        rates.append(matrix_product_rate())
    result["flops"] = max(rates)  # a busy moment must not lower the bar
    tell("periods")
    result["periods"] = periods.time_periods(
        periods.names(quick), 1 if quick else 3, 3 if quick else 5
    )
    # two threads last: once there, some spin while they wait, and spend processor time
    for threads in (1, 2):
        for name in [name for name in LISTS if not quick or name != "transformer"]:
            tell(f"{name}, {threads} thread(s)")
            rounds = QUICK_ROUNDS if quick else LIST_ROUNDS[name]
            result["lists"][str(threads)][name] = time_list(LISTS[name], threads, rounds)
    result["load"].append(os.getloadavg()[0])
    return result


def tell(what: str) -> None:
    print(f"{what} …", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short vectors and lists, few rounds")
    parser.add_argument(
        "--again", action="store_true", help="only write the report of step.json anew"
    )
    parser.add_argument(
        "--out", type=Path, help="where to write (benchmarks/results, or quick/ in it)"
    )
    arguments = parser.parse_args()
    out = arguments.out or (RESULTS / "quick" if arguments.quick else RESULTS)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    if not arguments.again:
        result = measure(arguments.quick)
        out.mkdir(parents=True, exist_ok=True)
        (out / "step.json").write_text(json.dumps(result, indent=1) + "\n")
    print(step_report.write(json.loads((out / "step.json").read_text()), out))
    print(f"written to {out}/step.json, step.md, step.png and step.svg")


if __name__ == "__main__":
    main()
