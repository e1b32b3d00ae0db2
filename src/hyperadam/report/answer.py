"""What the page opens with: the answer in three computed sentences, and one figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import NamedTuple

from hyperadam.experiments.suite import scores
from hyperadam.experiments.suite.scores import LEVEL, REFERENCE, Pair, Results
from hyperadam.report.dots import DotPlot, Number, dot_plot
from hyperadam.report.names import called, listed
from hyperadam.report.suite_tables import loss_of
from hyperadam.report.words import as_long

#: The optimizer that the answer is about is the first of these that has results.
OURS = ("hyperadam2", "hyperadam")
#: And its untrained start.
STARTS = {"hyperadam2": "hyperadam2-start", "hyperadam": "adam-init"}
#: Who is drawn beside it.
RIVALS = ("adam", "schedule-free", "adamw-cosine")
#: So many of its defeats are named.
NAMED = 3
#: What the optimizer is called that all are put beside.
DECAYED = called(REFERENCE)


class Sentence(NamedTuple):
    """A sentence or two that answer a question."""

    question: str
    text: str


class Answer(NamedTuple):
    """Three sentences, figures, one for each length of training, the longest first, and what else
    is to be known."""

    ours: str
    sentences: list[Sentence]
    plots: list[DotPlot]
    more: list[str]


def answer(results: Results, state_bytes: Mapping[str, int]) -> Answer | None:
    """The answer; ``None`` if ours and tuned Adam have no training in common. ``state_bytes`` are
    what optimizers keep, in bytes a parameter."""
    ours = next((name for name in OURS if results.pairs(name, REFERENCE)), None)
    if ours is None:
        return None
    sentences = [
        Sentence("How good is it?", how_good(results, ours)),
        Sentence("What does it cost?", cost(results, ours, state_bytes)),
        Sentence("Where does it lose?", where_it_loses(results, ours)),
    ]
    more = [how_far(results, ours), how_soon(results, ours), *others(results, ours)]
    return Answer(ours, sentences, plots(results, ours), more)


def how_good(results: Results, ours: str) -> str:
    """How often it is at or below tuned Adam."""
    counts = []
    for other in ("adam", REFERENCE):
        if found := scores.ratios(results, ours, loss_of, other):
            level = scores.count_level(found.values())
            counts.append(f"at or below {called(other)} in {level} of {len(found)}")
    return f"With nothing tuned, {called(ours)} ends {listed(counts)} trainings."


def cost(results: Results, ours: str, state_bytes: Mapping[str, int]) -> str:
    """The time of a step, and memory."""
    slower = statistics.median(
        results.at(pair, ours).seconds / results.at(pair, REFERENCE).seconds
        for pair in results.pairs(ours, REFERENCE)
    )
    text = f"A training step takes {as_long(slower)} Adam's, gradient included"
    if ours in state_bytes and REFERENCE in state_bytes:
        kept, adams = state_bytes[ours], state_bytes[REFERENCE]
        text += f", and it keeps {kept} bytes a parameter where Adam keeps {adams}"
    return f"{text}."


def where_it_loses(results: Results, ours: str) -> str:
    """How often it is clearly above tuned Adam with decay, where it is worst, and how it stands
    with Muon."""
    found = scores.ratios(results, ours, loss_of)
    lost = _lost(found)
    if lost:
        worst = next(iter(lost))
        where = f"{'worst' if len(lost) > 1 else 'that is'} with the {_training(worst)}"
        text = f"It ends above {DECAYED} in {len(lost)} of {len(found)} trainings, {where}"
        text = f"{text} ({percent(lost[worst])})."
    else:
        text = f"Not to Adam: in none of {len(found)} trainings does it end above {DECAYED}."
    if muon := scores.ratios(results, ours, loss_of, "muon"):
        ahead = f"{len(_lost(muon))} of the {len(muon)}"
        text += f" Tuned Muon ends below it in {ahead} where both have run."
    return text


def how_far(results: Results, ours: str) -> str:
    """How its loss compares with tuned Adam's, over all trainings."""
    middle = scores.middle(scores.ratios(results, ours, loss_of))
    if not math.isfinite(middle.value):
        return "In most trainings it diverged."
    text = f"Its loss is typically {relation(middle.value)} that of {DECAYED}"
    if math.isfinite(middle.low) and math.isfinite(middle.high):
        text += f" (95 % interval: {percent(middle.low)} to {percent(middle.high)})"
    return f"{text}."


def how_soon(results: Results, ours: str) -> str:
    """How many steps and how much time it takes to tuned Adam's loss."""
    steps = scores.steps_to_reference(results, ours)
    seconds = scores.steps_to_reference(results, ours, lambda entry: entry.seconds)
    there = sum(map(math.isfinite, steps.values()))
    text = f"It gets down to the final loss of {DECAYED} in {there} of {len(steps)} trainings"
    halfway, time = (statistics.median_high(x.values()) for x in (steps, seconds))
    if math.isfinite(halfway):
        text += f", typically after {share(halfway)} of its steps and {share(time)} of its time"
    return f"{text}."


def others(results: Results, ours: str) -> list[str]:
    """Where else it loses, and what meta-training adds."""
    found = []
    lost = list(_lost(scores.ratios(results, ours, loss_of)).items())[1:]
    if lost:
        names = [f"the {_training(pair)} ({percent(ratio)})" for pair, ratio in lost[:NAMED]]
        rest = len(lost) - len(names)
        names += [f"{rest} more"] if rest else []
        found.append(f"It also ends above {DECAYED} with {listed(names)}.")
    if start := scores.ratios(results, ours, loss_of, STARTS[ours]):
        below = sum(ratio < 1 - LEVEL for ratio in start.values())
        above = sum(ratio > 1 + LEVEL for ratio in start.values())
        found.append(
            f"Against its own untrained start it ends lower in {below} of {len(start)} trainings "
            f"and higher in {above}: that is what meta-training adds."
        )
    return found


def _lost(found: Mapping[Pair, float]) -> dict[Pair, float]:
    """The trainings in which it is clearly above, the worst first."""
    lost = sorted((-ratio, pair) for pair, ratio in found.items() if ratio > 1 + LEVEL)
    return {pair: -negative for negative, pair in lost}


def plots(results: Results, ours: str) -> list[DotPlot]:
    """A row for each task: its loss and its rivals', in the place of 1 of tuned linear Adam's."""
    made = []
    wanted = dict.fromkeys((ours, *OURS, *RIVALS))
    found = {n: ratios for n in wanted if (ratios := scores.ratios(results, n, loss_of))}
    names = list(found)
    for steps in sorted({n for _, n in found[ours]}, reverse=True):
        tasks = sorted((r, task) for (task, n), r in found[ours].items() if n == steps)
        rows = []
        for _, task in tasks:
            pair = (task, steps)
            numbers = {name: Number(found[name][pair]) for name in names if pair in found[name]}
            rows.append((called(task), numbers))
        title = f"After {steps:,} steps"
        about = f"Loss at the end, with that of {DECAYED} as 1; left is better."
        made.append(dot_plot(f"answer-{steps}", title, about, rows, names))
    return made


def relation(ratio: float) -> str:
    """``3 % lower than``, ``level with``, or ``2.1 times``."""
    if abs(ratio - 1) <= LEVEL:
        return "level with"
    return f"{ratio:.2g} times" if ratio >= 2 else f"{percent(ratio)} than"


def percent(ratio: float) -> str:
    """``3 % lower``, ``level`` or ``2.1 times as high``."""
    if not math.isfinite(ratio):
        return "diverged"
    if ratio >= 2:
        return f"{ratio:.2g} times as high"
    apart = abs(ratio - 1)
    if round(100 * apart) == 0:
        return "level"
    return f"{100 * apart:.0f} % {'lower' if ratio < 1 else 'higher'}"


def share(ratio: float) -> str:
    """``95 %``, or ``1.4 times`` what is more than all."""
    return f"{100 * ratio:.0f} %" if ratio < 1.995 else f"{ratio:.2g} times"


def _training(pair: Pair) -> str:
    task, steps = pair
    return f"{called(task)} after {steps:,} steps"
