"""A comparison in plain words, all of them computed: what was compared, who won and by how much,
whether the promise is kept, and what it cost in time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hyperadam.report.names import called, listed
from hyperadam.report.statistics import Contrast, contrast, summarize
from hyperadam.results import Result

#: Times that differ by less than this factor are called about as long.
ABOUT = 1.15


def as_long(ratio: float) -> str:
    """``about as long as``, or ``1.4 times as long as``."""
    about = abs(math.log(ratio)) < math.log(ABOUT)
    return "about as long as" if about else f"{ratio:.2g} times as long as"


def in_words(
    results: Sequence[Result],
    ours: Sequence[str],
    seconds: Mapping[str, float],
    reference: str = "adam",
    untuned: str = "adam@0.001",
) -> list[str]:
    """Sentences about ``ours`` beside a tuned optimizer and one that nobody tuned. ``seconds`` are
    those of a step, gradient included."""
    tasks = list(dict.fromkeys(result.task for result in results))
    rivals = [label for label in dict.fromkeys(r.label for r in results) if label not in ours]
    runs, steps = max(r.runs for r in results), max(r.steps for r in results)
    networks = "network was" if len(tasks) == 1 else "networks were"
    they = "It was" if len(ours) == 1 else "They were"
    lines = [
        f"{_count(len(tasks))} {networks} trained, {runs} times each, for {steps:,} steps. "
        f"{listed([called(label) for label in ours])} had nothing tuned. "
        f"{they} put beside {listed([called(label) for label in rivals])}."
    ]
    lines.append(_winners(results, tasks))
    for label in ours:
        against = _contrasts(results, tasks, label, reference)
        if against:
            lines.append(f"{called(label)} {_told(against, reference)}. {_promise(against)}")
        if plain := _contrasts(results, tasks, label, untuned):
            lines.append(f"{called(label)} {_told(plain, untuned)}.")
    if reference in seconds:
        for label in ours:
            if label in seconds:
                mine, theirs = (1e3 * seconds[name] for name in (label, reference))
                lines.append(
                    f"A step of {called(label)} takes {as_long(mine / theirs)} one of Adam: "
                    f"{mine:.2g} ms and {theirs:.2g} ms, gradient included, on a network of "
                    f"{results[0].settings.get('p', 0):,} weights."
                )
    return lines


def _winners(results: Sequence[Result], tasks: Sequence[str]) -> str:
    """Who has the lowest mean, and where."""
    won: dict[str, list[str]] = {}
    for task in tasks:
        means = {r.label: summarize(r).mean for r in results if r.task == task}
        best = min(means, key=lambda label: means[label])
        won.setdefault(best if math.isfinite(means[best]) else "", []).append(called(task))
    lost = won.pop("", [])
    parts = [
        f"{called(label)} on {len(where)} ({'; '.join(where)})" for label, where in won.items()
    ]
    text = f"Who has the lowest mean loss: {listed(parts)}." if parts else ""
    return f"{text}{f' All diverged on {listed(lost)}.' if lost else ''}".strip()


def _contrasts(
    results: Sequence[Result], tasks: Sequence[str], label: str, other: str
) -> dict[str, Contrast]:
    """How two optimizers differ, by task."""
    found = {(result.task, result.label): result for result in results}
    return {
        task: contrast(found[task, label], found[task, other])
        for task in tasks
        if (task, label) in found and (task, other) in found
    }


def _told(found: Mapping[str, Contrast], other: str) -> str:
    """``ends clearly below tuned Adam on 3 of 4 networks (by 5 % to 12 %), …``."""
    parts = []
    for direction, words in ((-1, f"below {called(other)}"), (1, "above it")):
        clear = [c for c in found.values() if c.clear and c.direction == direction]
        sizes = sorted(abs(c.relative) for c in clear if math.isfinite(c.relative))
        by = f" (by {_sizes(sizes)})" if sizes else ""
        count = (
            f"{len(clear)} of {len(found)} network{'s' * (len(found) > 1)}"
            if direction < 0
            else str(len(clear))
        )
        parts.append(f"clearly {words} on {count}{by}")
    unclear = sum(not c.clear for c in found.values())
    parts += [f"with no clear difference that matters on {unclear}"] if unclear else []
    return f"ends {listed(parts)}"


def _sizes(sizes: Sequence[float]) -> str:
    low, high = f"{100 * sizes[0]:.0f}", f"{100 * sizes[-1]:.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _promise(found: Mapping[str, Contrast]) -> str:
    """Whether nothing tuned was as good as tuned."""
    if not all(c.tested for c in found.values()):
        return "With one run nothing is clear: take more."
    lost = [called(task) for task, c in found.items() if c.clear and c.direction > 0]
    if lost:
        return f"The promise, as good as tuned with nothing tuned, is not kept on {listed(lost)}."
    return "The promise, as good as tuned with nothing tuned, is kept in these runs."


def _count(n: int) -> str:
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    return words[n] if n < len(words) else str(n)
