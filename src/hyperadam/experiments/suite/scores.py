"""The suite's scores, from its result files alone: losses against tuned Adam's, steps and seconds, VeLOdrome's speed-ups."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hyperadam.experiments.suite.files import Run, TaskRuns
from hyperadam.experiments.suite.runs import FACTORS, LAST, SEEDS, VALIDATION
from hyperadam.experiments.suite.timing import Cost

#: What losses are put beside.
REFERENCE = "adam-linear"
#: A loss that is at most so much above another counts as level with it.
LEVEL = 0.01
#: Resamples of a bootstrap, and the share of them that an interval holds.
RESAMPLES, COVERED = 2_000, 0.95
ENVELOPES = Path(__file__).parent / "velodrome.json"


@dataclass(frozen=True)
class Entry:
    """What an optimizer did on a task at a horizon, over the reported seeds.

    ``loss`` and ``test`` are means, ∞ if a run diverged; ``curve`` is the mean over runs of equally long blocks of steps, and
    ``last`` its mean over the last 5 % of the steps; ``seconds`` are processor time for a step, as measured beside the others,
    or else in these runs.
    """

    task: str
    steps: int
    parameters: int
    optimizer: str
    lr: float
    losses: tuple[float, ...]
    tests: tuple[float, ...]
    last: float
    diverged: int
    seconds: float
    optimizer_seconds: float
    curve: np.ndarray

    @property
    def loss(self) -> float:
        return statistics.fmean(self.losses)

    @property
    def test(self) -> float:
        return statistics.fmean(self.tests)

    @property
    def standard_error(self) -> float:
        """Of the mean loss; undefined for one run or if one diverged."""
        if len(self.losses) < 2 or not math.isfinite(self.loss):
            return math.nan
        return statistics.stdev(self.losses) / math.sqrt(len(self.losses))


Pair = tuple[str, int]


class Interval(NamedTuple):
    """A number with the ends of its interval."""

    value: float
    low: float
    high: float


class Results:
    """All complete entries of some tasks: by task, horizon and optimizer.

    ``times`` are what steps cost, measured side by side; they count where the optimizer is still the same.
    """

    def __init__(
        self,
        cells: Iterable[TaskRuns],
        times: Mapping[str, Mapping[str, tuple[Cost, dict[str, Any]]]] | None = None,
        seeds: Sequence[int] = SEEDS,
    ) -> None:
        self.cells = {(task_runs.task, task_runs.steps): task_runs for task_runs in cells}
        self.entries: dict[tuple[str, int, str], Entry] = {}
        for pair, task_runs in self.cells.items():
            for optimizer in task_runs.optimizers:
                lr = rate(task_runs, optimizer)
                runs = None if lr is None else task_runs.of(optimizer, lr, tuple(seeds))
                if runs:
                    found = entry(task_runs, runs)
                    cost, record = (times or {}).get(task_runs.task, {}).get(optimizer, (None, {}))
                    if cost and record == task_runs.optimizers[optimizer]:
                        found = replace(found, **cost._asdict())
                    self.entries[(*pair, optimizer)] = found

    def pairs(self, *optimizers: str) -> list[Pair]:
        """The tasks and horizons at which all of these are there."""
        return [
            pair
            for pair in self.cells
            if all((*pair, optimizer) in self.entries for optimizer in optimizers)
        ]

    def optimizers(self) -> list[str]:
        """Those with at least one entry."""
        return list(dict.fromkeys(optimizer for _, _, optimizer in self.entries))

    def at(self, pair: Pair, optimizer: str) -> Entry:
        return self.entries[(*pair, optimizer)]


def rate(task_runs: TaskRuns, optimizer: str) -> float | None:
    """The rate of the reported runs: the one given, or the best on the validation seed."""
    settings = task_runs.optimizers[optimizer]
    if "lr" in settings:
        return float(settings["lr"])
    tried = {
        run.lr: run.loss
        for run in task_runs.runs.values()
        if run.optimizer == optimizer and run.seed == VALIDATION
    }
    complete = set(settings["first_rates"]) <= set(tried)
    return min(tried, key=lambda lr: (tried[lr], lr)) if complete else None


def entry(task_runs: TaskRuns, runs: Sequence[Run]) -> Entry:
    """Runs of several seeds as one."""
    curve = np.mean([run.curve for run in runs], axis=0)
    first = runs[0]
    return Entry(
        task_runs.task,
        task_runs.steps,
        int(task_runs.about["parameters"]),
        first.optimizer,
        first.lr,
        tuple(run.loss for run in runs),
        tuple(run.test for run in runs),
        statistics.fmean(run.last for run in runs),
        sum(failed(task_runs, run) for run in runs),
        statistics.median(run.seconds for run in runs) / task_runs.steps,
        statistics.median(run.optimizer_seconds for run in runs) / task_runs.steps,
        curve,
    )


def failed(task_runs: TaskRuns, run: Run) -> bool:
    """Whether a run diverged: its loss ceased to be finite, or is above what it began with."""
    return run.diverged_at is not None or run.loss > task_runs.start[run.seed]


def ratios(
    results: Results, optimizer: str, value: Callable[[Entry], float], against: str = REFERENCE
) -> dict[Pair, float]:
    """What an optimizer has in the place of 1 of another's, by pair; where both are there and the other's is a number."""
    found = {}
    for pair in results.pairs(optimizer, against):
        theirs = value(results.at(pair, against))
        if 0 < theirs < math.inf:
            found[pair] = value(results.at(pair, optimizer)) / theirs
    return found


def count_level(numbers: Iterable[float]) -> int:
    """How many ratios are below 1, or level with it."""
    return sum(number <= 1 + LEVEL for number in numbers)


def interquartile_mean(numbers: Sequence[float]) -> float:
    """The mean of the middle half; numbers on its borders count in part, so that it is smooth in how many there are."""
    ordered = np.sort(np.asarray(numbers, dtype=np.float64))
    if not len(ordered):
        return math.nan
    edges = np.arange(len(ordered) + 1) / len(ordered)
    weights = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0, None)
    inside = weights > 1e-12
    return float((ordered[inside] * weights[inside]).sum() / weights[inside].sum())


def middle(found: Mapping[Pair, float]) -> Interval:
    """The interquartile mean of ratios, taken of their logarithms, with a bootstrap interval over tasks.

    Horizons of one task are not independent, so that whole tasks are drawn, with all of their horizons.
    """
    logs: dict[str, list[float]] = {}
    for (task, _), ratio in found.items():
        logs.setdefault(task, []).append(math.log(ratio) if ratio < math.inf else math.inf)
    tasks = list(logs.values())
    value = interquartile_mean([x for part in tasks for x in part])
    if len(tasks) < 3:
        return Interval(math.exp(value), math.nan, math.nan)
    rng = np.random.default_rng(0)
    drawn = []
    for chosen in rng.integers(len(tasks), size=(RESAMPLES, len(tasks))):
        drawn.append(interquartile_mean([x for n in chosen for x in tasks[n]]))
    tail = (1 - COVERED) / 2
    # of the sorted resamples and not between them: some may be infinite
    low, high = (float(np.sort(drawn)[round(q * (RESAMPLES - 1))]) for q in (tail, 1 - tail))
    return Interval(math.exp(value), math.exp(low), math.exp(high))


def smooth(curve: np.ndarray) -> np.ndarray:
    """At each point the mean of the 5 % of all points that end there; not a number before there are as many."""
    width = max(1, round(LAST * len(curve)))
    means = np.convolve(curve, np.full(width, 1 / width), "valid")
    return np.concatenate([np.full(width - 1, np.nan), means])


def steps_to(reached: Entry, loss: float) -> float:
    """The steps after which the smoothed curve is at or below ``loss``; ∞ if it never is."""
    with np.errstate(invalid="ignore"):
        below = np.nonzero(smooth(reached.curve) <= loss)[0]
    return float((below[0] + 1) * reached.steps / len(reached.curve)) if len(below) else math.inf


def steps_to_reference(
    results: Results, optimizer: str, value: Callable[[Entry], float] = lambda entry: 1.0
) -> dict[Pair, float]:
    """How many steps, each costing ``value``, it takes to the reference's loss at the end, in the place of 1 of its own."""
    found = {}
    for pair in results.pairs(optimizer, REFERENCE):
        reference, mine = results.at(pair, REFERENCE), results.at(pair, optimizer)
        target = smooth(reference.curve)[-1]
        own = steps_to(reference, float(target)) * value(reference)
        found[pair] = steps_to(mine, float(target)) * value(mine) / own
    return found


@lru_cache(maxsize=1)
def envelopes() -> dict[str, list[list[float]]]:
    """VeLOdrome's: by task, steps and the lowest training loss of sixty tuned baselines after so many."""
    found: dict[str, list[list[float]]] = json.loads(ENVELOPES.read_text(encoding="utf-8"))[
        "envelopes"
    ]
    return found


def speed_up(envelope: str, steps: int, loss: float) -> tuple[float, bool]:
    """How many steps the envelope needs to ``loss``, in the place of one; and whether it gets there at all: if it does not
    within the steps that are published, the number is the least that it can be."""
    points = envelopes()[envelope]
    for step, lowest in points:
        if lowest <= loss:
            return step / steps, True
    return points[-1][0] / steps, False


def speed_ups(results: Results, optimizer: str, steps: int) -> dict[str, tuple[float, bool]]:
    """VeLOdrome's speed-ups of an optimizer at a horizon, by task."""
    found = {}
    for pair in results.pairs(optimizer):
        envelope = results.cells[pair].about["envelope"]
        if pair[1] == steps and envelope:
            loss = results.at(pair, optimizer).loss
            found[pair[0]] = speed_up(envelope, steps, loss) if loss < math.inf else (0.0, True)
    return found


def sensitivity(
    results: Results, optimizer: str, task: str, steps: int, seeds: Sequence[int] = SEEDS
) -> dict[float, float]:
    """The mean loss by the factor that multiplies the rate, where all runs are there."""
    task_runs = results.cells.get((task, steps))
    base = rate(task_runs, optimizer) if task_runs and optimizer in task_runs.optimizers else None
    found: dict[float, float] = {}
    if task_runs is None or base is None:
        return found
    for factor in FACTORS:
        runs = task_runs.of(optimizer, float(f"{base * factor:.6g}"), tuple(seeds))
        if runs:
            found[factor] = statistics.fmean(run.loss for run in runs)
    return found
