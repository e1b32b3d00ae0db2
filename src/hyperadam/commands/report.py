"""``hyperadam report``: the paper beside our results, as tables, figures and one page."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hyperadam.experiments.paper.experiment import Experiment
    from hyperadam.experiments.paper.runner import Loaded
    from hyperadam.report.recipe import RecipeSection
    from hyperadam.report.suite import SuiteSection

EXAMPLES = """
  hyperadam report
  hyperadam report --results my-results --out page.html
  hyperadam report --quick
  hyperadam report --quote README.md docs/*.md

The page holds every table, figure and claim of the paper with what `hyperadam reproduce` has
measured so far. It is one file that loads nothing from anywhere; what is not measured is shown as
such. Tables and figures of every experiment are written anew beside the results, so that page and
tables agree. Nothing is trained: it takes seconds.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="where results are (default %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the page (default report.html among the results)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="from what `hyperadam reproduce --quick` measured"
    )
    parser.add_argument(
        "--quote",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="Markdown files: write the numbers that they quote anew",
    )


def run(options: argparse.Namespace) -> None:
    """Collect, judge, write, and say what is there."""
    from hyperadam.experiments.jobs import Failure
    from hyperadam.experiments.paper.runner import Place, load
    from hyperadam.experiments.paper.specs import EXPERIMENTS
    from hyperadam.files import write_atomically
    from hyperadam.inside.valley import write_valley
    from hyperadam.report.experiment import write_experiment
    from hyperadam.report.paper import document
    from hyperadam.report.quotes import Numbers, refresh
    from hyperadam.report.recipe import FOLDER
    from hyperadam.report.render import page

    folder, out = options.results, options.out or options.results / "report.html"
    place = Place(folder, options.quick)
    found = [
        (e.coarse() if options.quick else e, load(e, place.store, options.quick))
        for e in EXPERIMENTS.values()
    ]
    if not any(loaded.results or loaded.damaged for _, loaded in found):
        again = "hyperadam reproduce all" + (" --quick" if options.quick else "")
        raise ValueError(
            f"there are no results of the paper's experiments in {folder} yet: `{again}` makes them"
        )
    for experiment, loaded in found:
        if loaded.results or loaded.damaged:
            write_experiment(experiment, loaded, place.folder / experiment.name, options.quick)
    options.failures = [
        Failure(f"{task}  {label}  {steps:,} steps", reason)
        for _, loaded in found
        for (task, label, steps), reason in loaded.damaged.items()
    ]
    suite = None if options.quick else _suite(options, folder / "suite")
    recipe = None if options.quick else _recipe(options, found, folder / FOLDER)
    made = document(found, folder / "tuning", options.quick, suite, recipe)
    valley = write_valley(out.with_name("valley.html"))
    made_with = [result.made_with for _, loaded in found for result in loaded.results]
    links = {valley.name: "How they step: four optimizers in a valley of two weights, to watch"}
    write_atomically(out, page(made, links, _foot(folder, made_with)))
    for part in made.sections:
        print(f"{part.name:20} {len(part.claims):2} claims  {part.extent}")
    print("claims   " + ", ".join(f"{n} {verdict.value}" for verdict, n in made.counts.items()))
    print(f"page     {out}")
    print(f"watch    {valley}")
    numbers = Numbers(found, folder / "suite", folder / FOLDER) if options.quote else None
    for path in options.quote:
        assert numbers is not None
        before = path.read_text(encoding="utf-8")
        after = refresh(before, numbers)
        if after != before:
            write_atomically(path, after)
        print(f"quotes   {path}  {'as they were' if after == before else 'written anew'}")


def _foot(results: Path, made_with: Sequence[Mapping[str, str]]) -> list[str]:
    """When the results changed last, if they are in a repository, what computed them, and what
    made the page."""
    from hyperadam import __version__

    made = f"Made by hyperadam {__version__}: hyperadam report."
    ask = ["git", "-C", str(results), "log", "-1", "--format=%h of %cs", "--"]
    try:
        # the results alone: the page itself is not what they depend on
        told = subprocess.run(
            [*ask, "cells", "suite/runs", "time/time.json"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        told = ""
    changed = [f"The results last changed in commit {told}."] if told else []
    versions = [f"{kind} {_all(made_with, kind)}" for kind in ("hyperadam", "torch", "python")]
    kernels = f"kernels: {_all(made_with, 'backend')}"
    computed = f"They were computed with {', '.join(versions)} ({kernels}), on processors alone."
    return [*changed, computed, "Times are processor time on one thread.", made]


def _all(made_with: Sequence[Mapping[str, str]], kind: str) -> str:
    """All versions of something that results were made with."""
    return " or ".join(sorted({versions[kind] for versions in made_with if kind in versions}))


def _suite(options: argparse.Namespace, folder: Path) -> SuiteSection | None:
    """The suite's section; if it cannot be made, that is told, and the page is made without it."""
    from hyperadam.experiments.jobs import Failure
    from hyperadam.report.suite import write_suite

    try:
        return write_suite(folder)
    except ValueError as error:
        options.failures.append(Failure("the suite is left out", str(error)))
        return None


def _recipe(
    options: argparse.Namespace, found: Sequence[tuple[Experiment, Loaded]], folder: Path
) -> RecipeSection | None:
    """The section of the published recipe; as the suite's, if it cannot be made."""
    from hyperadam.experiments.jobs import Failure
    from hyperadam.report.recipe import recipe_section

    try:
        return recipe_section(found, folder)
    except ValueError as error:
        options.failures.append(Failure("the published recipe is left out", str(error)))
        return None
