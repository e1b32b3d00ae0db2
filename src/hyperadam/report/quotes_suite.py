"""What prose says of the suite, made from its results alone: scores, horizons, losses, costs.

Every text here reads well whichever way the numbers fall, so that pages need no editing when the
suite has been run again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from hyperadam.experiments.suite import scores, timing
from hyperadam.experiments.suite.files import Folder
from hyperadam.experiments.suite.runs import SEEDS
from hyperadam.experiments.suite.scores import REFERENCE, Entry, Pair, Results
from hyperadam.experiments.suite.tasks import TASKS

OURS, START, ADAM = "hyperadam2", "hyperadam2-start", "adam"
#: What the rows of the tables are called, and who is in them.
OPTIMIZERS = {
    OURS: "HyperAdam2",
    START: "its untrained start",
    "schedule-free": "schedule-free AdamW",
    "prodigy-cosine": "Prodigy, cosine",
    "adamw-cosine": "AdamW 1e-3, cosine",
    ADAM: "Adam, tuned",
    REFERENCE: "Adam, tuned, linear decay",
    "muon": "Muon, tuned",
}
UNTUNED = (OURS, START, "schedule-free", "prodigy-cosine", "adamw-cosine")
#: The tasks as one would say them in a sentence.
NAMES = {
    "fashion8-mlp": "a small MLP on 8×8 Fashion-MNIST",
    "cifar8-mlp": "a small MLP on 8×8 CIFAR-10",
    "tabular": "an MLP on a small table",
    "cifar-ae": "an autoencoder on CIFAR-10",
    "fashion-mlp": "an MLP on Fashion-MNIST",
    "mnist-mlp3": "an MLP on MNIST",
    "mnist-ae": "an autoencoder on MNIST",
    "fashion-ae": "an autoencoder on Fashion-MNIST",
    "cifar-mlp-norm": "a normalised MLP on CIFAR-10",
    "finetune": "a fine-tuned CNN",
    "text-lstm": "an LSTM on text",
    "text-transformer": "a transformer on text",
    "cifar-vit": "a vision transformer",
    "fashion-mlp-1m": "an MLP of a million parameters",
    "cifar-cnn2": "CNN-2 on CIFAR-10",
    "cifar16-conv": "a CNN on 16×16 CIFAR-10",
    "cifar-conv": "a CNN on CIFAR-10",
}


class Suite:
    """The suite's results, read when they are first asked for."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @cached_property
    def results(self) -> Results:
        folder = self.folder
        cells = [] if folder is None else Folder(folder / "runs").all()
        known = [cell for cell in cells if cell.task in TASKS]
        if folder is None or not known:
            raise ValueError(f"there are no results of the suite in {folder}: `hyperadam suite`")
        return Results(known, timing.load(folder / "times.json"))

    def ratios(self, name: str, other: str, steps: int | None = None) -> dict[Pair, float]:
        """The training losses of one in the place of 1 of another's, at one horizon or at all."""
        found = scores.ratios(self.results, name, lambda entry: entry.loss, other)
        return {pair: x for pair, x in found.items() if steps in (None, pair[1])}

    def entry(self, task: str, steps: int, name: str) -> Entry:
        try:
            return self.results.entries[(task, steps, name)]
        except KeyError:
            raise ValueError(
                f"the suite has no result of {name} on {task} after {steps:,} steps"
            ) from None

    def horizons(self, name: str = OURS, other: str = ADAM) -> list[int]:
        return sorted({steps for _, steps in self.ratios(name, other)})


def quote(words: Sequence[str], suite: Suite) -> float | str:
    """What the words after ``suite`` stand for, in prose:

    ``below NAME OTHER [STEPS]``: in how many pairs it is at or below the other; ``pairs NAME
    OTHER``: how many there are; ``loss`` or ``test TASK STEPS NAME``; ``ratio NAME OTHER``: the
    interquartile mean; ``speed NAME STEPS``: VeLOdrome's.
    """
    kind, *rest = words
    if kind == "below":
        name, other, *more = rest
        return _share(suite.ratios(name, other, int(more[0]) if more else None))
    if kind == "pairs":
        name, other = rest
        return float(len(suite.ratios(name, other)))
    if kind in ("loss", "test"):
        task, steps, name = rest
        found = suite.entry(task, int(steps), name)
        return found.loss if kind == "loss" else found.test
    if kind == "ratio":
        name, other = rest
        return scores.middle(suite.ratios(name, other)).value
    if kind == "speed":
        name, steps = rest
        speeds = scores.speed_ups(suite.results, name, int(steps))
        return scores.interquartile_mean([value for value, _ in speeds.values()])
    raise ValueError(f"the suite has no {kind}: below, pairs, loss, test, ratio, speed")


def _share(found: dict[Pair, float]) -> str:
    return f"{scores.count_level(found.values())} of {len(found)}"


def _number(number: float) -> str:
    """Three digits, also of what is small: a loss of .00002 is not zero."""
    return f"{number:#.3g}".removeprefix("0").removesuffix(".") if number < math.inf else "∞"


def _interval(found: dict[Pair, float]) -> str:
    value, low, high = scores.middle(found)
    return _number(value) + (f" ({_number(low)} to {_number(high)})" if math.isfinite(low) else "")


def _table(lines: Sequence[Sequence[str]]) -> str:
    head, *rows = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def _listed(parts: Sequence[str]) -> str:
    if len(parts) < 2:
        return "".join(parts) or "none yet"
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _speed(suite: Suite, name: str, steps: int) -> str:
    found = scores.speed_ups(suite.results, name, steps)
    if not found:
        return "–"
    value = scores.interquartile_mean([number for number, _ in found.values()])
    least = "" if all(exact for _, exact in found.values()) else "at least "
    return f"{least}{value:.2f} ({len(found)} tasks)"


def extent(suite: Suite) -> str:
    """How much there is to compare."""
    found = suite.ratios(OURS, ADAM)
    parts = [f"{len(suite.ratios(OURS, ADAM, n))} with {n:,} steps" for n in suite.horizons()]
    mine = [suite.results.at(pair, OURS) for pair in suite.results.pairs(OURS)]
    runs, failed = sum(len(e.losses) for e in mine), sum(e.diverged for e in mine)
    return (
        f"HyperAdam2 and tuned Adam have both run on {len(found)} pairs of a task and a horizon: "
        f"{_listed(parts)}. Each pair has {len(SEEDS)} seeds. "
        f"Of all {runs} runs of HyperAdam2 {failed or 'none'} failed."
    )


def table(suite: Suite) -> str:
    """The scores of all that has nothing tuned."""
    lines = [
        [
            "nothing tuned",
            "at or below tuned constant Adam",
            "at or below tuned linear Adam",
            "loss / tuned linear Adam's",
        ]
    ]
    for name in UNTUNED:
        against = [suite.ratios(name, other) for other in (ADAM, REFERENCE)]
        if all(against):
            lines.append([OPTIMIZERS[name], *map(_share, against), _interval(against[1])])
    return _table(lines)


def horizons(suite: Suite) -> str:
    """HyperAdam2 at each horizon, against Adam and against VeLOdrome's envelope."""
    lines = [["steps", "at or below tuned constant Adam", "tuned linear Adam"]]
    lines[0] += ["times as fast as VeLOdrome's envelope", "the same, tuned constant Adam"]
    for steps in sorted({n for _, n in suite.results.pairs(OURS)}):
        against = [suite.ratios(OURS, other, steps) for other in (ADAM, REFERENCE)]
        speeds = [_speed(suite, name, steps) for name in (OURS, ADAM)] if steps > 100 else ["–"] * 2
        lines.append([f"{steps:,}", *(_share(x) if x else "–" for x in against), *speeds])
    return _table(lines)


def _where(found: dict[Pair, float]) -> str:
    above = {task for (task, _), ratio in found.items() if ratio > 1 + scores.LEVEL}
    lost = [NAMES[task] for task in TASKS if task in above]
    return f"{len(lost)} of {len(found)} tasks" + (f": {_listed(lost)}" if lost else "")


def losses(suite: Suite) -> str:
    """Where tuned Adam is lower, by horizon, and how it stands with Muon."""
    lines = [
        f"- **To tuned constant Adam, with {steps:,} steps**, "
        f"on {_where(suite.ratios(OURS, ADAM, steps))}."
        for steps in suite.horizons()
    ]
    if muon := _to_muon(suite):
        lines.append(f"- **To tuned Muon**, {muon}.")
    return "\n".join(lines) or "- Nothing has been compared yet."


def _to_muon(suite: Suite) -> str:
    """How often tuned Muon is lower; empty if it has not run."""
    muon = suite.ratios(OURS, "muon").values()
    lost = sum(x > 1 + scores.LEVEL for x in muon)
    return f"on {lost} of the {len(muon)} pairs where it has run" if muon else ""


def _beside_start(suite: Suite) -> str:
    found = list(suite.ratios(OURS, START).values())
    lower = sum(x < 1 - scores.LEVEL for x in found)
    higher = sum(x > 1 + scores.LEVEL for x in found)
    return (
        f"lower on {lower} of {len(found)} pairs, level within 1 % on "
        f"{len(found) - lower - higher}, and higher on {higher}"
    )


def start(suite: Suite) -> str:
    """What meta-training adds."""
    return f"HyperAdam2 beside its own untrained start is {_beside_start(suite)}."


def summary(suite: Suite) -> str:
    """What README says of it."""
    constant, linear = (suite.ratios(OURS, other) for other in (ADAM, REFERENCE))
    lost = [
        f"with {steps:,} steps on {_where(suite.ratios(OURS, ADAM, steps)).partition(':')[0]}"
        for steps in suite.horizons()
    ]
    muon = f"To tuned Muon: {where}. " if (where := _to_muon(suite)) else ""
    lines = [
        f"- **Beside tuned Adam.** It ends at or below Adam with a tuned constant rate on "
        f"{_share(constant)} pairs of a task and a horizon. Beside Adam with a tuned rate and "
        f"linear decay that is {_share(linear)}.",
        f"- **Where it loses** to tuned constant Adam: {_listed(lost)}. {muon}"
        f"[Which ones](docs/choosing.md#where-it-loses).",
        f"- **What meta-training adds.** Beside its own untrained start it is "
        f"{_beside_start(suite)}. "
        f"[The rest](docs/how-it-works.md#what-was-learned-and-what-was-not) is a good start.",
    ]
    speeds = {n: _speed(suite, OURS, n) for n in sorted({n for _, n in suite.results.pairs(OURS)})}
    if speeds.get(1_000, "–") != "–":
        times, _, tasks = speeds[1_000].partition(" (")
        lines.insert(
            1,
            f"- **After 1,000 steps** it is where VeLOdrome's published envelope of tuned "
            f"baselines is after {times} times as many ({tasks}.",
        )
    return "\n".join(lines)


def overfitting(suite: Suite) -> str:
    """Training and test loss on the small table, over the steps."""
    task, (short, long) = "tabular", (100, 1_000)
    heads = [f"{what} loss, {n:,}" for what in ("training", "test") for n in (short, long)]
    lines = [["on `tabular`", *heads]]
    better, worse = 0, 0
    for name, title in OPTIMIZERS.items():
        found = [suite.results.entries.get((task, n, name)) for n in (short, long)]
        first, last = found
        if first is None or last is None:
            continue
        better += last.loss < first.loss
        worse += last.test > first.test
        numbers = [first.loss, last.loss, first.test, last.test]
        lines.append([title, *map(_number, numbers)])
    count = len(lines) - 1
    return (
        f"{_table(lines)}\n\nFrom {short:,} steps to {long:,} the training loss falls with "
        f"{better} of {count} optimizers. The test loss rises with {worse} of {count}."
    )


def cost(suite: Suite) -> str:
    """What a step costs beside the gradient, on every network of the suite."""
    lines = [["network", "parameters", "gradient, ms", "Adam's step, ms", "HyperAdam2's step, ms"]]
    for task in TASKS:
        found: dict[str, Entry] = {}
        for steps in sorted(n for t, n in suite.results.cells if t == task):
            for name in (ADAM, OURS):  # of the longest horizon, where it is measured best
                if (entry := suite.results.entries.get((task, steps, name))) is not None:
                    found[name] = entry
        if len(found) == 2:
            rest = statistics.median(e.seconds - e.optimizer_seconds for e in found.values())
            own = [found[name].optimizer_seconds for name in (ADAM, OURS)]
            milliseconds = [f"{1e3 * x:.2f}".removeprefix("0") for x in (rest, *own)]
            lines.append([NAMES[task], f"{found[OURS].parameters:,}", *milliseconds])
    return _table(lines)


def times(suite: Suite) -> str:
    """Steps and seconds to tuned linear Adam's final loss."""
    lines = [["", "gets there", "steps", "seconds"]]
    for name in (OURS, START, "schedule-free", "prodigy-cosine", "adamw-cosine", ADAM, "muon"):
        steps = scores.steps_to_reference(suite.results, name)
        seconds = scores.steps_to_reference(suite.results, name, lambda entry: entry.seconds)
        if steps:
            there = sum(math.isfinite(x) for x in steps.values())
            medians = [statistics.median(x.values()) for x in (steps, seconds)]
            texts = [f"{x:.2f}".removeprefix("0") if x < math.inf else "∞" for x in medians]
            lines.append([OPTIMIZERS[name], f"{there} of {len(steps)}", *texts])
    return _table(lines)


#: What stands between the marks, by name.
MADE: dict[str, Callable[[Suite], str]] = {
    "suite-extent": extent,
    "suite-scores": table,
    "suite-horizons": horizons,
    "suite-losses": losses,
    "suite-start": start,
    "suite-summary": summary,
    "suite-overfitting": overfitting,
    "suite-cost": cost,
    "suite-times": times,
}
