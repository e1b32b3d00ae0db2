"""Starts ranks on this machine, gloo between them: what each returned, or how it failed."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[2])
#: Seconds after which ranks that are still running are ended, and the test has failed.
LIMIT = 120
#: Seconds that the other ranks have to end by themselves once one has failed.
GRACE = 5

#: Ranks are forks of one server that has torch loaded: starting four of them costs no four imports.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "torch.distributed.checkpoint.state_dict",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "hyperadam",
    ]
)


class RankError(AssertionError):
    """A rank has failed, or did not end in time."""


def run_ranks(count: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """``work(rank, *args)`` on ``count`` ranks of a gloo group: what each returned, in order."""
    if ROOT not in sys.path:
        sys.path.insert(0, ROOT)  # a rank imports `work` by its name
    with tempfile.TemporaryDirectory() as folder:
        # the ranks meet at a file: no port that somebody else could take first
        meeting = f"file://{folder}/meeting"
        started = [_start((rank, count, meeting, work, args)) for rank in range(count)]
        try:
            return _collect(started)
        finally:
            for process, _ in started:
                process.kill()
                process.join()


def _start(job: tuple[Any, ...]) -> tuple[Any, Connection]:
    here, there = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=_rank, args=(there, *job), daemon=True)
    process.start()
    there.close()
    return process, here


def _rank(report: Connection, rank: int, count: int, meeting: str, work: Any, args: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=meeting,
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=LIMIT // 2),
        )
        dist.barrier()  # a rank that is done at once would hang up on those still connecting
        good, value = True, work(rank, *args)
    except BaseException:
        good, value = False, traceback.format_exc()
    # as bytes: torch would hand over its tensors in memory that ends with this process
    report.send_bytes(pickle.dumps((good, value)))
    report.close()


def _collect(started: list[tuple[Any, Connection]]) -> list[Any]:
    results: dict[int, Any] = {}
    errors: dict[int, str] = {}
    rank_of = {pipe: rank for rank, (_, pipe) in enumerate(started)}
    end = time.monotonic() + LIMIT
    while rank_of and (left := end - time.monotonic()) > 0:
        for pipe in wait(list(rank_of), timeout=left):
            rank = rank_of.pop(pipe)
            try:
                good, value = pickle.loads(pipe.recv_bytes())
            except EOFError:
                good, value = False, "ended without a word"
            (results if good else errors)[rank] = value
            if not good:
                end = min(end, time.monotonic() + GRACE)
    errors |= dict.fromkeys(rank_of.values(), "did not end in time")
    if errors:
        lines = [f"rank {rank}: {error}" for rank, error in sorted(errors.items())]
        raise RankError("\n".join(lines))
    return [results[rank] for rank in range(len(started))]
