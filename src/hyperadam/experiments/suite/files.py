"""The suite's results: one small file for each task and horizon, with the runs of all optimizers, rates and seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from hyperadam.experiments.training import made_with
from hyperadam.files import write_atomically
from hyperadam.files.names import safe_name

FORMAT = "hyperadam-suite/1"


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        optimizer, lr, seed: which one.
        loss: the training loss of the final weights on the task's fixed batches; ∞ if the run diverged.
        last: the mean loss of the last 5 % of the steps, each before its step.
        test: the loss of the final weights on the test set, if there is one and the run is a reported one.
        seconds: processor time of all steps, data and gradients included.
        optimizer_seconds: that of the optimizer's steps alone.
        diverged_at: the step at which loss or gradient ceased to be finite.
        curve: losses as means over equal blocks of steps, at most 200; empty for runs of tuning.
    """

    optimizer: str
    lr: float
    seed: int
    loss: float
    last: float
    test: float
    seconds: float
    optimizer_seconds: float
    diverged_at: int | None = None
    curve: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[str, float, int]:
        return self.optimizer, self.lr, self.seed


@dataclass
class TaskRuns:
    """All runs of a task at a horizon. ``start`` has the loss before the first step by seed."""

    task: str
    steps: int
    about: dict[str, Any]
    optimizers: dict[str, dict[str, Any]] = field(default_factory=dict)
    start: dict[int, float] = field(default_factory=dict)
    runs: dict[tuple[str, float, int], Run] = field(default_factory=dict)

    def of(self, optimizer: str, lr: float, seeds: tuple[int, ...]) -> list[Run] | None:
        """The runs of these seeds, or ``None`` if one is missing."""
        found = [self.runs.get((optimizer, lr, seed)) for seed in seeds]
        return None if None in found else [run for run in found if run]

    def forget(self, optimizer: str) -> None:
        """Drop all that an optimizer left here."""
        self.runs = {key: run for key, run in self.runs.items() if key[0] != optimizer}
        self.optimizers.pop(optimizer, None)


class Folder:
    """The folder of the result files. Several processes may write to it: a file is locked while it is changed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, task: str, steps: int) -> Path:
        return self.path / f"{safe_name(task)}.{steps}.json"

    def load(self, task: str, steps: int) -> TaskRuns | None:
        """The runs of a task at a horizon, if there are any."""
        path = self.file(task, steps)
        return read(path) if path.is_file() else None

    def all(self) -> list[TaskRuns]:
        """Everything that is there."""
        return [read(path) for path in sorted(self.path.glob("*.json"))]

    @contextmanager
    def changing(self, task: str, steps: int, about: dict[str, Any]) -> Iterator[TaskRuns]:
        """The runs as they are now, to change; written when the block is over. Runs of another version of the task are
        refused: numbers of the two must not meet in one table."""
        path = self.file(task, steps)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            task_runs = read(path) if path.is_file() else TaskRuns(task, steps, about)
            check_about(path, task_runs, about)
            yield task_runs
            write_atomically(path, _text(task_runs))


def check_about(path: Path, task_runs: TaskRuns, about: Mapping[str, Any]) -> None:
    """Refuse results of another task or other data."""
    if task_runs.about != about:
        differ = [
            key for key in {*task_runs.about, *about} if task_runs.about.get(key) != about.get(key)
        ]
        was, now = (
            {key: what.get(key) for key in sorted(differ)} for what in (task_runs.about, about)
        )
        raise ValueError(
            f"{path} holds results of another version of {task_runs.task}: {was} there, {now} here; delete it or name another folder"
        )


def read(path: Path) -> TaskRuns:
    """Stored runs; a file that is none is refused with a message that names it."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["format"] != FORMAT:
            raise ValueError(f"its format is {stored['format']!r}, expected {FORMAT!r}")
        found = [_run(record) for record in stored["runs"]]
        return TaskRuns(
            stored["task"],
            int(stored["steps"]),
            stored["about"],
            stored["optimizers"],
            {int(seed): float(loss) for seed, loss in stored["start"].items()},
            {run.key: run for run in found},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a result of the suite that can be read ({error}): delete it and run again"
        ) from error


def _run(record: dict[str, Any]) -> Run:
    numbers = {name: _number(record[name]) for name in _NUMBERS}
    return Run(**record | numbers | {"curve": tuple(map(_number, record["curve"]))})


#: What is infinite where a run diverged, and has no place in JSON then.
_NUMBERS = ("loss", "last", "test")


def _number(value: float | None) -> float:
    return math.inf if value is None else float(value)


def _json(value: float, digits: int = 7) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _text(task_runs: TaskRuns) -> str:
    """JSON with a line for each run, so that changes are small."""
    lines = []
    for run in sorted(task_runs.runs.values(), key=lambda run: run.key):
        record = asdict(run) | {name: _json(getattr(run, name)) for name in _NUMBERS}
        record |= {"curve": [_json(x, 5) for x in run.curve]}
        record |= {k: _json(record[k], 5) for k in ("seconds", "optimizer_seconds")}
        lines.append(json.dumps(record, allow_nan=False, separators=(",", ":")))
    head = {
        "format": FORMAT,
        "task": task_runs.task,
        "steps": task_runs.steps,
        "about": task_runs.about,
        "start": {str(seed): _json(loss) for seed, loss in sorted(task_runs.start.items())},
        "optimizers": dict(sorted(task_runs.optimizers.items())),
        "made_with": made_with("as installed"),
    }
    text = json.dumps(head, indent=1, allow_nan=False)[:-2]
    return text + ',\n "runs": [\n' + ",\n".join(lines) + "\n]}\n"
