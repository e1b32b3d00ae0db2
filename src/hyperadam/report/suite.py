"""The suite's section: its tables, what the page opens with, figures, and the files of both."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from hyperadam.experiments.suite import rivals, scores, timing
from hyperadam.experiments.suite.files import Folder
from hyperadam.experiments.suite.scores import REFERENCE, Results
from hyperadam.experiments.suite.tasks import TASKS
from hyperadam.experiments.training import optimizers
from hyperadam.files import write_atomically
from hyperadam.report import suite_charts, suite_figures, suite_tables
from hyperadam.report.answer import OURS, Answer, answer
from hyperadam.report.curves import Panel
from hyperadam.report.dots import DotPlot
from hyperadam.report.suite_tables import Missing, loss_of, order, test_of
from hyperadam.report.tables import Grid, as_csv, as_markdown

ABOUT = (
    "Networks as people build them, with the usual start, trained by real torch optimizers, one "
    "run at a time. No meta-training has seen these tasks. Learning rates of Adam, of Adam with "
    "linear decay (no warm-up), of SGD and of Muon are tuned for every task and horizon: at least "
    "seven rates, more while the best is at an edge, on a seed that no number here comes from. "
    "All others have nothing tuned. A run's score is the training loss of its final weights, on "
    "fixed batches that no run is trained on."
)
NOTES = (
    "A pair is a task at a horizon. Numbers are means over three seeds. Losses are level if they "
    "are within 1 %.",
    "Interquartile means are taken over pairs, of the logarithm of the ratio to tuned linear "
    "Adam; in brackets the 95 % interval of a bootstrap over tasks. Below 1 is better.",
    "Steps and seconds are those to tuned linear Adam's loss at the end (the mean of its last 5 % "
    "of steps, on curves smoothed over as many), in the place of 1 of its own; the median over "
    "pairs, ∞ for pairs in which it is never reached. Seconds are processor time on one thread, "
    "gradient and data included, measured for all optimizers of a task in turn (where that is "
    "still to be done: in the runs themselves). What tuning took is not counted against anybody.",
    "A run failed if its loss ceased to be finite, or ended above where it began.",
    "VeLOdrome's speed-up: the steps that the lower envelope of sixty published baselines needs "
    "to the same training loss, in the place of one. Those baselines do not know the horizon, and "
    "the envelope is smoothed and lags: what our own tuned constant Adam gets is the yardstick's "
    "zero.",
)


#: The columns of ``table.csv``.
CSV = (
    *("task", "steps", "parameters", "optimizer", "lr", "loss", "standard_error", "test", "last"),
    *("failed", "seconds_per_step", "optimizer_seconds_per_step", "ratio_to_linear_adam"),
)


@dataclass(frozen=True)
class SuiteSection:
    """The suite as it is shown: ``scores`` are the tables that come first, ``missing`` what is
    not computed, ``files`` the figures that were written."""

    scores: list[Grid]
    losses: list[Grid]
    more: list[Grid]
    missing: list[Missing]
    answer: Answer | None
    overview: DotPlot
    speed_ups: list[DotPlot]
    panels: list[Panel]
    sensitivity: list[Panel]
    optimizers: list[str]
    files: list[Path] = field(default_factory=list)
    title: str = "The suite: networks as people build them"
    about: str = ABOUT
    command: str = "hyperadam suite"
    notes: tuple[str, ...] = NOTES

    @property
    def grids(self) -> list[Grid]:
        """All tables that have rows."""
        return [grid for grid in (*self.scores, *self.losses, *self.more) if grid.rows]


def section(results: Results) -> SuiteSection:
    """All that the suite's part of the page shows."""
    shown = [name for name in rivals.rivals() if name in results.optimizers()]
    horizons = sorted({steps for _, steps in results.cells})
    kinds = {"training loss at the end": loss_of, "test loss": test_of}
    return SuiteSection(
        [
            suite_tables.headline(results, shown),
            suite_tables.times(results, shown),
            suite_tables.velodrome(results, shown),
        ],
        [
            suite_tables.losses(results, shown, steps, title, value)
            for title, value in kinds.items()
            for steps in horizons
        ],
        [
            suite_tables.cost(results, shown),
            suite_tables.rates(results),
            suite_tables.about_optimizers(shown),
        ],
        suite_tables.missing(results, shown),
        answer(results, state_bytes()),
        suite_charts.overview(results, shown),
        suite_charts.speed_ups(results),
        suite_charts.panels(results, shown),
        suite_charts.sensitivity(results),
        shown,
    )


def state_bytes() -> dict[str, int]:
    """What ours and Adam keep, in bytes a parameter."""
    there = [name for name in OURS if name in optimizers.names()]
    found = {name: optimizers.find(name).state_bytes for name in ("adam", *there)}
    return found | {REFERENCE: found["adam"]}


def load(folder: Path) -> Results | None:
    """The results in the suite's folder; ``None`` if there are none that can be compared."""
    cells = [cell for cell in Folder(folder / "runs").all() if cell.task in TASKS]
    results = Results(cells, timing.load(folder / "times.json"))
    return results if results.pairs(REFERENCE) else None


def write_suite(folder: Path) -> SuiteSection | None:
    """Write ``table.md``, ``table.csv`` and the figures into the suite's folder; its section, or
    ``None`` if nothing is there."""
    results = load(folder)
    if results is None:
        return None
    made = section(results)
    try:
        made.files.extend(suite_figures.draw(results, folder))
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
    write_atomically(folder / "table.md", markdown(made))
    write_atomically(folder / "table.csv", as_csv(CSV, numbers(results)))
    return made


def markdown(made: SuiteSection) -> str:
    """The section as Markdown."""
    lines = [f"# {made.title}", "", made.about, ""]
    lines += [f"Made by `{made.command}`, then `{made.command} --report`.", ""]
    for grid in made.grids:
        lines += [f"## {grid.title}", "", as_markdown(grid)]
    lines += ["## How to read it", "", *(f"- {note}" for note in made.notes), ""]
    if made.missing:
        lines += ["## Not there yet", "", *(f"- {lack.text()}" for lack in made.missing), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def numbers(results: Results) -> list[list[object]]:
    """A line for each optimizer, task and horizon."""
    lines: list[list[object]] = []
    for (task, steps, name), e in sorted(
        results.entries.items(), key=lambda item: (order((item[0][:2], None)), item[0][2])
    ):
        ratio = scores.ratios(results, name, loss_of).get((task, steps), math.nan)
        losses = [e.lr, e.loss, e.standard_error, e.test, e.last]
        times = [e.seconds, e.optimizer_seconds, ratio]
        texts = [[f"{x:.6g}" for x in part] for part in (losses, times)]
        lines.append([task, steps, e.parameters, name, *texts[0], e.diverged, *texts[1]])
    return lines
