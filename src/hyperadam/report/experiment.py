"""The tables and figures of one experiment as files: our numbers beside the paper's, what is
missing shown as missing."""

from __future__ import annotations

from pathlib import Path

from hyperadam.experiments.paper.experiment import Experiment
from hyperadam.experiments.paper.runner import Loaded
from hyperadam.files import write_atomically
from hyperadam.report import measures
from hyperadam.report.figures import draw_by_task, draw_panels
from hyperadam.report.plain import in_markdown
from hyperadam.report.section import Section, section
from hyperadam.report.tables import as_csv, as_markdown

#: With more tasks than this, final losses are also drawn by task.
MANY = 5
#: The columns of ``table.csv``.
CSV = (
    *("measure", "task", "steps", "optimizer", "runs", "diverged"),
    *("ours", "paper", "best", "tied", "missing", "of"),
)
NOTE = (
    "Mean ± standard error over runs, or, where it says so, over meta-seeds, each with the mean of "
    "its runs; the best mean of a column is bold, and ≈ marks those that are not clearly behind "
    "it. "
    "A difference is clear if a paired t-test over runs of the same seed, or over meta-seeds, "
    "finds it at 95 % and it "
    "is not too small to matter "
    f"({measures.smallest_in_words()}). In brackets the paper's number. – is what has not been "
    "computed."
)


def write_experiment(
    experiment: Experiment, loaded: Loaded, folder: Path, quick: bool = False
) -> Section:
    """Write ``table.md``, ``table.csv`` and, with matplotlib, ``curves`` (and ``tasks``) as SVG and
    PNG; the section."""
    results = loaded.results
    made = section(experiment, results, quick, loaded.damaged)
    write_atomically(folder / "table.md", markdown(made))
    write_atomically(folder / "table.csv", as_csv(CSV, numbers(experiment, made)))
    panels = []
    for figure in experiment.figures:
        by_label = {
            r.label: r
            for r in results
            if (r.task, r.steps) == (figure.task, figure.steps) and r.losses.numel()
        }
        group = [by_label[label] for label in experiment.optimizers if label in by_label]
        panels.append((figure.title, group))
    try:
        if any(group for _, group in panels):
            draw_panels([panel for panel in panels if panel[1]], folder / "curves")
        if len(experiment.tasks) > MANY and results:
            draw_by_task(results, experiment.tasks, experiment.optimizers, folder / "tasks")
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
    return made


def markdown(made: Section) -> str:
    """The tables and claims of a section as Markdown."""
    where = f"{made.paper} of the paper." if made.paper else "Not in the paper."
    lines = [f"# {made.title}", "", f"{where} {made.about}", ""]
    lines += [f"Made by `{made.command}`; computed: {made.extent}.", ""]
    for table in made.tables:
        grid = table.grid()
        lines += [f"## {grid.title}", "", as_markdown(grid)]
    lines += [NOTE, ""]
    if made.claims:
        lines += ["## What the paper claims", "", f"{made.chance.capitalize()}.", ""]
    for claim in made.claims:
        found = in_markdown(claim.own.text())
        lines.append(f"- {claim.text} **{claim.own.verdict.value.capitalize()}.** {found}")
        if twin := claim.twin:
            said = f"  The same said of `{twin.better}`: {twin.verdict.value}. "
            lines.append(said + in_markdown(twin.text()))
    return "\n".join(lines).rstrip("\n") + "\n"


def numbers(experiment: Experiment, made: Section) -> list[list[object]]:
    """The tables, a line for each number."""
    lines: list[list[object]] = []
    for table in made.tables:
        for row in table.rows:
            for (task, steps), entry in zip(table.columns, row.entries, strict=True):
                key = (task, row.optimizer, steps, table.measure)
                ours = "damaged" if entry.damaged else "" if entry.mean is None else entry.mean
                found = [entry.runs, entry.diverged, ours, experiment.published.get(key, "")]
                flags = [int(flag) for flag in (entry.best, entry.tied, entry.missing)]
                names = [table.measure, task, steps, row.optimizer]
                lines.append([*names, *found, *flags, entry.one])
    return lines
