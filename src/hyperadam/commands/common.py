"""What commands that compute share: how a process is set up, jobs with progress, runs that end in
a report."""

from __future__ import annotations

import argparse
import signal
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from hyperadam.commands.flags import seeds
from hyperadam.commands.terminal import ProgressLine, clock, show_table
from hyperadam.commands.user_code import import_module
from hyperadam.experiments import TUNING, Cell, find, grid, jobs, run_cells
from hyperadam.files.lock import Lock
from hyperadam.kernels import machine
from hyperadam.report import write_report
from hyperadam.report.tables import Grid, as_lines
from hyperadam.results import Result, Store
from hyperadam.tasks import memory

NO_FIGURE = "none: it needs matplotlib (pip install 'hyperadam[lab]')"


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


def run_jobs(options: argparse.Namespace, work: Sequence[jobs.Job], folder: Path) -> None:
    """Do jobs with progress over all of them; those that fail are told at the end, and are an exit
    status of 1."""
    line = ProgressLine(announce=False)

    def watch(label: str, share: float, ended: bool) -> None:
        if (
            ended and not line.live
        ):  # where lines cannot be redrawn, one for each job that has ended
            line.say(f"{share:4.0%}  {label}")
        else:
            line(label, share)

    setup = jobs.Setup(folder, options.threads or 1, options.module)
    if work:
        line.say(f"setting up {len(work)} jobs")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as cleanly as Ctrl-C
    try:
        failures = jobs.run_jobs(work, setup, watch, options.jobs or machine.cores(), options.dask)
    finally:
        signal.signal(signal.SIGTERM, before)
        line.close()
    options.failures = [*getattr(options, "failures", []), *failures]


def run_and_report(
    options: argparse.Namespace,
    task_names: Sequence[str],
    optimizers: Sequence[str],
    title: str,
    command: str,
    in_words: Callable[[Sequence[Result]], list[str]] | None = None,
    links: Mapping[str, str] | None = None,
) -> list[Result]:
    """Train every task with every optimizer, print the table, write the report, and say where it
    is. ``in_words`` puts the results into sentences; ``links`` lead from the page to others."""
    cells = grid(
        task_names,
        optimizers,
        seeds(options),
        options.steps,
        final_batches=options.final_batches,
        test=options.test,
        tuning=options.tuning or TUNING,
    )
    against = reference(options.against, cells)
    line = ProgressLine()

    def progress(cell: Cell, share: float) -> None:
        line(f"{cell.task}  {cell.optimizer.label}", share)

    start = time.monotonic()
    if line.live:
        line("setting up", 0.0)
    with Lock(options.out):
        try:
            results = run_cells(cells, Store(options.out / "cells"), progress, options.fresh)
        finally:
            line.close()
        words = in_words(results) if in_words else []
        report = write_report(results, options.out, title, against, command, words, links)
    show_grid(report.table.grid())
    if any(row.best for row in report.table.rows):
        print("* the lowest mean of the task; ± is the standard error over runs")
        print("p is how likely chance alone makes so large a difference; clear is p ≤ .05")
    print(
        f"\n{len(results[0].final_loss)} runs of {options.steps:,} steps each; "
        f"{clock(time.monotonic() - start)} in all"
    )
    for sentence in words:
        print(f"\n{textwrap.fill(sentence, 88)}")
    print(f"\npage     {report.page}")
    print(f"figure   {report.figure or NO_FIGURE}")
    print(f"data     {report.data}, every run in {options.out / 'cells'}")
    return results


def reference(given: str | None, cells: Sequence[Cell]) -> str:
    """The optimizer that the others are compared with: the one that was given, which must be among
    them, or else Adam."""
    labels = list(dict.fromkeys(cell.optimizer.label for cell in cells))
    if given is None:
        return "adam"
    wanted = find(given).label if given not in labels else given
    if wanted not in labels:
        raise ValueError(f"--against {given}: only {', '.join(labels)} are compared here")
    return wanted


def show_grid(grid: Grid) -> None:
    """A table on the terminal."""
    show_table(as_lines(grid), grid.header)
