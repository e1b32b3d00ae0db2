"""What a step costs, all optimizers of a task in turn in one process: what else the machine does then meets all of them."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hyperadam.experiments.suite.rivals import Rival, Training
from hyperadam.experiments.suite.runs import about
from hyperadam.experiments.suite.tasks import SuiteTask
from hyperadam.experiments.training import made_with
from hyperadam.files import write_atomically
from hyperadam.tasks.modules import ModuleTask

FORMAT = "hyperadam-suite-times/1"
#: Rounds, in each of which every optimizer takes so many steps, but no more than fit into so many seconds, and at least two.
ROUNDS, STEPS, SECONDS = 7, 10, 0.3
#: What schedules are told; far more than are taken.
HORIZON = 1_000


class Cost(NamedTuple):
    """Seconds of processor time for a step with its gradient and data, and of it the optimizer's own."""

    seconds: float
    optimizer_seconds: float


class _Runner:
    """One optimizer at work on a module of its own."""

    def __init__(self, learner: ModuleTask, rival: Rival) -> None:
        self.learner, self.module, self.taken = learner, learner.module(0), 0
        lr = rival.rates[0] if rival.rates else rival.lr
        self.training: Training = rival.make(self.module, lr, HORIZON)
        self.training.begin()

    def steps(self, count: int) -> Cost:
        """Take some steps; the mean cost of one."""
        own = 0.0
        began = time.process_time()
        for _ in range(count):
            loss = self.learner.module_loss(self.module, 0, self.taken)
            self.training.zero_grad()
            loss.backward()
            before = time.process_time()
            self.training.step()
            own += time.process_time() - before
            self.taken += 1
        return Cost((time.process_time() - began) / count, own / count)


def measure(task: SuiteTask, rivals: Sequence[Rival]) -> dict[str, Cost]:
    """The medians over rounds, by optimizer; of those that apply to the task."""
    template = task.task.module(0)
    runners = {r.name: _Runner(task.task, r) for r in rivals if r.applies(template)}
    for runner in runners.values():
        runner.steps(1)  # makes the state
    counts = {
        name: max(2, min(STEPS, int(SECONDS / max(runner.steps(1).seconds, 1e-6))))
        for name, runner in runners.items()
    }
    rounds = [
        {name: runner.steps(counts[name]) for name, runner in runners.items()}
        for _ in range(ROUNDS)
    ]
    return {
        name: Cost(
            *(statistics.median(values) for values in zip(*(r[name] for r in rounds), strict=True))
        )
        for name in runners
    }


def measure_all(
    tasks: Sequence[SuiteTask],
    rivals: Sequence[Rival],
    path: Path,
    progress: Callable[[str], None] = lambda text: None,
) -> None:
    """Measure task by task and keep each in ``path`` as soon as it is done; other tasks there stay."""
    for task in tasks:
        costs = measure(task, rivals)
        record = _read(path)
        by_name = {rival.name: rival for rival in rivals}
        record["tasks"][task.name] = {
            "about": about(task),
            "made_with": made_with("as installed"),
            "optimizers": {
                name: {
                    "record": by_name[name].record(),
                    "seconds": float(f"{cost.seconds:.5g}"),
                    "optimizer_seconds": float(f"{cost.optimizer_seconds:.5g}"),
                }
                for name, cost in costs.items()
            },
        }
        write_atomically(path, json.dumps(record, indent=1, allow_nan=False) + "\n")
        own = ", ".join(f"{name} {1e3 * cost.seconds:.2f}" for name, cost in costs.items())
        progress(f"{task.name}  ms a step: {own}")


def load(path: Path) -> dict[str, dict[str, tuple[Cost, dict[str, Any]]]]:
    """What was measured, by task and optimizer, with the record of the optimizer; nothing if there is no file."""
    return {
        task: {
            name: (Cost(entry["seconds"], entry["optimizer_seconds"]), entry["record"])
            for name, entry in found["optimizers"].items()
        }
        for task, found in _read(path)["tasks"].items()
    }


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {"format": FORMAT, "tasks": {}}
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if stored["format"] != FORMAT or not isinstance(stored["tasks"], dict):
            raise ValueError(f"its format is {stored['format']!r}, expected {FORMAT!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} holds no times of the suite ({error}): delete it and measure again"
        ) from error
    return stored
