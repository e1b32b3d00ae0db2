"""``hyperadam tune``: learning rates of the hand-made optimizers, found on a grid."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hyperadam.commands import common
from hyperadam.experiments import BASELINES, FIRST_SEED, TUNING, Cell, Store, find, grid, score, tune

if TYPE_CHECKING:
    from hyperadam.commands.common import Commands

EXAMPLES = """
  hyperadam tune mnist-mlp
  hyperadam tune mnist-mlp sine-lstm --optimizers adam,sgd --steps 100 --runs 20
  hyperadam tune mnist-mlp --optimizers adam@0.3

The grid doubles about the published rate (or the one after @), grows until its best point lies inside, and is refined by √2.
The score is the mean final loss; a rate at which a run diverges is out. The result is a file that `compare` reads.
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = common.add_parser(commands, "tune", "find learning rates on a grid and store them", EXAMPLES)
    parser.add_argument("tasks", nargs="+", metavar="TASK", help="names of tasks (hyperadam tasks lists them)")
    parser.add_argument(
        "--optimizers",
        type=common.names,
        default=list(BASELINES),
        metavar="NAMES",
        help=f"names with commas between them (default {','.join(BASELINES)})",
    )
    common.add_run_options(parser, out=str(TUNING), seed=FIRST_SEED)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Tune pair by pair, a line for each."""
    common.prepare(options)
    grid(options.tasks, options.optimizers, common.seeds(options), options.steps)  # refuses bad names before anything starts
    store, line = Store(options.out / "cells"), common.ProgressLine()
    for task in dict.fromkeys(options.tasks):
        for optimizer in options.optimizers:

            def progress(cell: Cell, share: float) -> None:
                line(f"{cell.task}  {cell.optimizer.label}", share)

            try:
                tuning = tune(
                    *(task, find(optimizer, task, options.steps), common.seeds(options), options.steps, store),
                    final_batches=options.final_batches,
                    progress=progress,
                )
            finally:
                line.close()
            path = tuning.save(options.out)
            tried = f"tried {tuning.results[0].lr:.3g} to {tuning.results[-1].lr:.3g}"
            edge = ", the best is at the edge" if tuning.at_edge else ""
            print(f"{task:24} {tuning.best.optimizer:10} lr {tuning.lr:<10.4g} loss {score(tuning.best):<9.4g} {tried}{edge}")
            print(f"{'':24} {path}", flush=True)
