"""Options that commands share. Nothing here needs torch: a command's help comes at once."""

from __future__ import annotations

import argparse
import math
from pathlib import Path


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
    add_out_option(parser, out)
    parser.add_argument(
        "--final-batches",
        type=positive,
        metavar="N",
        help="the final loss is over N of a run's batches (default: over all)",
    )
    add_thread_option(parser)
    add_import_option(parser)


def add_task_options(parser: argparse.ArgumentParser, optimizers: str) -> None:
    """One task, and what trains it; ``optimizers`` are some to name."""
    parser.add_argument(
        "task", metavar="TASK", help="the name of a task (hyperadam tasks lists them)"
    )
    parser.add_argument(
        "--optimizer",
        default="hyperadam",
        metavar="NAME",
        help=f"{optimizers}, a weight file … (default %(default)s)",
    )


def add_out_option(parser: argparse.ArgumentParser, out: str) -> None:
    """Where files go."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(out),
        metavar="DIR",
        help="where results go (default %(default)s)",
    )


def add_thread_option(parser: argparse.ArgumentParser) -> None:
    """How many threads compute."""
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="threads to compute with (default: as many as there are idle cores)",
    )


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


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    """Options of what ends in a report."""
    parser.add_argument("--test", action="store_true", help="also measure on the test set")
    parser.add_argument(
        "--tuning",
        type=Path,
        metavar="DIR",
        help="tuned learning rates to use first (default results/tuning)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="compute anew what is already in the results"
    )


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
