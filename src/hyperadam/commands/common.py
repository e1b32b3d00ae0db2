"""What commands share: options of runs, lists of names, progress on one line with the time left."""

from __future__ import annotations

import argparse
import importlib
import math
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hyperadam.experiments import TUNING, Cell, grid, jobs, run_cells
from hyperadam.files import Lock
from hyperadam.kernels import machine
from hyperadam.report import as_text, write_report
from hyperadam.results import Result, Store
from hyperadam.tasks import memory

if TYPE_CHECKING:
    #: Where a command adds its parser.
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

#: How often a line on a terminal is drawn anew, in seconds.
REDRAW = 0.1


def add_parser(
    commands: Commands, name: str, summary: str, examples: str
) -> argparse.ArgumentParser:
    """A command's parser: one line for the list of commands, and examples below its own help."""
    return commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"examples:\n{examples.strip(chr(10))}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_run_options(
    parser: argparse.ArgumentParser, out: str, steps: int = 100, runs: int = 20, seed: int = 0
) -> None:
    """Options of everything that trains."""
    parser.add_argument(
        "--steps",
        type=positive,
        default=steps,
        metavar="N",
        help="steps of each run (default %(default)s)",
    )
    parser.add_argument(
        "--runs",
        type=positive,
        default=runs,
        metavar="N",
        help="runs, one seed each (default %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=seed,
        metavar="N",
        help="the first run's seed (default %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(out),
        metavar="DIR",
        help="where results go (default %(default)s)",
    )
    parser.add_argument(
        "--final-batches",
        type=positive,
        metavar="N",
        help="the final loss is over N of a run's batches (default: over all)",
    )
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="threads to compute with (default: as many as there are idle cores)",
    )
    add_import_option(parser)


def add_import_option(parser: argparse.ArgumentParser) -> None:
    """The option that lets users bring their own tasks."""
    parser.add_argument(
        "--import",
        dest="module",
        metavar="MODULE",
        help="import this first: it may register your own tasks",
    )


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Options of what runs many jobs."""
    parser.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help="processes to work with (default: one for each core)",
    )
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="run on the Dask cluster with this scheduler, as in tcp://host:8786",
    )


def run_jobs(options: argparse.Namespace, work: Sequence[jobs.Job], folder: Path) -> None:
    """Do jobs with progress over all of them; those that fail are told at the end, and are an exit
    status of 1."""
    line = ProgressLine()

    def watch(label: str, share: float, ended: bool) -> None:
        if line.live:
            line(label, share)
        elif ended:  # where lines cannot be redrawn, one for each job that has ended
            print(f"{share:4.0%}  {label}", file=sys.stderr, flush=True)

    setup = jobs.Setup(folder, options.threads or 1, options.module)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as cleanly as Ctrl-C
    try:
        failures = jobs.run_jobs(work, setup, watch, options.jobs or machine.cores(), options.dask)
    finally:
        signal.signal(signal.SIGTERM, before)
        line.close()
    options.failures = [*getattr(options, "failures", []), *failures]


def positive(text: str) -> int:
    """A whole number from one up."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 up, got {text!r}")
    return number


def seconds(text: str) -> float:
    """A time from zero up."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds from 0 up, got {text!r}")
    return number


def names(text: str) -> list[str]:
    """A comma-separated list of names, each taken once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError(f"expected names with commas between them, got {text!r}")
    return list(dict.fromkeys(parts))


def prepare(options: argparse.Namespace, threads: int | None = None) -> None:
    """Set up the process for training: its memory, its threads (as asked for, or else ``threads``),
    the user's module."""
    memory.keep_freed()
    torch.set_num_threads(
        getattr(options, "threads", None)
        or threads
        or min(torch.get_num_threads(), machine.spare_cores())
    )
    if options.module:
        import_module(options.module)


def import_module(name: str) -> None:
    """Import a module of the user's, found as Python finds modules and in the current folder."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"--import {name}: {error}") from error


def shown(optimizer: str) -> str:
    """A name as it is; a path without its folders, which mean nothing elsewhere."""
    return optimizer.replace("\\", "/").rpartition("/")[2]


def run_flags(options: argparse.Namespace) -> str:
    """The options of runs as they would be typed, for the command that re-makes a report."""
    flags = f" --steps {options.steps} --runs {options.runs}"
    flags += f" --seed {options.seed}" if options.seed else ""
    flags += f" --final-batches {options.final_batches}" if options.final_batches else ""
    return flags + (" --test" if options.test else "")


def seeds(options: argparse.Namespace) -> range:
    """One seed a run."""
    return range(options.seed, options.seed + options.runs)


class ProgressLine:
    """What is being done, how much of all is done, and how long the rest will take; on one line of
    a terminal, redrawn.

    Elsewhere a line for each thing done."""

    def __init__(self) -> None:
        self._start, self._first, self._share = 0.0, 0.0, 2.0
        self._drawn_at, self._label = -1.0, ""
        self._terminal = sys.stderr.isatty()

    @property
    def live(self) -> bool:
        """Whether there is a terminal to redraw the line on."""
        return self._terminal

    def __call__(self, label: str, share: float) -> None:
        now = time.monotonic()
        if share < self._share:  # the first time, or something new begins
            self._start, self._first = now, share
        self._share = share
        if self._terminal and now - self._drawn_at >= REDRAW:
            done = share - self._first
            left = (
                f"  {clock((now - self._start) * (1 - share) / done)} left" if done > 0.01 else ""
            )
            print(f"\r\x1b[K{label}  {share:4.0%}{left}", end="", file=sys.stderr, flush=True)
            self._drawn_at = now
        elif not self._terminal and label != self._label:
            print(label, file=sys.stderr, flush=True)
        self._label = label

    def close(self) -> None:
        """Clear the line."""
        if self._terminal and self._label:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def run_and_report(
    options: argparse.Namespace,
    task_names: Sequence[str],
    optimizers: Sequence[str],
    title: str,
    command: str,
) -> list[Result]:
    """Train every task with every optimizer, print the table, write the report, and say where it
    is."""
    cells = grid(
        task_names,
        optimizers,
        seeds(options),
        options.steps,
        final_batches=options.final_batches,
        test=options.test,
        tuning=options.tuning,
    )
    line = ProgressLine()

    def progress(cell: Cell, share: float) -> None:
        line(f"{cell.task}  {cell.optimizer.label}", share)

    start = time.monotonic()
    with Lock(options.out):
        try:
            results = run_cells(cells, Store(options.out / "cells"), progress, options.fresh)
        finally:
            line.close()
        report = write_report(results, options.out, title, options.against, command)
    print(as_text(report.table))
    if any(row.best for row in report.table.rows):
        print("* the lowest mean of the task; ± is the standard error over runs")
        print("p is how likely chance alone makes so large a difference; clear is p ≤ .05")
    print(
        f"\n{len(results[0].final_loss)} runs of {options.steps:,} steps each; "
        f"{clock(time.monotonic() - start)} in all"
    )
    print(f"page     {report.page}")
    print(f"figure   {report.figure or 'none: it needs matplotlib (pip install matplotlib)'}")
    print(f"data     {report.data}, every run in {options.out / 'cells'}")
    return results


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    """Options of what ends in a report."""
    parser.add_argument("--test", action="store_true", help="also measure on the test set")
    parser.add_argument(
        "--tuning",
        type=Path,
        default=TUNING,
        metavar="DIR",
        help="tuned learning rates to use first (default %(default)s)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="compute anew what is already in the results"
    )
