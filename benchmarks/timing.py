"""How the benchmarks measure: every variant in turn, round after round, and medians of that."""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

Work = Callable[[], object]
Clock = Callable[[], float]

#: A sample lasts at least this many seconds: a short work is called many times in it.
SAMPLE = 0.01
MOST_CALLS = 1000


def clock_for(threads: int) -> Clock:
    """Processor time for one thread, which a busy machine troubles least; wall time for more."""
    return time.process_time if threads == 1 else time.perf_counter


def seconds(work: Work, calls: int = 1, clock: Clock = time.process_time) -> float:
    """Of one of ``calls`` calls in a row."""
    start = clock()
    for _ in range(calls):
        work()
    return (clock() - start) / calls


def in_turn(
    works: Mapping[str, Work], rounds: int, clock: Clock = time.process_time
) -> dict[str, dict[str, float]]:
    """Each work's seconds a call, over the rounds. A first call, which sets things up, is free."""
    calls: dict[str, int] = {}
    for name, work in works.items():
        work()
        one = max(seconds(work, clock=clock), SAMPLE / MOST_CALLS)
        calls[name] = max(1, math.ceil(SAMPLE / one))
    samples: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            samples[name].append(seconds(work, calls[name], clock))
    return {name: summary(values) for name, values in samples.items()}


def summary(values: Iterable[float]) -> dict[str, float]:
    """The median, and the quartiles about it."""
    values = list(values)
    low, median, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return {"median": median, "low": low, "high": high}


def matrix_product_rate() -> float:
    """fp32 flop a second of torch's own matrix product on one thread: the best of many."""
    a = torch.randn(1024, 1024)
    return 2 * 1024**3 / min(seconds(lambda: a @ a) for _ in range(20))


def machine() -> str:
    """The processor's name, how many of them, and the system."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if "model name" in line]
    model = models[0] if models else platform.processor()
    return f"{model}, {os.cpu_count()} cores, {platform.system()}"


def resident(field: str) -> float:
    """Megabytes of this process in memory: now ("VmRSS") or at most ("VmHWM")."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def versions(*packages: Any) -> dict[str, str]:
    """Of some installed packages, by name."""
    from importlib.metadata import version

    return {name: version(name) for name in packages}
