"""``hyperadam tune``: learning rates of the hand-made optimizers, found on a grid."""

from __future__ import annotations

import argparse

from hyperadam.commands import common, flags, terminal
from hyperadam.experiments import (
    BASELINES,
    FIRST_SEED,
    TUNING,
    Cell,
    Store,
    find,
    grid,
    score,
    tune,
    tuned_lr,
)
from hyperadam.experiments.paper.specs import EXPERIMENTS
from hyperadam.experiments.tuning.bulk import tuning_jobs
from hyperadam.files.lock import Lock

EXAMPLES = """
  hyperadam tune mnist-mlp
  hyperadam tune mnist-mlp sine-lstm --optimizers adam,sgd --steps 100 --runs 20
  hyperadam tune mnist-mlp --optimizers adam@0.3
  hyperadam tune --all --jobs 4

The grid doubles about the published rate (or the one after @), grows until its best point lies
inside, and is refined by √2. The score is the mean final loss; a rate at which a run diverges is
out. The result is a file that `compare` reads. --all tunes whatever the experiments of `hyperadam
reproduce` need, with runs and steps of its own. What is stored stays.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument(
        "tasks", nargs="*", metavar="TASK", help="names of tasks (hyperadam tasks lists them)"
    )
    parser.add_argument("--all", action="store_true", help="all that the experiments need")
    parser.add_argument(
        "--optimizers",
        type=flags.names,
        default=list(BASELINES),
        metavar="NAMES",
        help=f"names with commas between them (default {','.join(BASELINES)})",
    )
    flags.add_run_options(parser, out=str(TUNING), seed=FIRST_SEED)
    flags.add_job_options(parser)
    parser.set_defaults(resumes=True)


def run(options: argparse.Namespace) -> None:
    """Tune, if nobody else does so in the folder."""
    common.prepare(options)
    if options.all == bool(options.tasks):
        raise ValueError("tune: name tasks, or give --all, but not both")
    with Lock(options.out):
        if options.all:
            run_all(options)
        else:
            run_some(options)


def run_some(options: argparse.Namespace) -> None:
    """Tune the tasks that are named, pair by pair, a line for each."""
    grid(
        options.tasks, options.optimizers, flags.seeds(options), options.steps
    )  # refuses bad names before anything starts
    store, line = Store(options.out / "cells"), terminal.ProgressLine()
    for task in dict.fromkeys(options.tasks):
        for optimizer in options.optimizers:

            def progress(cell: Cell, share: float) -> None:
                line(f"{cell.task}  {cell.optimizer.label}", share)

            try:
                tuning = tune(
                    *(
                        task,
                        find(optimizer, task, options.steps),
                        flags.seeds(options),
                        options.steps,
                        store,
                    ),
                    final_batches=options.final_batches,
                    progress=progress,
                )
            finally:
                line.close()
            path = tuning.save(options.out)
            tried = f"tried {tuning.results[0].lr:.3g} to {tuning.results[-1].lr:.3g}"
            edge = ", the best is at the edge" if tuning.at_edge else ""
            print(
                f"{task:24} {tuning.best.optimizer:10} lr {tuning.lr:<10.4g} loss "
                f"{score(tuning.best):<9.4g} {tried}{edge}"
            )
            print(f"{'':24} {path}", flush=True)


def run_all(options: argparse.Namespace) -> None:
    """Tune whatever the experiments need, a line for each rate that is found."""
    jobs = [
        job
        for job in tuning_jobs(EXPERIMENTS.values(), options.out)
        if job.optimizer in options.optimizers
    ]
    missing = [job for job in jobs if not job.done]
    print(f"{len(jobs)} rates, {len(jobs) - len(missing)} of them stored already", flush=True)
    common.run_jobs(options, missing, options.out)
    for job in jobs:
        rate = tuned_lr(job.optimizer, job.task, job.steps, options.out)
        print(
            f"{job.task:24} {job.optimizer:10} {job.steps:6,} steps  "
            + (f"lr {rate.lr:.4g}" if rate else "none found")
        )
