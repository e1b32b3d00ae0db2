"""Numbers and verdicts that prose quotes: checked against results, and written anew from them.

In a Markdown file a number is followed by a comment that says what it is, and readers do not see:

    .249 ± .002<!--= mnist-mlp-elu adam-->    the final loss after 100 steps, 3 digits as written
    .112<!--= mnist-cnn1 adam 10000 test_loss-->   another number of steps, another measure
    .011<!--= mnist-cnn2 adam 10000 @learners-->   as in that experiment (else: with most runs)
    .33<!--= paper mnist-mlp hyperadam-paper-->    the paper's number
    **holds**<!--= verdict activations 1-->        the verdict on an experiment's first claim
    **holds**<!--= verdict activations 1 twin-->   and on the same claim about its twin
    *clearly lower*<!--= is mnist-mlp dm adam-->   how one optimizer compares with another
    13 of 20<!--= below adam-init adam-->     in how many of the tasks it is clearly lower
    101,487<!--= recipe updates-->            from the published recipe, see :func:`of_recipe`
    20 of 29<!--= suite below hyperadam2 adam-->   from the suite, see :mod:`.quotes_suite`
    .04<!--= not in results-->                measured apart, and held to nothing

Between ``<!-- made: NAME -->`` and ``<!-- end -->`` stands what :data:`MADE` makes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hyperadam.experiments.paper.experiment import Experiment
from hyperadam.experiments.paper.runner import Loaded
from hyperadam.experiments.paper.specs.columns import PUBLISHED
from hyperadam.report import measures, quotes_suite
from hyperadam.report.claims import chance
from hyperadam.report.names import called
from hyperadam.report.recipe import Reach, RecipeSection, recipe_section
from hyperadam.report.section import Section, section
from hyperadam.report.statistics import Contrast, mean
from hyperadam.report.tables import as_markdown
from hyperadam.results import Result
from hyperadam.weights import list_weights, load_rule

#: A quoted number or verdict, and the comment behind it.
QUOTE = re.compile(
    r"(?P<text>\d+ of \d+|[\d.,]*\d(?: ± [\d.]*\d)?|[a-z ]+(?=\*{1,2}<!--=))"
    r"(?P<after> %| ms| s|\*{1,2})?<!--= (?P<words>[^>]*?)-->"
)
BLOCK = re.compile(r"(<!-- made: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
#: The tasks of the table in README.
TASKS = (
    *("mnist-mlp", "mnist-mlp-relu", "mnist-mlp-elu", "mnist-mlp-tanh"),
    *(f"mnist-mlp-{n}x20" for n in range(2, 11)),
    *("sine-lstm", "sine-lstm-small-noise", "sine-lstm-2"),
    *("mnist-cnn1", "mnist-cnn2", "cifar10-cnn1-bn", "cifar10-cnn2-dropout"),
)
#: Its columns.
COLUMNS = (
    "hyperadam-horizon",
    "hyperadam",
    "hyperadam-paper",
    "adam-init",
    "adam",
    "rnnprop",
    "dm",
)
STEPS = 100


class Numbers:
    """All that can be quoted: the paper's experiments, and what is in the folders of the suite and
    of the published recipe."""

    def __init__(
        self,
        found: Sequence[tuple[Experiment, Loaded]],
        suite: Path | None = None,
        recipe: Path | None = None,
    ) -> None:
        self.experiments = {experiment.name: (experiment, loaded) for experiment, loaded in found}
        self.suite = quotes_suite.Suite(suite)
        self.recipe = recipe_section(found, recipe) if recipe else None
        self._sections: dict[str, Section] = {}

    def result(self, task: str, label: str, steps: int, experiment: str | None = None) -> Result:
        """The result of a cell, where it has the most runs unless the experiment is named."""
        names = [experiment] if experiment else list(self.experiments)
        there = [
            result
            for name in names
            for result in self.experiments[name][1].results
            if (result.task, result.label, result.steps) == (task, label, steps)
        ]
        if not there:
            raise ValueError(f"there is no result of {label} on {task} after {steps:,} steps")
        return max(there, key=lambda result: result.runs)

    def contrast(
        self, task: str, label: str, other: str, steps: int = STEPS, measure: str = "final_loss"
    ) -> Contrast:
        """How two optimizers differ in a measure."""
        mine, theirs = (self.result(task, name, steps) for name in (label, other))
        if (found := measures.contrast(mine, theirs, measure)) is None:
            raise ValueError(f"{measure} was not measured for {label} and {other} on {task}")
        return found

    def published(self, task: str, label: str, steps: int, measure: str) -> float | None:
        """The paper's number."""
        for experiment, _ in self.experiments.values():
            if (number := experiment.published.get((task, label, steps, measure))) is not None:
                return number
        return None

    def verdict(self, name: str, number: int, twin: bool = False) -> str:
        """The verdict on an experiment's claim, counted from 1."""
        claim = self.section(name).claims[number - 1]
        found = claim.twin if twin else claim.own
        if found is None:
            raise ValueError(f"claim {number} of {name} is about no optimizer that has a twin")
        return found.verdict.value

    def section(self, name: str) -> Section:
        """An experiment with its tables and claims."""
        if name not in self._sections:
            experiment, loaded = self.experiments[name]
            self._sections[name] = section(experiment, loaded.results)
        return self._sections[name]


def refresh(text: str, numbers: Numbers) -> str:
    """``text`` with every quote and every made part as the results have it."""
    made = BLOCK.sub(lambda m: f"{m[1]}{MADE[m['name']](numbers)}\n{m[3]}", text)

    def written_anew(found: re.Match[str]) -> str:
        words = found["words"].split()
        if words == ["not", "in", "results"]:
            return found[0]
        text = quote(words, found["text"], numbers)
        return f"{text}{found['after'] or ''}<!--= {found['words']}-->"

    return QUOTE.sub(written_anew, made)


def unquoted(text: str) -> list[str]:
    """The numbers in a text that nothing holds to the results: decimals, shares, counts."""
    bare = BLOCK.sub("", text)
    bare = QUOTE.sub("", bare)
    bare = re.sub(r"`[^`]*`|\]\([^)]*\)", "", bare)
    return re.findall(r"\d*\.\d+|\d[\d.]* %|\b\d+ of \d+\b", bare)


def quote(words: Sequence[str], like: str, numbers: Numbers) -> str:
    """What the words stand for, with as many digits as ``like``."""
    kind, *rest = words
    if kind == "suite":
        found = quotes_suite.quote(rest, numbers.suite)
        return found if isinstance(found, str) else _digits(found, like)
    if kind == "recipe":
        found = of_recipe(rest, numbers.recipe)
        return found if isinstance(found, str) else _digits(found, like)
    if kind == "verdict":
        return numbers.verdict(rest[0], int(rest[1]), "twin" in rest)
    if kind == "below":
        label, other = rest
        clear = [numbers.contrast(task, label, other) for task in TASKS]
        return f"{sum(c.clear and c.direction < 0 for c in clear)} of {len(clear)}"
    if kind == "is":
        task, label, other, *more = rest
        return relation(numbers.contrast(task, label, other, *_steps_and_measure(more)))
    named = [word[1:] for word in words if word.startswith("@")]
    task, label, *more = [word for word in words if word != "paper" and not word.startswith("@")]
    steps, measure = _steps_and_measure(more)
    if kind == "paper":
        number = numbers.published(task, label, steps, measure)
        if number is None:
            raise ValueError(f"the paper has no {measure} of {label} on {task}")
        values = torch.tensor([number])
    else:
        values = measured(numbers.result(task, label, steps, *named), measure)
    if measures.describe(measure).percent:
        values = 100 * values
    return _like(*mean(values), like)


def of_recipe(words: Sequence[str], made: RecipeSection | None) -> str | float:
    """What is quoted of the published recipe.

    ``updates``: how far it came; ``best`` and ``before``: its best validation, and the best before
    the last updates, with ``at`` their updates; ``gain``: what these brought, in percent;
    ``reached`` (by other weights if they are named): how many published numbers are reached."""
    if made is None:
        raise ValueError("there is no run of the published recipe")
    what, *rest = words
    progress = made.progress
    if what == "reached":
        label = rest[0] if rest else PUBLISHED
        return f"{made.reached(label)[Reach.YES]} of {len(made.numbers)}"
    if what in ("best", "before"):
        point = progress.best if what == "best" else progress.before
        return point.update if "at" in rest else point.score
    known = {"updates": float(progress.updates), "gain": 100 * progress.gain}
    if what not in known:
        raise ValueError(f"the published recipe has no {what}")
    return known[what]


def _steps_and_measure(words: Sequence[str]) -> tuple[int, str]:
    steps = next((int(word) for word in words if word.isdigit()), STEPS)
    return steps, next((word for word in words if not word.isdigit()), "final_loss")


def relation(found: Contrast) -> str:
    """How one optimizer compares with another, in two or three words."""
    if not found.tested:
        return "one run"
    if not found.significant:
        return "not clearly different"
    if found.level:
        return "too close to matter"
    return "clearly lower" if found.direction < 0 else "clearly higher"


def measured(result: Result, name: str) -> Tensor:
    """The measure of every run; besides those of the tables:

    ``ms``: milliseconds of an update; ``median_last_1000``: the median loss of the last 1,000 steps
    of all runs; ``above_last_1000``: the share of them with a loss above .1, in percent.
    """
    last = result.losses[:, -1000:].flatten().double()
    if name == "median_last_1000":
        return last.median().view(1)
    if name == "above_last_1000":
        return 100 * (last > 0.1).double().mean().view(1)
    found = measures.values(result, "seconds_per_step" if name == "ms" else name)
    if found is None:
        raise ValueError(f"{name} was not measured for {result.label} on {result.task}")
    return 1000 * found if name == "ms" else found


def _like(number: float, error: float, like: str) -> str:
    parts = like.split(" ± ")
    if len(parts) == 2 and math.isnan(error):
        raise ValueError(f"{like}: there is one run, and no standard error")
    return " ± ".join(_digits(x, part) for x, part in zip((number, error), parts, strict=False))


def _digits(number: float, like: str) -> str:
    text = f"{number:,.{len(like.partition('.')[2])}f}"
    return text.removeprefix("0") if "." in text else text


def _table(numbers: Numbers) -> str:
    """The final losses of the learned optimizers and of Adam on every task after 100 steps."""
    head = ["task, 100 steps", *map(called, COLUMNS), "the paper's HyperAdam"]
    lines = [head, ["---"] * len(head)]
    for task in TASKS:
        found = {label: numbers.result(task, label, STEPS).final_loss for label in COLUMNS}
        best = min(found, key=lambda label: float(found[label].mean()))
        cells = []
        for label, values in found.items():
            number, error = mean(values)
            text = _like(number, error, ".000 ± .000").removesuffix(" ± .000")
            text = text.replace(" ", "\u00a0")  # a number and its error stay on one line
            cells.append(f"**{text}**" if label == best else text)
        published = numbers.published(task, "hyperadam-paper", STEPS, "final_loss")
        lines.append([called(task), *cells, _digits(published, ".00") if published else ""])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _beats(numbers: Numbers) -> str:
    """Who is clearly lower than whom on those tasks."""
    pairs = [
        ("hyperadam-horizon", "adam"),
        ("hyperadam", "adam"),
        ("hyperadam-horizon", "hyperadam"),
        ("adam-init", "adam"),
        ("hyperadam", "adam-init"),
    ]
    lines = []
    for label, other in pairs:
        contrasts = {task: numbers.contrast(task, label, other) for task in TASKS}
        text = f"- `{label}` against `{other}`: "
        parts = []
        for direction, word in ((-1, "clearly lower"), (1, "clearly higher")):
            where = [t for t, c in contrasts.items() if c.clear and c.direction == direction]
            names = f" ({_titles(where)})" if 0 < len(where) <= len(TASKS) // 2 else ""
            if where:
                parts.append(f"{word} on {len(where)} of {len(TASKS)}{names}")
        unclear = [t for t, c in contrasts.items() if not c.clear]
        if unclear:
            parts.append(f"no clear difference that matters on {len(unclear)} ({_titles(unclear)})")
        lines.append(text + ". ".join(part[0].upper() + part[1:] for part in parts) + ".")
    return "\n".join(lines)


def _titles(tasks: Sequence[str]) -> str:
    return "; ".join(called(task) for task in tasks)


def _claims(numbers: Numbers) -> str:
    """Every claim of the paper with its verdict, for the paper's rule and for ours."""
    lines = [
        ["the paper says", "verdict", "the same said of `hyperadam`", "experiment"],
        ["---"] * 4,
    ]
    contrasts: dict[Any, Contrast] = {}
    for name in numbers.experiments:
        made = numbers.section(name)
        for claim in made.claims:
            twin = claim.twin.verdict.value if claim.twin else ""
            lines.append([claim.text, claim.own.verdict.value, twin, f"`{name}`"])
        contrasts |= made.contrasts
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\nBehind these verdicts {chance(contrasts)}."


def _weights(numbers: Numbers) -> str:
    """What making the shipped weights took, from the files themselves."""
    lines = [
        ["weights", "updates until they were kept", "of", "minutes until then", "what it was"],
        ["---"] * 5,
    ]
    for name in list_weights():
        told = load_rule(name).provenance
        if "seconds" in told:
            updates = [told["updates"], told["settings"]["updates"]]
            minutes = f"{told['seconds'] / 60:.0f}"
            lines.append([f"`{name}`", *(f"{n:,}" for n in updates), minutes, told["what"]])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _recipe(numbers: Numbers) -> str:
    """Every published number of HyperAdam beside ours."""
    return as_markdown(numbers.recipe.grid).rstrip("\n") if numbers.recipe else ""


def _of_suite(make: Callable[[quotes_suite.Suite], str]) -> Callable[[Numbers], str]:
    return lambda numbers: make(numbers.suite)


#: What stands between the marks, by name.
MADE: dict[str, Callable[[Numbers], str]] = {
    "table": _table,
    "beats": _beats,
    "claims": _claims,
    "weights": _weights,
    "recipe": _recipe,
    **{name: _of_suite(make) for name, make in quotes_suite.MADE.items()},
}
