"""Dot plots that a page shows without a script, as wide as the screen is: a row for each task or
optimizer, a dot for each number, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: Where an axis may begin, end and have a tick.
TICKS = (
    *(0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5),
    *(1.75, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0),
)
#: Two ticks are at least so far apart, in percent of the axis.
APART = 8.0


class Number(NamedTuple):
    """What a dot stands for; with an interval where that is known, and ``least`` if it is the least
    that it can be."""

    value: float
    low: float = math.nan
    high: float = math.nan
    least: bool = False


class Dot(NamedTuple):
    """A dot of an optimizer: where it is and its bar from and to, in percent of the axis; where it
    leaves the axis, on which side."""

    name: str
    number: Number
    text: str
    place: float
    bar: tuple[float, float] | None
    beyond: str


class Tick(NamedTuple):
    place: float
    text: str


class DotRow(NamedTuple):
    """The dots of a row, those that matter most last: they lie on top."""

    title: str
    dots: list[Dot]


class DotPlot(NamedTuple):
    """A figure; ``about`` says how to read it, ``one`` is where the number 1 is. A name has the
    shape of its place among ``names``: plots that share a key share them."""

    id: str
    title: str
    about: str
    names: list[str]
    ticks: list[Tick]
    one: float
    rows: list[DotRow]


def dot_plot(
    id: str,
    title: str,
    about: str,
    rows: Sequence[tuple[str, Mapping[str, Number]]],
    names: Sequence[str],
    bounds: tuple[float, float] = (0.5, 4.0),
) -> DotPlot:
    """A plot of rows with their numbers by optimizer. What is beyond the ``bounds`` is drawn at
    them; the axis is as long as the rest needs. Of ``names`` the first are the most important."""
    found = [x.value for _, numbers in rows for x in numbers.values() if math.isfinite(x.value)]
    low = min([1.0, *found])
    high = max([1.0, *found])
    low = max(bounds[0], max([t for t in TICKS if t <= low], default=bounds[0]))
    high = min(bounds[1], min([t for t in TICKS if t >= high], default=bounds[1]))
    if high == low:
        low, high = low / 2, high * 2

    def place(x: float) -> float:
        inside = min(max(x, low), high)
        return round(100 * math.log(inside / low) / math.log(high / low), 2)

    def dot(name: str, number: Number) -> Dot:
        x = number.value
        beyond = "left" if x < low else "right" if x > high else ""
        bar = None
        if math.isfinite(number.low) and not math.isnan(number.high):
            bar = place(number.low), place(number.high)
        return Dot(name, number, _text(number), place(x), bar, beyond)

    made = [
        DotRow(row, [dot(name, numbers[name]) for name in reversed(names) if name in numbers])
        for row, numbers in rows
    ]
    ticks: list[Tick] = []
    for t in sorted(TICKS, key=lambda t: (t != 1, t not in (low, high), abs(math.log(t)))):
        here = place(t)
        if low <= t <= high and all(abs(here - other.place) >= APART for other in ticks):
            ticks.append(Tick(here, f"{t:g}"))
    return DotPlot(id, title, about, list(names), sorted(ticks), place(1), made)


def _text(number: Number) -> str:
    if not math.isfinite(number.value):
        return "diverged"
    text = f"{'at least ' if number.least else ''}{number.value:.3g}"
    if math.isnan(number.low):
        return text
    high = f"{number.high:.3g}" if math.isfinite(number.high) else "∞"
    return f"{text} ({number.low:.3g} to {high})"
