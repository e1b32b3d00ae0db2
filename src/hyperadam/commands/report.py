"""``hyperadam report``: the paper beside our results, as tables, figures and one page."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = """
  hyperadam report
  hyperadam report --results my-results --out page.html
  hyperadam report --quick

The page holds every table, figure and claim of the paper with what `hyperadam reproduce` has measured so far. It is one file
that loads nothing from anywhere; what is not measured is shown as such. Tables and figures of every experiment are written
anew beside the results, so that page and tables agree. Nothing is trained: it takes seconds.
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


def run(options: argparse.Namespace) -> None:
    """Collect, judge, write, and say what is there."""
    from hyperadam.experiments.atomic import write_text
    from hyperadam.experiments.runner import Place, load
    from hyperadam.experiments.specs import EXPERIMENTS
    from hyperadam.report.experiment import write_experiment
    from hyperadam.report.paper import document, extent
    from hyperadam.report.render import page
    from hyperadam.report.suite import write_suite

    folder, out = options.results, options.out or options.results / "report.html"
    place = Place(folder, options.quick)
    found = [
        (e.coarse() if options.quick else e, load(e, place.store, options.quick))
        for e in EXPERIMENTS.values()
    ]
    if not any(results for _, results in found):
        again = "hyperadam reproduce all" + (" --quick" if options.quick else "")
        raise ValueError(
            f"there are no results of the paper's experiments in {folder} yet: `{again}` makes them"
        )
    for experiment, results in found:
        if results:
            write_experiment(experiment, results, place.folder / experiment.name, options.quick)
    suite = None if options.quick else write_suite(folder / "suite")
    made = document(found, folder / "tuning", options.quick, suite)
    write_text(out, page(made))
    for part in made["experiments"]:
        print(f"{part['name']:20} {len(part['claims']):2} claims  {extent(part)}")
    print(
        "claims   " + ", ".join(f"{count} {verdict}" for verdict, count in made["counts"].items())
    )
    print(f"page     {out}")
