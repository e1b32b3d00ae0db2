"""The step's measurements as tables in text and Markdown and a figure, made from ``step.json``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contenders import FREE, FUSED, NAIVE, PRODIGY, TILES, half_name, kernel_name, second_name
from periods import LEARNER, PERIOD, WHOLE

Result = dict[str, Any]

FLOP = 10_440  # of the small matrix products, a coordinate and step
#: What we aim at: times the flat step, µs a tensor outside the kernel, times as fast as autograd,
#: and the share of the matrix-product rate.
RATIO, OUTSIDE, SPEEDUP, SHARE = 1.25, 10.0, 2.5, 0.5
#: And of HyperAdam2: ns a coordinate for vectors of some length, times fused Adam at a million.
NANOSECONDS, LONG, TIMES_ADAM, MILLION = 12.0, 100_000, 10.0, 1_000_000
NONE = "–"
#: The load average before the run from which on other work takes a core of ours now and then.
BUSY = 0.5


@dataclass
class Table:
    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""

    def markdown(self) -> str:
        lines = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"## {self.title}\n{body}\n" + (f"\n{self.note}\n" if self.note else "")

    def text(self) -> str:
        first, *widths = (
            max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)
        )
        lines = [
            f"  {line[0]:{first}}"
            + "".join(f"  {cell:>{width}}" for cell, width in zip(line[1:], widths, strict=True))
            for line in (self.header, *self.rows)
        ]
        return "\n".join([self.title, *lines, *([f"  {self.note}"] if self.note else [])]) + "\n"


def write(result: Result, out: Path) -> str:
    """Write ``step.md`` and the figure; returns the report as text."""
    tables = [
        targets(result),
        flat(result),
        compared(result),
        *lists(result),
        outside(result),
        periods(result),
    ]
    tables = [table for table in tables if table.rows]
    head = "<!-- Made by benchmarks/step.py. Do not edit. -->\n# What a step costs\n"
    pages = [head + about(result) + "\n", *(table.markdown() for table in tables)]
    (out / "step.md").write_text("\n".join(pages))
    draw(result, out / "step")
    return "\n".join([about(result) + "\n", *(table.text() for table in tables)])


def about(result: Result) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    before, after = result["load"]
    quick = " A quick run." if result["quick"] else ""
    busy = " The machine was busy: wall times mean little." if before > BUSY else ""
    return (
        f"{result['machine']}. {packages}.\n"
        f"Matrix product of torch on one thread: {result['flops'] / 1e9:.0f} GFLOP/s. "
        f"Load average {before:.1f} before and {after:.1f} after.{busy}{quick}\n"
        "One thread in processor time, two in wall time. Medians over rounds, variants in turn."
    )


# Numbers ------------------------------------------------------------------------------------------


def nanoseconds(result: Result, size: str, name: str) -> float | None:
    """A coordinate of a flat vector."""
    part = result["flat"][size]
    return (
        part["seconds"][name]["median"] / part["coordinates"] * 1e9
        if name in part["seconds"]
        else None
    )


def ours(result: Result) -> str:
    return kernel_name(result["best"])


def judged(result: Result) -> Iterator[tuple[str, str, str, bool]]:
    """Each target: what of, the target, what was measured, and whether that meets it."""
    yield from judged_second(result)
    name = ours(result)
    for size in result["flat"]:
        share = FLOP / nanoseconds(result, size, name) * 1e9 / result["flops"]
        what = f"share of the matrix-product rate, {name}, {size}"
        yield what, f"≥ {SHARE:.0%}", f"{share:.0%}", share >= SHARE
    known = result["periods"]
    if (best := known.get(result["best"])) is not None:
        share = FLOP * PERIOD * LEARNER / best["forwards"]["median"] / result["flops"]
        what = f"the same, a period forwards, {result['best']}"
        yield what, f"≥ {SHARE:.0%}", f"{share:.0%}", share >= SHARE
        speedup = known[WHOLE]["all"]["median"] / best["all"]["median"]
        what = f"a period with its way back, {result['best']} against {WHOLE}"
        yield what, f"≥ {SPEEDUP}×", f"{speedup:.2f}×", speedup >= SPEEDUP
    for threads, parts in result["lists"].items():
        for label, part in parts.items():
            ratio = _ratio(part["seconds"][name])
            what = f"{label} against flat, {_threads(threads)}"
            yield what, f"≤ {RATIO}×", f"{ratio:.2f}×", ratio <= RATIO
    for label, part in result["lists"]["1"].items():
        for how, one in part["outside"].get("list", {}).items():
            each = one["median"] / part["tensors"] * 1e6
            what, aim = f"outside the kernel ({how}), {label}", f"≤ {OUTSIDE:.0f} µs a tensor"
            yield what, aim, f"{each:.1f} µs", each <= OUTSIDE


def judged_second(result: Result) -> Iterator[tuple[str, str, str, bool]]:
    """The same of HyperAdam2, on each backend for this machine."""
    names = [second_name(x) for x in result["backends"] if x not in ("portable", "triton", "torch")]
    for size, part in result["flat"].items():
        for name in names:
            value = nanoseconds(result, size, name)
            if value is None:  # results from before there was a HyperAdam2
                continue
            if part["coordinates"] >= LONG:
                what, aim = f"{name}, {size}", f"≤ {NANOSECONDS:.0f} ns a coordinate"
                yield what, aim, f"{value:.1f} ns", value <= NANOSECONDS
            if part["coordinates"] == MILLION:
                times = value / nanoseconds(result, size, FUSED)
                what, aim = f"{name} against {FUSED}, {size}", f"≤ {TIMES_ADAM:.0f}×"
                yield what, aim, f"{times:.1f}×", times <= TIMES_ADAM


def _ratio(forms: dict[str, dict[str, float]]) -> float:
    return forms["list"]["median"] / forms["flat"]["median"]


def _threads(number: str) -> str:
    return "one thread" if number == "1" else "two threads"


def spread(summaries: Iterable[dict[str, float]]) -> str:
    """How far apart the rounds lay, at worst."""
    worst = max((one["high"] - one["low"]) / one["median"] for one in summaries)
    return f"The middle half of a variant's rounds spans at most {worst:.0%} of its median."


# Tables -------------------------------------------------------------------------------------------


def targets(result: Result) -> Table:
    rows = [
        [what, target, value, "yes" if met else "no"] for what, target, value, met in judged(result)
    ]
    return Table("Targets", ["target", "aim", "measured", "met"], rows)


def flat(result: Result) -> Table:
    sizes = list(result["flat"])
    names = result["flat"][sizes[0]]["seconds"]
    rows = [[name, *(_cell(nanoseconds(result, size, name)) for size in sizes)] for name in names]
    note = spread(one for part in result["flat"].values() for one in part["seconds"].values())
    return Table("One flat vector: ns a coordinate", ["one thread", *sizes], rows, note)


def compared(result: Result) -> Table:
    sizes, name, second = list(result["flat"]), ours(result), second_name(result["best"])
    rows = []
    for slow, fast in (
        (NAIVE, name),
        (NAIVE, TILES),
        (TILES, name),
        (name, half_name(name)),
        (second_name("torch"), second),
        (name, second),
        (second, half_name(second)),
    ):
        rows.append([f"{fast}, times as fast as {slow}", *_quotients(result, slow, fast)])
    for mine in (name, second):
        for other in (FUSED, FREE, PRODIGY):
            rows.append([f"{mine}, times as long as {other}", *_quotients(result, mine, other)])
    rows = [row for row in rows if any(cell != NONE for cell in row[1:])]
    shares = (FLOP / nanoseconds(result, size, name) * 1e9 / result["flops"] for size in sizes)
    rows.append(
        [f"{name}, share of the matrix-product rate", *(f"{share:.0%}" for share in shares)]
    )
    note = f"The share counts the {FLOP:,} flop of a coordinate's small matrix products."
    return Table("One flat vector: compared", ["one thread", *sizes], rows, note)


def _quotients(result: Result, above: str, below: str) -> list[str]:
    pairs = [
        (nanoseconds(result, size, above), nanoseconds(result, size, below))
        for size in result["flat"]
    ]
    return [f"{a / b:.1f}×" if a is not None and b is not None else NONE for a, b in pairs]


def _cell(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def lists(result: Result) -> list[Table]:
    return [
        Table(
            f"{label}: {part['tensors']} tensors, {part['coordinates']:,} coordinates, "
            f"{_threads(threads)}",
            ["ms a step", "list", "flat", "list against flat"],
            [
                [
                    name,
                    *(_cell(forms[form]["median"] * 1e3) for form in ("list", "flat")),
                    f"{_ratio(forms):.2f}×",
                ]
                for name, forms in part["seconds"].items()
            ],
            spread(one for forms in part["seconds"].values() for one in forms.values()),
        )
        for threads, parts in result["lists"].items()
        for label, part in parts.items()
    ]


def outside(result: Result) -> Table:
    rows = []
    for label, part in result["lists"]["1"].items():
        for how, one in part["outside"].get("list", {}).items():
            many, alone = one["median"] * 1e6, part["outside"]["flat"][how]["median"] * 1e6
            share = many / 1e6 / part["seconds"][ours(result)]["list"]["median"]
            cells = [_cell(many), _cell(many / part["tensors"]), f"{share:.1%}", _cell(alone)]
            rows.append([f"{label}, {how}", *cells])
    header = ["one thread", "µs a step", "µs a tensor", "share of the step", "flat, µs a step"]
    note = (
        "Whole: a step less its calls into C, which leave Python's caches cold. "
        "Warm: a step whose calls into C do nothing. "
        "Flat: the same for one tensor, that is, what a step costs however many there are."
    )
    return Table("What of HyperAdam's step is not the kernel's", header, rows, note)


def periods(result: Result) -> Table:
    known, rows = result["periods"], []
    for name, value in known.items():
        base = known[": ".join([*name.split(": ")[:-1], WHOLE])]
        ahead, both, memory = (value[key]["median"] for key in ("forwards", "all", "MB"))
        numbers = [f"{x:.0f}" for x in (both * 1e3, ahead * 1e3, memory)]
        less = f"{memory / base['MB']['median']:.2f}" if base["MB"]["median"] else NONE
        rows.append([name, *numbers, f"{base['all']['median'] / both:.1f}×", less])
    header = ["one thread", "ms", "of it forwards", "MB", "as fast as autograd", "of its memory"]
    return Table(f"{PERIOD} steps with their way back, {LEARNER:,} coordinates", header, rows)


# The figure ---------------------------------------------------------------------------------------


def draw(result: Result, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    name, second = ours(result), second_name(result["best"])
    styles = {
        NAIVE: ("#999999", "o"),
        TILES: ("#E69F00", "s"),
        name: ("#0072B2", "^"),
        second: ("#D55E00", "P"),
        FREE: ("#009E73", "D"),
        FUSED: ("#56B4E9", "v"),
    }
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.2), width_ratios=[3, 2], layout="constrained"
    )
    for label, (colour, marker) in styles.items():
        values = {
            part["coordinates"]: nanoseconds(result, size, label)
            for size, part in result["flat"].items()
        }
        points = {p: value for p, value in values.items() if value is not None}
        if not points:
            continue
        left.plot(list(points), list(points.values()), marker=marker, color=colour)
        end = list(points.items())[-1]
        # schedule-free AdamW is close below
        place = (8, 3) if label == second else (8, -5)
        left.annotate(
            label, end, textcoords="offset points", xytext=place, fontsize=8, color=colour
        )
    floor = FLOP / result["flops"] * 1e9
    left.axhline(floor, color="black", linestyle=":", linewidth=1)
    first = min(part["coordinates"] for part in result["flat"].values())
    left.annotate(
        "at the matrix-product rate",
        (first, floor),
        textcoords="offset points",
        xytext=(0, -10),
        fontsize=8,
    )
    left.set(
        xscale="log", yscale="log", xlabel="coordinates", ylabel="ns a coordinate, processor time"
    )
    left.set_xticks([part["coordinates"] for part in result["flat"].values()], list(result["flat"]))
    left.minorticks_off()
    left.set_title("One step of one flat vector, one thread")
    last = max(part["coordinates"] for part in result["flat"].values())
    left.set_xlim(first / 1.5, last * (last / first) ** 0.45)  # room for the names

    shown = [label for label in reversed(result["periods"]) if ": " not in label]
    taken = [result["periods"][label] for label in shown]
    right.barh(shown, [value["all"]["median"] * 1e3 for value in taken], color="#0072B2")
    right.barh(
        shown,
        [value["forwards"]["median"] * 1e3 for value in taken],
        color="#56B4E9",
        label="forwards",
    )
    for i, value in enumerate(taken):
        ms = value["all"]["median"] * 1e3
        right.annotate(
            f" {ms:.0f} ms, {value['MB']['median']:.0f} MB", (ms, i), va="center", fontsize=8
        )
    right.set(xlabel="ms, processor time", title=f"{PERIOD} steps and back, p = {LEARNER:,}")
    right.set_xlim(0, 1.5 * max(value["all"]["median"] for value in taken) * 1e3)
    right.legend(fontsize=8, loc="lower right")
    for suffix in ("png", "svg"):
        figure.savefig(
            path.with_suffix(f".{suffix}"),
            dpi=130,
            metadata={"Date": None} if suffix == "svg" else None,
        )
    plt.close(figure)
