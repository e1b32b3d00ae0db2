"""Jobs on the cores of this machine or on a Dask cluster: what is finished is kept at once, one
failure stops no other job."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hyperadam.tasks.memory import keep_freed

#: How often the progress of running jobs is looked at, in seconds.
LOOK = 0.2
#: How often the pool of processes is set up anew after one of them was killed.
RESTARTS = 3
#: How long a job has to come to its next step when all is to end, in seconds.
GRACE = 5.0


class Interrupted(Exception):
    """Raised inside a job that is told to stop."""


class Job(ABC):
    """A piece of work that can be pickled. Jobs know nothing of each other."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What it is, in a line."""

    @property
    @abstractmethod
    def work(self) -> float:
        """Roughly how many seconds it takes."""

    @abstractmethod
    def compute(self, folder: Path, progress: Callable[[float], None]) -> Any:
        """Do it, where ``folder`` is a place for files that let it resume; what comes of it, to be
        pickled."""

    @abstractmethod
    def keep(self, value: Any) -> None:
        """Store what came of it, on the side that asked for it. What is there already is left as it
        is."""


class Failure(NamedTuple):
    """A job that raised an error."""

    label: str
    error: str


class Setup(NamedTuple):
    """What a process needs before it can work: the folder to resume from, threads to compute with,
    the user's module."""

    folder: Path
    threads: int = 1
    module: str | None = None

    def apply(self) -> None:
        keep_freed()
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        if self.module:
            if "" not in sys.path:
                sys.path.insert(0, "")
            importlib.import_module(self.module)


#: Told what runs or has just ended, the share of all work that is done, and whether it has just
#: ended.
Watch = Callable[[str, float, bool], None]


def run_jobs(
    jobs: Sequence[Job], setup: Setup, watch: Watch, processes: int = 1, dask: str | None = None
) -> list[Failure]:
    """Do all jobs, cheap ones first, and keep what comes of them as it comes; those that failed.

    One process is this one. On Dask (``dask`` is the address of the scheduler) results come back
    here; files to resume from are here too where the workers share the disk, else with them. After
    Ctrl-C running jobs are stopped at their next step.
    """
    ordered = sorted(jobs, key=lambda job: job.work)
    if not ordered:
        return []
    if dask is not None:
        return _on_dask(ordered, setup, watch, dask)
    if processes == 1 or len(ordered) == 1:
        return _here(ordered, setup, watch)
    return _in_processes(ordered, setup, watch, processes)


class _Tally:
    """How far all jobs are, by their expected work."""

    def __init__(self, jobs: Sequence[Job], watch: Watch) -> None:
        self.jobs, self.watch = jobs, watch
        self.work = [job.work for job in jobs]
        self.total = sum(self.work) or 1.0
        self.shares = [0.0] * len(jobs)
        self.failures: list[Failure] = []

    def progress(self, number: int, share: float) -> None:
        self.shares[number] = share
        self.show(self.jobs[number].label)

    def show(self, label: str, ended: bool = False) -> None:
        done = sum(work * share for work, share in zip(self.work, self.shares, strict=True))
        self.watch(label, min(1.0, done / self.total), ended)

    def ended(self, number: int, outcome: Callable[[], Any]) -> None:
        """Keep what came of a job, or the error it ended with."""
        job = self.jobs[number]
        try:
            job.keep(outcome())
        except OSError as error:
            if _is_ours(error):
                raise  # the results cannot be written: no job can end well
            self.failures.append(Failure(job.label, _line(error)))
        except Exception as error:
            self.failures.append(Failure(job.label, _line(error)))
        self.shares[number] = 1.0
        self.show(job.label, ended=True)


def _is_ours(error: OSError) -> bool:
    return (
        error.errno is not None
        and error.filename is not None
        and not isinstance(error, FileNotFoundError)
    )


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return (
        text
        if isinstance(error, ValueError) and text
        else f"{type(error).__name__}: {text}".removesuffix(": ")
    )


def _here(jobs: Sequence[Job], setup: Setup, watch: Watch) -> list[Failure]:
    setup.apply()
    tally = _Tally(jobs, watch)
    for number, job in enumerate(jobs):
        tally.progress(number, 0.0)
        progress = partial(tally.progress, number)
        tally.ended(number, partial(job.compute, setup.folder, progress))
    return tally.failures


# Processes ------------------------------------------------------------------------------------

#: In a process of the pool: the share that each job has done, then whether to stop. Written without
#: a lock, so that a process that is killed leaves none behind.
_shares: Any = None
_setup: Setup | None = None


def _start(shares: Any, setup: Setup) -> None:
    global _shares, _setup
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes: the first of them tells the others
    _shares, _setup = shares, setup
    threading.Thread(target=_end_with_parent, daemon=True).start()
    setup.apply()


def _end_with_parent() -> None:
    """End this process when the one that started it is no more, even if that was killed: nothing
    else would tell."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _shares[-1] = 1.0
    time.sleep(GRACE)
    os._exit(1)


def _compute(number: int, job: Job) -> Any:
    assert _setup is not None

    def progress(share: float) -> None:
        if _shares[-1]:  # told to stop
            raise Interrupted
        _shares[number] = share

    progress(0.0)
    return job.compute(_setup.folder, progress)


def _in_processes(jobs: Sequence[Job], setup: Setup, watch: Watch, processes: int) -> list[Failure]:
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    shares = context.RawArray("d", len(jobs) + 1)
    tally = _Tally(jobs, watch)
    waiting = list(range(len(jobs)))
    for attempt in range(RESTARTS + 1):
        pool = ProcessPoolExecutor(min(processes, len(jobs)), context, _start, (shares, setup))
        with _stopping(pool, shares):
            waiting = _drain(pool, waiting, tally, shares, final=attempt == RESTARTS)
        if not waiting:
            break
    return tally.failures


@contextlib.contextmanager
def _stopping(pool: ProcessPoolExecutor, shares: Any) -> Iterator[None]:
    """Leave no process behind, whatever happens: running jobs are told to stop, and ended if they
    do not."""
    before = set(multiprocessing.active_children())
    try:
        yield
    except BaseException:
        shares[-1] = 1.0
        pool.shutdown(wait=False, cancel_futures=True)
        # not left to the pool: a process that is still starting would keep it, and then the
        # interpreter, from ending
        deadline = time.monotonic() + GRACE
        workers = [child for child in multiprocessing.active_children() if child not in before]
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join(GRACE)
        raise
    pool.shutdown()


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """Ctrl-C waits until the block is over, and never reaches a process that is started in it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _drain(
    pool: ProcessPoolExecutor, numbers: Sequence[int], tally: _Tally, shares: Any, final: bool
) -> list[int]:
    """Do these jobs; the numbers of those that were lost with a process that was killed."""
    with _no_interrupt():
        futures: dict[Future[Any], int] = {
            pool.submit(_compute, number, tally.jobs[number]): number for number in numbers
        }
    lost = []
    while futures:
        done, _ = wait(futures, LOOK, FIRST_COMPLETED)
        for future in done:
            number = futures.pop(future)
            if isinstance(future.exception(), BrokenProcessPool) and not final:
                lost.append(number)
            else:
                tally.ended(number, future.result)
        running = [number for number in futures.values() if 0 < shares[number] < 1]
        for number in running:
            tally.shares[number] = shares[number]
        if running:
            tally.show(tally.jobs[running[0]].label)
    return lost


# Dask -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _mark(folder: Path) -> Iterator[Path]:
    """A file in ``folder`` by which a worker sees whether it has the same disk."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".dask-") as file:
        yield Path(file.name)


def _on_worker(job: Job, setup: Setup, mark: Path) -> Any:
    from distributed import get_worker

    if (
        not mark.is_file()
    ):  # another disk: files to resume from stay here, and are gone with the worker
        setup = setup._replace(folder=Path(get_worker().local_directory) / "hyperadam")
    setup.apply()
    return job.compute(setup.folder, lambda share: None)


def _on_dask(jobs: Sequence[Job], setup: Setup, watch: Watch, address: str) -> list[Failure]:
    try:
        from distributed import Client, as_completed
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--dask needs the package 'distributed' (pip install 'hyperadam[dask]'): {error}"
        ) from error
    tally = _Tally(jobs, watch)
    setup = setup._replace(folder=setup.folder.resolve())
    with Client(address, set_as_default=False) as client, _mark(setup.folder) as mark:
        # by priority workers take cheap jobs first; the scheduler gives the jobs of a worker that
        # dies to another
        futures = [
            client.submit(_on_worker, job, setup, mark, priority=-number, pure=False)
            for number, job in enumerate(jobs)
        ]
        numbers = {future.key: number for number, future in enumerate(futures)}
        try:
            for future in as_completed(futures, loop=client.loop):
                tally.ended(numbers[future.key], future.result)
                future.release()
        except BaseException:
            client.cancel(futures, force=True)
            raise
    return tally.failures
