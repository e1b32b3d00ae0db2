"""Learning rates of the hand-made optimizers: tuned by us, published, or a place to start."""

from __future__ import annotations

import csv
import enum
import functools
import io
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from hyperadam.files import write_atomically

#: Tuned rates that come with the package, a line each.
SHIPPED = Path(__file__).parent / "rates.csv"
#: Where ``hyperadam tune`` writes, and the other commands look first.
TUNING = Path("results/tuning")
#: The files in such a folder: the rate that was chosen for each task, optimizer and horizon, and
#: every rate that was tried with what came of it.
RATES, GRIDS = "rates.csv", "grids.csv"

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


class Kind(enum.Enum):
    """Where a learning rate comes from."""

    TUNED = "tuned"
    PUBLISHED = "published"
    #: The optimizer's usual rate: a place to start tuning from.
    UNTUNED = "untuned"
    GIVEN = "given"
    #: A learned rule's own step size.
    OWN = "the rule's own"
    #: That of the untrained rule.
    START = "as meta-training starts"


class Rate(NamedTuple):
    """A learning rate and where it comes from; ``about`` names another task or horizon."""

    lr: float
    kind: Kind
    about: str = ""

    @property
    def source(self) -> str:
        """Where it comes from, for people to read."""
        return self.kind.value + (f" for {self.about}" if self.about else "")


class TunedRate(NamedTuple):
    """A line of ``rates.csv``: the rate chosen on a grid, and how.

    ``at_edge`` says that the grid ended there, ``start`` where it began. The score of a rate is the
    mean final loss, over ``final_batches`` of a run's batches, of ``runs`` runs from ``first_seed``
    on.
    """

    task: str
    optimizer: str
    steps: int
    lr: float
    at_edge: bool
    runs: int
    first_seed: int
    final_batches: int
    start: float
    start_source: str
    made_with: str


class GridPoint(NamedTuple):
    """A line of ``grids.csv``: a rate that was tried. The score is ∞ if a run diverged."""

    task: str
    optimizer: str
    steps: int
    lr: float
    score: float
    diverged: int


def tuned_lr(optimizer: str, task: str, steps: int, folder: Path | None = None) -> Rate | None:
    """The stored rate tuned for the number of steps nearest to ``steps``; ``None``: there is none.

    ``folder`` is looked into first, then what the package ships.
    """
    found = [
        (_distance(steps, rate.steps), order, rate.steps, rate.lr)
        for order, path in enumerate(rate_files(folder))
        for rate in read_rates(path)
        if (rate.task, rate.optimizer) == (task, optimizer)
    ]
    if not found:
        return None
    _, _, n, lr = min(found)
    return Rate(lr, Kind.TUNED, "" if n == steps else f"{n:,} steps")


def default_rate(
    optimizer: str, task: str, steps: int, start: float, folder: Path | None = None
) -> Rate:
    """The tuned rate if there is one, else the published one, else ``start``."""
    tuned = tuned_lr(optimizer, task, steps, folder)
    return tuned or starting_rate(optimizer, task, steps, start)


def starting_rate(optimizer: str, task: str, steps: int, start: float) -> Rate:
    """Where tuning starts: the published rate for the nearest number of steps, else ``start``."""
    plain = re.sub(r"-(bn|dropout)", "", task)
    if optimizer == "adam" and (rates := PUBLISHED_ADAM.get(plain)):
        n = min(rates, key=lambda n: _distance(steps, n))
        what = ([plain] if plain != task else []) + ([f"{n:,} steps"] if n != steps else [])
        return Rate(rates[n], Kind.PUBLISHED, ", ".join(what))
    return Rate(start, Kind.UNTUNED)


def rate_files(folder: Path | None) -> list[Path]:
    """Files of tuned rates, those to be preferred first."""
    return [folder / RATES, SHIPPED] if folder else [SHIPPED]


def read_rates(path: Path) -> tuple[TunedRate, ...]:
    """The tuned rates in a file, none if there is no file; one that is damaged is named."""
    return tuple(TunedRate(*values) for values in _read(path, _RATE))


def read_grids(path: Path) -> tuple[GridPoint, ...]:
    """The rates that were tried, from a file; none if there is no file."""
    return tuple(GridPoint(*values) for values in _read(path, _POINT))


def store(folder: Path, rate: TunedRate, grid: Iterable[GridPoint]) -> None:
    """Put a tuned rate and its grid into the files of ``folder``, in the place of former ones."""
    key = rate[:3]
    points = [point for point in read_grids(folder / GRIDS) if point[:3] != key]
    _write(folder / GRIDS, GridPoint._fields, [*points, *grid])
    rates = [other for other in read_rates(folder / RATES) if other[:3] != key]
    _write(folder / RATES, TunedRate._fields, [*rates, rate])


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError(f"{text} is not a rate")
    return number


#: How the columns of the files are read.
_RATE = {
    "task": str,
    "optimizer": str,
    "steps": int,
    "lr": _positive,
    "at_edge": lambda text: bool(int(text)),
    "runs": int,
    "first_seed": int,
    "final_batches": int,
    "start": float,
    "start_source": str,
    "made_with": str,
}
_POINT = {
    "task": str,
    "optimizer": str,
    "steps": int,
    "lr": _positive,
    "score": float,
    "diverged": int,
}


def _read(path: Path, columns: dict[str, Any]) -> tuple[tuple[Any, ...], ...]:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return ()
    return _parsed(path, stat.st_mtime_ns, stat.st_size, tuple(columns.items()))


@functools.lru_cache(maxsize=64)
def _parsed(
    path: Path, changed: int, size: int, columns: tuple[tuple[str, Any], ...]
) -> tuple[tuple[Any, ...], ...]:
    """The lines of a file; read again when it has changed."""
    number = 0
    try:
        lines = csv.reader(io.StringIO(path.read_text(encoding="utf-8")), strict=True)
        found = []
        for number, line in enumerate(lines, 1):
            if number == 1:
                if line != [name for name, _ in columns]:
                    raise ValueError("its columns are others")
                continue
            found.append(tuple(read(text) for (_, read), text in zip(columns, line, strict=True)))
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"{path} does not hold tuned rates (line {number}: {error}): delete it and tune again"
        ) from error
    return tuple(found)


def _write(path: Path, columns: Iterable[str], lines: Iterable[tuple[Any, ...]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for line in sorted(lines, key=lambda line: line[:4]):
        writer.writerow([int(value) if isinstance(value, bool) else value for value in line])
    write_atomically(path, text.getvalue())


def _distance(steps: int, other: int) -> float:
    return abs(math.log(steps / other))
