"""How long updates take, measured on the real optimizers, and how long it takes to a loss, from
curves and times together."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hyperadam import tasks
from hyperadam.data import draws
from hyperadam.experiments.training import made_with
from hyperadam.experiments.training.optimizers import OptimizerSpec
from hyperadam.files import Damaged
from hyperadam.optim.learned import LearnedOptimizer
from hyperadam.results import Result, settings_key
from hyperadam.results.sealed import read_sealed, write_sealed
from hyperadam.tasks import Task

FORMAT = "hyperadam-time/1"
#: The optimizer whose lowest loss the others are to reach.
REFERENCE = "adam"
#: Rounds, in each of which every optimizer is timed in turn, and updates a round; of the quick
#: version below.
ROUNDS, UPDATES = 15, 60
QUICK_ROUNDS, QUICK_UPDATES = 3, 10


def settings(
    specs: Sequence[OptimizerSpec],
    timed: Sequence[str],
    results: Iterable[Result],
    quick: bool = False,
) -> dict[str, Any]:
    """All that a measurement depends on, but for the machine."""
    return {
        "timed": list(timed),
        "optimizers": {spec.label: spec.settings() for spec in specs},
        "curves": sorted(result.key for result in results),
        "rounds": QUICK_ROUNDS if quick else ROUNDS,
        "updates": QUICK_UPDATES if quick else UPDATES,
        "threads": 1,
    }


def is_measured(path: Path, wanted: dict[str, Any]) -> bool:
    """Whether ``path`` holds a measurement with these settings."""
    return path.is_file() and read(path).get("key") == settings_key(wanted)


def measure(
    specs: Sequence[OptimizerSpec],
    timed: Sequence[str],
    results: Sequence[Result],
    path: Path,
    quick: bool = False,
    progress: Callable[[float], None] = lambda share: None,
) -> dict[str, Any]:
    """Time an update on the tasks ``timed`` and, on those of ``results`` (curves), a step with its
    gradient; write ``path``.

    Everything runs on one thread. A task's optimizers take turns, so that what else the machine
    does meets all of them.
    """
    wanted = settings(specs, timed, results, quick)
    rounds, updates = wanted["rounds"], wanted["updates"]
    names = list(dict.fromkeys([*timed, *(result.task for result in results)]))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    entries: list[dict[str, Any]] = []
    try:
        for number, task in enumerate(names):
            seconds, gradient = step_seconds(task, specs, rounds, updates)
            progress((number + 1) / len(names))
            for label, values in seconds.items():
                entries.append(_entry(task, label, 1, "seconds_per_step", values))
            entries.append(_entry(task, "", 1, "seconds_per_gradient", gradient))
            steps = sorted({result.steps for result in results if result.task == task})
            for n in steps:
                curves = {
                    result.label: result
                    for result in results
                    if result.task == task and result.steps == n
                }
                step = {
                    label: statistics.median(v) + statistics.median(gradient)
                    for label, v in seconds.items()
                }
                target, reached = steps_to_reference(curves)
                for label, at in reached.items():
                    entry = _entry(
                        task,
                        label,
                        n,
                        "seconds_to_loss",
                        [math.inf if at is None else at * step[label]],
                    )
                    entries.append(entry | {"loss": target, "step": at})
    finally:
        torch.set_num_threads(threads)
    record = {
        "format": FORMAT,
        "key": settings_key(wanted),
        "settings": wanted,
        "measures": entries,
        "ratios": _ratios(entries),
        "made_with": made_with("as installed"),
    }
    write_sealed(path, record)
    return record


def read(path: Path) -> dict[str, Any]:
    """What :func:`measure` wrote; a file that is something else is refused, and named."""
    return read_sealed(path, FORMAT)


def values(path: Path) -> dict[tuple[str, str, int, str], float]:
    """The measured medians by task, optimizer, steps and measure, as in
    :attr:`~.experiment.Experiment.published`."""
    return {
        (e["task"], e["optimizer"], e["steps"], e["measure"]): math.inf
        if e["value"] is None
        else float(e["value"])
        for e in (read(path)["measures"] if path.is_file() else [])
        if e["optimizer"]
    }


def attach(results: Sequence[Result], path: Path) -> list[Result]:
    """Results with what ``path`` measured on them; what was timed without a curve becomes a result
    without one."""
    if not path.is_file():
        return list(results)
    record = read(path)
    try:
        return _attach(results, record)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Damaged(f"{path} is damaged: it holds no measurements ({error})") from error


def _attach(results: Sequence[Result], record: dict[str, Any]) -> list[Result]:
    found: dict[tuple[str, str, int], dict[str, Tensor]] = {}
    for entry in record["measures"]:
        numbers = torch.tensor(
            [math.inf if x is None else x for x in entry["values"]], dtype=torch.float64
        )
        here = found.setdefault((entry["task"], entry["optimizer"], entry["steps"]), {})
        here[entry["measure"]] = numbers
        if entry.get("step") is not None:
            here["steps_to_loss"] = torch.tensor([entry["step"]], dtype=torch.float64)
    with_time = [replace(r, measures=found.pop((r.task, r.label, r.steps), {})) for r in results]
    wanted = record["settings"]
    for (task, label, steps), more in found.items():
        if task in wanted["timed"] and label in wanted["optimizers"]:
            runs = len(next(iter(more.values())))
            about = wanted["optimizers"][label] | {"task": task, "steps": steps}
            nothing = torch.full((runs,), math.nan)
            with_time.append(
                Result(
                    about,
                    tuple(range(runs)),
                    torch.empty(runs, 0),
                    nothing,
                    (None,) * runs,
                    None,
                    record["made_with"],
                    label,
                    measures=more,
                )
            )
    return with_time


def steps_to_reference(curves: dict[str, Result]) -> tuple[float | None, dict[str, int | None]]:
    """The lowest loss on the reference's mean curve, and the step at which each mean curve is
    there, ``None``: never.

    Curves are smoothed, for the loss of one batch says little: means over the last hundredth of all
    steps.
    """
    if REFERENCE not in curves:
        return None, {}
    smooth = {label: _smooth(result.losses) for label, result in curves.items()}
    lowest = float(smooth[REFERENCE].min())
    if not math.isfinite(lowest):
        return None, {}
    window = _window(next(iter(curves.values())).steps)
    reached: dict[str, int | None] = {}
    for label, curve in smooth.items():
        below = (curve <= lowest).nonzero()
        reached[label] = int(below[0]) + window if len(below) else None
    return lowest, reached


def _window(steps: int) -> int:
    return max(1, steps // 100)


def _smooth(losses: Tensor) -> Tensor:
    """Moving means of the mean over runs, infinite from where a run diverged."""
    return losses.double().mean(0).unfold(0, _window(losses.shape[1]), 1).mean(1)


def step_seconds(
    name: str, specs: Sequence[OptimizerSpec], rounds: int, updates: int
) -> tuple[dict[str, list[float]], list[float]]:
    """The median time of an update in each round, for every optimizer, and of a gradient."""
    task = tasks.get(name)
    optimizers = {spec.label: _optimizer(spec, task) for spec in specs}
    seconds: dict[str, list[float]] = {spec.label: [] for spec in specs}
    gradient: list[float] = []
    start = task.init([0])
    for _ in range(rounds):
        for label, optimizer in optimizers.items():
            seconds[label].append(_median(optimizer.step, updates))
        gradient.append(
            _median(lambda: task.loss_and_grad(start, task.batch([0], 0)), max(1, updates // 4))
        )
    return seconds, gradient


def _optimizer(spec: OptimizerSpec, task: Task[Any]) -> torch.optim.Optimizer:
    """The real optimizer, as users have it, on parameters of the task's shapes with gradients
    that stay."""
    shapes = task.shapes
    flat = task.init([0])[0]
    grad = 0.01 * draws.normal(draws.keys([0], "timing"), task.p)[0].float()
    sizes = [math.prod(shape) for shape in shapes]
    parameters = [
        nn.Parameter(part.view(shape).clone())
        for part, shape in zip(flat.split(sizes), shapes, strict=True)
    ]
    for parameter, part in zip(parameters, grad.split(sizes), strict=True):
        parameter.grad = part.view_as(parameter).clone()
    if spec.rule is not None:
        return LearnedOptimizer(parameters, spec.lr, weights=spec.rule)
    assert spec.baseline is not None
    return spec.baseline.kind(parameters, lr=spec.lr, **spec.baseline.options)  # type: ignore[call-arg]


def _median(action: Callable[[], object], times: int) -> float:
    action()
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _entry(
    task: str, label: str, steps: int, measure: str, numbers: Sequence[float]
) -> dict[str, Any]:
    plain = [float(f"{x:.6g}") if math.isfinite(x) else None for x in numbers]
    middle = statistics.median(numbers)
    value = float(f"{middle:.6g}") if math.isfinite(middle) else None
    return {
        "task": task,
        "optimizer": label,
        "steps": steps,
        "measure": measure,
        "value": value,
        "values": plain,
    }


def _ratios(entries: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The time of an update against the reference's, by task and optimizer."""
    times = {
        (e["task"], e["optimizer"]): e["value"]
        for e in entries
        if e["measure"] == "seconds_per_step"
    }
    ratios: dict[str, dict[str, float]] = {}
    for (task, label), value in times.items():
        if reference := times.get((task, REFERENCE)):
            ratios.setdefault(task, {})[label] = float(f"{value / reference:.4g}")
    return ratios
