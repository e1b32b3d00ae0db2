"""Learning rates of the hand-made optimizers: tuned by us and stored as files, published, or a place to start."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hyperadam.experiments.atomic import safe_name

FORMAT = "hyperadam-tuning/1"
#: Tuning results that come with the package, in the form in which ``hyperadam tune`` writes them.
SHIPPED = Path(__file__).parent / "tuned"
#: Where ``hyperadam tune`` writes and the other commands look first.
TUNING = Path("results/tuning")

#: Adam's hand-tuned rates in the published experiments, by task and number of steps.
PUBLISHED_ADAM: dict[str, dict[int, float]] = {
    "mnist-mlp": {100: 0.03125, 2000: 0.0156, 10_000: 0.0078},
    "mnist-mlp-relu": {100: 0.0221},
    "mnist-mlp-elu": {100: 0.0221},
    "mnist-mlp-tanh": {100: 0.01105},
    "mnist-mlp-2x20": {100: 0.03125},
    "mnist-mlp-3x20": {100: 0.03125},
    "mnist-mlp-4x20": {100: 0.015625},
    "mnist-mlp-5x20": {100: 0.015625},
    "mnist-mlp-6x20": {100: 0.015625},
    "mnist-mlp-7x20": {100: 0.01105},
    "mnist-mlp-8x20": {100: 0.00049},
    "mnist-mlp-9x20": {100: 0.00069},
    "mnist-mlp-10x20": {100: 0.0069},
    "sine-lstm": {100: 0.022},
    "sine-lstm-2": {100: 0.0221},
    "sine-lstm-small-noise": {100: 0.03125},
    "mnist-cnn1": {100: 0.0156, 2000: 0.0156, 10_000: 0.0056},
    "mnist-cnn2": {2000: 0.0055, 10_000: 0.0026},
    "cifar10-cnn1": {100: 0.0113, 2000: 0.0113, 10_000: 0.0078},
    "cifar10-cnn2": {100: 0.0039, 2000: 0.0023, 10_000: 0.0039},
}


class Rate(NamedTuple):
    """A learning rate and where it comes from, for people to read."""

    lr: float
    source: str


def tuned_lr(optimizer: str, task: str, steps: int, folder: Path | None = None) -> Rate | None:
    """The stored rate tuned for the number of steps nearest to ``steps``; ``None`` if none is stored for this pair.

    ``folder`` is looked into first, then what the package ships.
    """
    found = [
        (_distance(steps, n), order, n, lr) for order, n, lr in _stored(optimizer, task, folder)
    ]
    if not found:
        return None
    _, _, n, lr = min(found)
    return Rate(lr, "tuned" if n == steps else f"tuned for {n:,} steps")


def default_rate(
    optimizer: str, task: str, steps: int, start: float, folder: Path | None = None
) -> Rate:
    """The tuned rate if there is one, else the published one, else ``start``; and which it is."""
    tuned = tuned_lr(optimizer, task, steps, folder)
    return tuned or starting_rate(optimizer, task, steps, start)


def starting_rate(optimizer: str, task: str, steps: int, start: float) -> Rate:
    """Where tuning starts: the published rate for the nearest number of steps, else ``start``."""
    plain = re.sub(r"-(bn|dropout)", "", task)
    if optimizer == "adam" and (rates := PUBLISHED_ADAM.get(plain)):
        n = min(rates, key=lambda n: _distance(steps, n))
        what = ([plain] if plain != task else []) + ([f"{n:,} steps"] if n != steps else [])
        return Rate(rates[n], "published" + (f" for {', '.join(what)}" if what else ""))
    return Rate(start, "untuned")


def tuning_file(folder: Path, task: str, optimizer: str, steps: int) -> Path:
    """Where the result of tuning a pair is stored."""
    return folder / f"{safe_name(task)}.{safe_name(optimizer)}.{steps}.json"


def read_tuning(path: Path) -> dict[str, Any]:
    """A stored tuning result; a file that is none is refused with a message that names it."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if stored["format"] != FORMAT or not 0 < float(stored["lr"]) < math.inf:
            raise ValueError(f"its format is {stored['format']!r} and its lr {stored['lr']!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a result of tuning ({error}): delete it and tune again"
        ) from error
    return stored


def _stored(optimizer: str, task: str, folder: Path | None) -> Iterator[tuple[int, int, float]]:
    """Order of preference, number of steps and rate of every stored result for the pair."""
    for order, place in enumerate([folder, SHIPPED] if folder else [SHIPPED]):
        for path in sorted(place.glob(f"{safe_name(task)}.{safe_name(optimizer)}.*.json")):
            stored = read_tuning(path)
            yield order, int(stored["settings"]["steps"]), float(stored["lr"])


def _distance(steps: int, other: int) -> float:
    return abs(math.log(steps / other))
