"""The paper beside our results, as one JSON document: tables, claims with verdicts, curves, settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperadam.experiments.experiment import Claim, Experiment
from hyperadam.experiments.rates import GRIDS, RATES, GridPoint, TunedRate, read_grids, read_rates
from hyperadam.experiments.runner import Loaded
from hyperadam.files.names import safe_name
from hyperadam.report import curves, measures
from hyperadam.report.claims import Judgement, Outcome, Results, Verdict, about, judge
from hyperadam.report.figures import choose_looks
from hyperadam.report.statistics import Contrast, by_chance
from hyperadam.results import Result

#: The paper's rule and ours with bounded decay rates: a claim about one is judged for the other too.
TWINS = {"hyperadam-paper": "hyperadam", "hyperadam": "hyperadam-paper"}
#: What is wrong with the file of a cell, by task, label of the optimizer and steps.
Damage = Mapping[tuple[str, str, int], str]
#: The experiment whose first table opens the page.
HEADLINE = "activations"


def document(
    found: Sequence[tuple[Experiment, Loaded]],
    tuning: Path | None = None,
    quick: bool = False,
    suite: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that the page shows, from experiments with their results, and the suite's section if there is one."""
    parts = [
        section(experiment, loaded.results, quick, loaded.damaged) for experiment, loaded in found
    ]
    verdicts = [claim["verdict"] for part in parts for claim in part["claims"]]
    everything = [result for _, loaded in found for result in loaded.results]
    panels: dict[str, Any] = {}
    for part in parts:
        panels |= part.pop("curves")
    return {
        "quick": quick,
        "counts": {verdict.value: verdicts.count(verdict.value) for verdict in Verdict},
        "chance": chance([pair for part in parts for pair in part.pop("contrasts").items()]),
        "headline": next(
            (part["name"] for part in parts if part["name"] == HEADLINE),
            parts[0]["name"] if parts else None,
        ),
        "experiments": parts,
        "settings": {
            "versions": versions(everything),
            "weights": weights(everything),
            "rates": rates(everything, tuning),
        },
        "looks": {label: look._asdict() for label, look in choose_looks(everything).items()},
        "curves": panels,
        "suite": suite,
    }


def section(
    experiment: Experiment,
    results: Sequence[Result],
    quick: bool = False,
    damaged: Damage | None = None,
) -> dict[str, Any]:
    """One experiment: tables, claims, and the curves of every task; ``damaged`` cells are marked."""
    damaged = damaged or {}
    by_cell: dict[tuple[str, str, int], Result] = {(r.task, r.label, r.steps): r for r in results}
    cells = [(task, steps) for task in experiment.tasks for steps in experiment.steps]
    trained = [r for r in results if r.losses.numel()]  # and not only timed
    labels = list(dict.fromkeys([*experiment.optimizers, *(r.label for r in results)]))
    titles = {(figure.task, figure.steps): figure.title for figure in experiment.figures}
    panels, drawn = [], {}
    for task, steps in sorted(cells, key=lambda cell: cell not in titles):
        group = [
            r
            for label in labels
            if (r := by_cell.get((task, label, steps))) is not None and r.losses.numel()
        ]
        if group:
            name = f"{experiment.name}-{safe_name(task)}-{steps}"
            drawn[name] = curves.panel(group)
            shown = not titles or (task, steps) in titles
            title = titles.get((task, steps), f"{task}, {steps:,} steps")
            panels.append(
                {
                    "id": name,
                    "title": title,
                    "task": task,
                    "steps": steps,
                    "shown": shown,
                    "alt": _alt(task, group),
                }
            )
    judgements = [(claim, *_judge(experiment, claim, by_cell)) for claim in experiment.claims]
    contrasts = {
        (claim.measure, c.task, c.steps, *sorted((one.better, c.other))): c.contrast
        for claim, *both in judgements
        for one in both
        if one
        for c in one.comparisons
        if c.contrast
    }
    expected = {(task, label, steps) for task, steps in cells for label in experiment.optimizers}
    return {
        "name": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "about": experiment.about,
        "command": f"hyperadam reproduce {experiment.name}" + (" --quick" if quick else ""),
        "expected": len(expected),
        "measured": len(expected & set(by_cell)),
        "short": sum(r.runs < experiment.runs for r in trained),
        "planned_runs": experiment.runs,
        "runs": sorted({r.runs for r in trained}),
        "seeds": sorted({_ranges(r.seeds) for r in trained}),
        "final_batches": sorted({int(r.settings.get("final_batches", r.steps)) for r in trained}),
        "steps": list(experiment.steps),
        "chance": chance(list(contrasts.items())),
        "contrasts": contrasts,
        "tables": [
            table(experiment, by_cell, labels, measure, damaged)
            for measure in shown_measures(experiment)
        ],
        "claims": [_claim(experiment, n, judged) for n, judged in enumerate(judgements, 1)],
        "panels": panels,
        "curves": drawn,
    }


def extent(part: Mapping[str, Any]) -> str:
    """How much of a :func:`section` is there: ``8 of 12 cells``, and how many of them have fewer runs than planned."""
    short = (
        f", {part['short']} of them with fewer than {part['planned_runs']} runs"
        if part["short"]
        else ""
    )
    return f"{part['measured']} of {part['expected']} cells{short}"


def shown_measures(experiment: Experiment) -> list[str]:
    """The measures that the experiment is about, in the order of :data:`~.measures.MEASURES`."""
    named = {claim.measure for claim in experiment.claims} | {
        key[3] for key in experiment.published
    }
    named |= {"test_loss", "test_top1", "test_top2"} if experiment.test else set()
    named |= {"final_loss"} if experiment.figures or not named else set()
    known = list(measures.MEASURES)
    return sorted(
        named, key=lambda name: (known.index(name) if name in known else len(known), name)
    )


def columns_of(experiment: Experiment, measure: str) -> list[tuple[str, int]]:
    """The tasks and numbers of steps at which a measure is of interest: where the paper or a claim names it, losses and test
    metrics everywhere."""
    named = [(task, steps) for task, _, steps, name in experiment.published if name == measure]
    for claim in experiment.claims:
        if claim.measure == measure:
            named += about(claim, experiment.tasks, experiment.steps)
    if measure == "final_loss" or measure.startswith("test_"):
        named = [(task, steps) for task in experiment.tasks for steps in experiment.steps] + named
    return list(dict.fromkeys(named))


def table(
    experiment: Experiment,
    results: Results,
    labels: Sequence[str],
    measure: str,
    damaged: Damage,
) -> dict[str, Any]:
    """A row an optimizer, a column a task: our number, the paper's, the winner, and who is not clearly behind it."""
    grid: dict[str, list[Any]] = {label: [] for label in labels}
    columns = columns_of(experiment, measure)
    for task, steps in columns:
        numbers = {}
        for label in labels:
            result = results.get((task, label, steps))
            found = measures.values(result, measure) if result else None
            if found is not None:
                numbers[label] = found
        published = {
            label: experiment.published.get((task, label, steps, measure)) for label in labels
        }
        best = _best(numbers, measure)
        for label in labels:
            mine = results.get((task, label, steps))
            cell: dict[str, Any] = {"missing": label not in numbers}
            if reason := damaged.get((task, label, steps)):
                cell["damaged"] = reason
            if (number := published[label]) is not None:
                cell["paper"] = measures.write_published(number, measure)
            if label in numbers:
                cell |= _cell(numbers[label], measure)
                cell["best"] = label == best
                if best and label != best and mine:
                    difference = measures.contrast(mine, results[task, best, steps], measure)
                    cell["tied"] = bool(difference and difference.tested and not difference.clear)
            grid[label].append(cell)
    return {
        "measure": measure,
        "title": measures.describe(measure).title,
        "lower": measures.describe(measure).lower,
        "one": measures.describe(measure).one,
        "columns": [{"task": task, "steps": steps} for task, steps in columns],
        "rows": [{"optimizer": label, "cells": grid[label]} for label in labels],
    }


def _cell(numbers: Any, measure: str) -> dict[str, Any]:
    summary = measures.summarize(numbers)
    cell: dict[str, Any] = {"runs": summary.runs, "diverged": summary.diverged}
    if summary.diverged:
        cell["failed"] = measures.describe(measure).failed
        rest = numbers[numbers.isfinite()]
        return (
            cell | {"rest": measures.write(measures.summarize(rest), measure)}
            if len(rest)
            else cell
        )
    number = summary.mean
    return cell | {"text": measures.write(summary, measure), "mean": float(f"{number:.6g}")}


def _best(numbers: Mapping[str, Any], measure: str) -> str | None:
    """The optimizer with the best mean, if there are others and it did not diverge."""
    means = {
        label: float(found.mean()) for label, found in numbers.items() if found.isfinite().all()
    }
    if len(numbers) < 2 or not means:
        return None
    return min(
        means, key=lambda label: means[label] if measures.describe(measure).lower else -means[label]
    )


def _judge(
    experiment: Experiment, claim: Claim, results: Results
) -> tuple[Judgement, Judgement | None]:
    """The judgement of a claim, and of the same claim about the twin of its optimizer."""
    cells = about(claim, experiment.tasks, experiment.steps)
    twin = TWINS.get(claim.better)
    if twin not in experiment.optimizers or twin in claim.worse:
        return judge(claim, results, cells), None
    return judge(claim, results, cells), judge(claim, results, cells, twin)


def _claim(
    experiment: Experiment, number: int, judged: tuple[Claim, Judgement, Judgement | None]
) -> dict[str, Any]:
    claim, own, twin = judged
    return {
        "id": f"{experiment.name}-claim-{number}",
        "text": claim.text,
        "measure": measures.describe(claim.measure).title,
        **_judgement(own),
        "twin": _judgement(twin) if twin else None,
    }


def chance(contrasts: Sequence[tuple[Any, Contrast]]) -> str:
    """How many comparisons were tested, are clear, and would look so by chance."""
    distinct = dict(contrasts)
    tested = [found for found in distinct.values() if found.tested]
    significant = sum(found.significant for found in tested)
    expected = by_chance(tested)
    return (
        f"{len(tested)} comparisons were tested and {significant} found a difference; if no "
        f"optimizer differed from another, about {expected:.{expected < 2:d}f} would have"
        if tested
        else "no comparison has runs enough to be tested"
    )


def _judgement(judged: Judgement) -> dict[str, Any]:
    return {
        "better": judged.better,
        "verdict": judged.verdict.value,
        "finding": finding(judged),
        "comparisons": [
            {
                "task": c.task,
                "steps": c.steps,
                "other": c.other,
                "outcome": c.outcome.value,
                "text": c.text,
            }
            for c in judged.comparisons
        ],
    }


def finding(judged: Judgement) -> str:
    """What we find, in a sentence: how often clearly better, not clearly different, worse, or not measured, and where."""
    counts, total = judged.counts, len(judged.comparisons)
    measured = total - counts[Outcome.MISSING]
    if not measured:
        return f"{judged.better}: no results yet."
    parts = [
        f"clearly better in {counts[Outcome.BETTER]} of {measured} comparison{'' if measured == 1 else 's'}"
    ]
    for outcome, words in (
        (Outcome.WORSE, "clearly worse"),
        (Outcome.LEVEL, "too close to matter"),
        (Outcome.UNCLEAR, "not clearly different"),
    ):
        if counts[outcome]:
            parts.append(f"{words} in {counts[outcome]} ({_where(judged, outcome)})")
    if counts[Outcome.SINGLE]:
        parts.append(
            f"one number each in {counts[Outcome.SINGLE]}, so that nothing is clear "
            f"({_where(judged, Outcome.SINGLE)})"
        )
    if counts[Outcome.MISSING]:
        parts.append(f"{counts[Outcome.MISSING]} more not measured")
    parts += [f"it diverged in {d.diverged} of {d.runs} runs on {d.task}" for d in judged.diverged]
    return f"{judged.better}: {'; '.join(parts)}."


def _where(judged: Judgement, outcome: Outcome, most: int = 4) -> str:
    """The comparisons that end so; with their size where nothing says how clear it is."""
    several_lengths = len({c.steps for c in judged.comparisons}) > 1
    places = []
    for c in judged.comparisons:
        if c.outcome is outcome:
            place = f"{c.other} on {c.task}" + (f" at {c.steps:,} steps" if several_lengths else "")
            size = c.text.removesuffix(" (one run)")
            places.append(f"{size} than {place}" if outcome is Outcome.SINGLE else place)
    return ", ".join(places[:most]) + (
        f" and {len(places) - most} more" if len(places) > most else ""
    )


def versions(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Every set of versions that computed results, and how many it computed."""
    counts: dict[tuple[tuple[str, str], ...], int] = {}
    for result in results:
        key = tuple(sorted(result.made_with.items()))
        counts[key] = counts.get(key, 0) + 1
    return [{"made_with": dict(key), "results": count} for key, count in sorted(counts.items())]


def weights(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Every set of weights that was used: what it is called, its rule, configuration and hash."""
    found = {
        (r.label, r.settings["weights"]): {
            "optimizer": r.label,
            "rule": r.settings.get("rule", ""),
            "config": r.settings.get("config", {}),
            "step_size": r.lr,
            "sha256": r.settings["weights"],
        }
        for r in results
        if "weights" in r.settings
    }
    return [found[key] for key in sorted(found)]


def rates(results: Iterable[Result], folder: Path | None) -> list[dict[str, Any]]:
    """The learning rate of every hand-made optimizer on every task, and the grid in ``folder``
    that it was chosen from."""
    stored = read_rates(folder / RATES) if folder else ()
    points = read_grids(folder / GRIDS) if folder else ()
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for r in results:
        if "weights" not in r.settings and r.losses.numel():
            row = {
                "task": r.task,
                "steps": r.steps,
                "optimizer": r.label,
                "lr": r.lr,
                "source": r.lr_source,
            }
            found[r.task, r.steps, r.label] = row | _tuning(r, stored, points)
    return [found[key] for key in sorted(found)]


def _tuning(
    result: Result, stored: Sequence[TunedRate], points: Sequence[GridPoint]
) -> dict[str, Any]:
    """The stored grid that the result's rate comes from, if there is one."""
    for rate in stored:
        if (rate.task, rate.optimizer, rate.lr) == (result.task, result.optimizer, result.lr):
            grid = [
                [point.lr, point.score if math.isfinite(point.score) else None, point.diverged]
                for point in points
                if point[:3] == rate[:3]
            ]
            seeds = _ranges(range(rate.first_seed, rate.first_seed + rate.runs))
            return {"grid": grid, "at_edge": rate.at_edge, "tuning_seeds": seeds}
    return {}


def _ranges(seeds: Sequence[int]) -> str:
    """``0–99``, or a list where seeds do not follow each other."""
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))


def _alt(task: str, group: Sequence[Result]) -> str:
    """The figure in words: where every curve ends."""
    ends = []
    for r in group:
        last = float(r.losses[:, -1].double().mean())
        ends.append(
            f"{r.label} {last:.3g}"
            if math.isfinite(last)
            else f"{r.label} diverged in {r.diverged} of {r.runs} runs"
        )
    return f"Training loss by step on {task}. Mean loss at the last step: {', '.join(ends)}."
