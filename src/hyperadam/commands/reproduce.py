"""``hyperadam reproduce``: the paper's tables, figures and ablations, computed, kept, and written
beside its numbers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hyperadam.commands import common, flags, terminal
from hyperadam.experiments.jobs import Failure
from hyperadam.experiments.paper import timing
from hyperadam.experiments.paper.experiment import Experiment, resolve
from hyperadam.experiments.paper.runner import (
    CellJob,
    Place,
    cell_jobs,
    damaged,
    load,
    unavailable,
    untuned,
    variant_jobs,
)
from hyperadam.experiments.paper.specs import EXPERIMENTS, find_experiment
from hyperadam.experiments.paper.variants import VARIANTS
from hyperadam.files.lock import Lock
from hyperadam.report.experiment import write_experiment

EXAMPLES = """
  hyperadam reproduce all --quick
  hyperadam reproduce activations lstm
  hyperadam reproduce depth --runs 20 --jobs 4
  hyperadam reproduce all --optimizers hyperadam,adam --tasks mnist-mlp,mnist-cnn1
  hyperadam reproduce all --dask tcp://scheduler:8786

Finished cells are kept and never computed again, interrupted ones go on: give the same command
again. `hyperadam tune --all` finds the learning rates of the hand-made optimizers, once, before.
--quick is a coarse version of everything, kept apart.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help=f"all, or some of {', '.join(EXPERIMENTS)}"
    )
    parser.add_argument(
        "--runs",
        type=flags.positive,
        metavar="N",
        help="runs of each cell (default: the experiment's own)",
    )
    parser.add_argument(
        "--optimizers",
        type=flags.names,
        metavar="NAMES",
        help="compute these alone now, names with commas between them (default: all)",
    )
    parser.add_argument(
        "--tasks",
        type=flags.names,
        metavar="NAMES",
        help="on these tasks alone (default: all of them)",
    )
    parser.add_argument("--quick", action="store_true", help="few runs and steps, in minutes")
    flags.add_out_option(parser, "results")
    parser.add_argument(
        "--threads", type=flags.positive, metavar="N", help="threads of each job (default 1)"
    )
    flags.add_job_options(parser)
    flags.add_import_option(parser)
    parser.set_defaults(resumes=True)


def run(options: argparse.Namespace) -> None:
    """Compute what is missing, measure time, write tables and figures, and say what is there."""
    common.prepare(options)
    names = list(EXPERIMENTS) if "all" in options.names else list(dict.fromkeys(options.names))
    experiments = [find_experiment(name) for name in names]
    place = Place(options.out, options.quick)
    with Lock(place.folder):
        reproduce(options, experiments, place)


def reproduce(options: argparse.Namespace, experiments: Sequence[Experiment], place: Place) -> None:
    """The command, once the folder is its own."""
    if not options.quick and (count := untuned(experiments, place)):
        print(
            f"note: the rates of {count} cells are not tuned yet; `hyperadam tune --all` tunes "
            "them",
            flush=True,
        )
    # what does not wait for a variant's weights, and the variants; then the cells that did
    computed = _narrowed(
        _narrowed(experiments, "optimizers", options.optimizers), "tasks", options.tasks
    )
    first = [*cell_jobs(computed, place, options.runs), *variant_jobs(computed, place)]
    common.run_jobs(options, first, place.folder)
    common.run_jobs(options, _not_failed(options, computed, place), place.folder)
    for experiment in computed:
        if experiment.timed:
            measure_time(experiment, place, options.runs)
    write_all(options, experiments, place)
    failed = {failure.label for failure in options.failures}
    options.failures += [
        Failure(label, f"{reason}: delete the file to compute its runs anew")
        for label, reason in damaged(computed, place, options.runs).items()
    ]
    for label, reason in unavailable(computed, place).items():
        if label not in VARIANTS or f"meta-train {VARIANTS[label].file}" not in failed:
            options.failures.append(Failure(f"{label} is left out", reason))


def _narrowed(
    experiments: Sequence[Experiment], field: str, wanted: Sequence[str] | None
) -> list[Experiment]:
    """The experiments with some of their optimizers or tasks alone; those that have none of them
    are left out."""
    if wanted is None:
        return list(experiments)
    known = dict.fromkeys(name for experiment in experiments for name in getattr(experiment, field))
    if unknown := set(wanted) - set(known):
        raise ValueError(
            f"--{field}: no {', '.join(sorted(unknown))} in these experiments, only "
            f"{', '.join(known)}"
        )
    narrower: list[dict[str, Any]] = [
        {field: tuple(n for n in getattr(e, field) if n in wanted)} for e in experiments
    ]
    return [
        replace(experiment, **change)
        for experiment, change in zip(experiments, narrower, strict=True)
        if change[field]
    ]


def _not_failed(
    options: argparse.Namespace, experiments: Sequence[Experiment], place: Place
) -> list[CellJob]:
    """The cells that are still missing, but for those that failed already."""
    failed = {failure.label for failure in options.failures}
    return [job for job in cell_jobs(experiments, place, options.runs) if job.label not in failed]


def measure_time(experiment: Experiment, place: Place, runs: int | None = None) -> None:
    """Time the experiment's optimizers in this process, now that nothing else runs, unless that is
    done."""
    there = [
        label
        for label in experiment.optimizers
        if label not in experiment.unavailable(place.variants)
    ]
    results = load(experiment, place.store, place.quick, runs).results
    curves = [result for result in results if result.losses.numel()]
    specs = [
        resolve(label, experiment.tasks[0], experiment.steps[0], place.tuning, place.variants)
        for label in there
    ]
    if not timing.is_measured(
        place.time, timing.settings(specs, experiment.timed, curves, place.quick)
    ):
        line = terminal.ProgressLine()
        try:
            timing.measure(
                specs,
                experiment.timed,
                curves,
                place.time,
                place.quick,
                lambda share: line("timing", share),
            )
        finally:
            line.close()


def write_all(options: argparse.Namespace, experiments: Sequence[Experiment], place: Place) -> None:
    """Tables and figures of every experiment, and a line about each."""
    for experiment in experiments:
        loaded = load(experiment, place.store, place.quick, options.runs)
        shown = experiment.coarse() if place.quick else experiment
        if options.runs:
            shown = shown.with_runs(options.runs)
        folder = place.folder / experiment.name
        section = write_experiment(shown, loaded, folder, place.quick)
        diverged = sum(result.diverged for result in loaded.results)
        runs = f", runs diverged: {diverged}" if diverged else ""
        print(f"{experiment.name:20} {section.extent}{runs}  {folder / 'table.md'}", flush=True)
