"""``hyperadam suite``: networks as people build them, trained by our optimizers and by everybody else's."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from hyperadam.commands import common, flags, terminal
from hyperadam.experiments.suite import rivals, runs, timing
from hyperadam.experiments.suite import tasks as suite_tasks
from hyperadam.experiments.suite.files import Folder
from hyperadam.report.suite import write_suite

EXAMPLES = """
  hyperadam suite --list                                          tasks, optimizers, and how much is computed
  hyperadam suite --tasks fashion8-mlp,tabular --steps 100        a first look, in two minutes
  hyperadam suite --optimizers hyperadam,hyperadam2               ours on everything; the others' results stay
  hyperadam suite                                                 all of it: many hours on one core
  hyperadam suite --time                                          what steps cost, side by side; minutes, on an idle machine
  hyperadam suite --report                                        tables and figures of what is there; trains nothing

A job is an optimizer on a task for a number of steps. Tuned optimizers first try seven rates and more on a seed apart, then
all train the reported seeds. Every run is kept as soon as it is done, in one file for each task and number of steps: stop it
at any time, and the same command goes on. What is there is not computed again, unless an optimizer's weights or settings have
changed since. Short and cheap jobs come first, so that a part of the suite is already a table. Everything runs on one thread,
for seconds are compared too.

The score of a run is the training loss of its final weights, on fixed batches that no run is trained on.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument(
        "--tasks",
        type=flags.names,
        metavar="NAMES",
        help="tasks with commas between (default: all)",
    )
    parser.add_argument(
        "--optimizers",
        type=flags.names,
        metavar="NAMES",
        help="optimizers (default: all there are)",
    )
    parser.add_argument(
        "--steps",
        type=lambda text: [flags.positive(part) for part in flags.names(text)],
        metavar="NUMBERS",
        help="horizons, of those that a task has (default: all)",
    )
    parser.add_argument(
        "--seeds",
        type=flags.positive,
        default=len(runs.SEEDS),
        metavar="N",
        help="reported runs, with seeds from 0 up (default %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results/suite"),
        metavar="DIR",
        help="where results are kept (default %(default)s)",
    )
    parser.add_argument(
        "--list", action="store_true", help="show tasks, optimizers and what is computed"
    )
    parser.add_argument(
        "--time",
        action="store_true",
        help="measure the seconds of a step, all optimizers in turn, and train nothing",
    )
    parser.add_argument(
        "--report", action="store_true", help="write tables and figures, and no more"
    )
    parser.set_defaults(module=None, threads=1, resumes=True)


def run(options: argparse.Namespace) -> None:
    """Compute what is missing, then write the report; or only one of the two, or a list."""
    common.prepare(options)
    folder = Folder(options.out / "runs")
    if options.list:
        show(options, folder)
        return
    if options.time:
        # always all of them: numbers of two measurements are not side by side
        timing.measure_all(
            suite_tasks.find(options.tasks), rivals.find(), options.out / "times.json", print
        )
    elif not options.report:
        compute(options, folder)
    made = write_suite(options.out)
    if made is None:
        raise ValueError(
            f"there is nothing to compare in {options.out} yet: tuned linear Adam (adam-linear) is what all are put beside"
        )
    for grid in made.scores:
        if grid.rows:
            print(f"\n{grid.title}")
            common.show_grid(grid)
    print(f"\ntables   {options.out / 'table.md'}, {options.out / 'table.csv'}")
    print(f"figures  {', '.join(map(str, made.files)) or common.NO_FIGURE}")
    print("page     hyperadam report puts it on the page of all results")


def compute(options: argparse.Namespace, folder: Folder) -> None:
    """Do what is missing, with a line for each run."""
    tasks, optimizers = suite_tasks.find(options.tasks), rivals.find(options.optimizers)
    seeds = range(options.seeds)
    jobs = runs.plan(tasks, optimizers, options.steps)
    if not jobs:
        raise ValueError(
            f"--steps: none of these tasks has a horizon of {options.steps}; --list shows those that they have"
        )
    left = list(runs.missing(jobs, folder, seeds))
    print(f"{len(jobs)} jobs, {len(jobs) - len(left)} of them done already", flush=True)
    began = time.monotonic()
    for number, job in enumerate(left, 1):

        def progress(text: str, share: float = (number - 1) / len(left)) -> None:
            print(f"{share:4.0%}  {terminal.clock(time.monotonic() - began)}  {text}", flush=True)

        runs.complete(job, folder, seeds, progress)


def show(options: argparse.Namespace, folder: Folder) -> None:
    """A line for each task with its horizons, and one for each optimizer."""
    known = rivals.rivals()
    chosen = [rival for rival in known.values() if not rival.missing]
    for task in suite_tasks.find(options.tasks):
        print(f"{task.name:17} {task.title}")
        for steps in task.steps:
            print(f"{'':17} {steps:6,} steps  {_done(task, steps, chosen, folder, options.seeds)}")
    print()
    for rival in known.values():
        print(f"{rival.name:17} {rival.about}" + (f" ({rival.missing})" if rival.missing else ""))


def _done(
    task: suite_tasks.SuiteTask,
    steps: int,
    chosen: Sequence[rivals.Rival],
    folder: Folder,
    seeds: int,
) -> str:
    jobs = [runs.Job(task, rival, steps) for rival in chosen]
    left = {job.rival.name for job in runs.missing(jobs, folder, range(seeds))}
    done = [rival.name for rival in chosen if rival.name not in left]
    return f"{len(done)} of {len(chosen)}: {', '.join(done)}" if done else "nothing yet"
