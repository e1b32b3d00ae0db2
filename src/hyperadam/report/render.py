"""Pages in one file, with style, script and curves inside and nothing to load.

Templates are Jinja's, with autoescape: what comes from results is text, whatever it holds.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hyperadam.report.claims import Verdict
from hyperadam.report.curves import TAIL
from hyperadam.report.figures import EXPLODED, Look
from hyperadam.report.measures import smallest_in_words
from hyperadam.report.paper import Document
from hyperadam.report.section import Table
from hyperadam.report.suite_page import suite_html

#: A sign and a class for each verdict: colour alone says nothing.
SIGNS = {
    Verdict.HOLDS: ("✓", "holds"),
    Verdict.PARTLY: ("◐", "partly"),
    Verdict.FAILS: ("✗", "fails"),
    Verdict.UNDECIDED: ("≈", "undecided"),
    Verdict.MISSING: ("–", "missing"),
}
DASHES = {"-": "", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}
#: What is too dark for a dark page, and what stands for it there.
ON_DARK = {
    "#000000": "#f2f2f2",
    "#0072B2": "#2489d6",
    "#56B4E9": "#a8deff",
    "#8A6D00": "#b39a2e",
    "#AA4499": "#d06cc0",
    "#117733": "#53c27a",
    "#332288": "#9d93f2",
    "#882255": "#e07fb0",
}


def page(document: Document) -> str:
    """The page of the paper."""
    looks = document.looks
    drawn: dict[str, Any] = {}
    for part in document.sections:
        drawn |= part.curves
    data = {
        "panels": drawn,
        "looks": {name: {"dash": DASHES[x.line], "width": x.width} for name, x in looks.items()},
        "exploded": EXPLODED,
    }
    return fill(
        "paper.html",
        document=document,
        style=Markup(_file("paper.css") + _colours(looks)),
        script=Markup(_file("paper.js")),
        curves=_json(data),
        suite=Markup(suite_html(document.suite)) if document.suite else "",
        signs=SIGNS,
        band=f"{100 - 200 * TAIL:.0f} %",
        matters=smallest_in_words(),
        caption=caption,
    )


def fill(template: str, **values: Any) -> str:
    """A template with these values."""
    return _environment().get_template(template).render(values)


def embedded(figure: Path) -> str:
    """An SVG file as an address that needs no file."""
    return f"data:image/svg+xml;base64,{base64.b64encode(figure.read_bytes()).decode()}"


def caption(table: Table) -> str:
    """What stands above a table: what its numbers are, over how many runs, and which way is
    better."""
    several = len({column.steps for column in table.columns}) > 1
    counts = sorted({entry.runs for row in table.rows for entry in row.entries if entry.runs})
    text = table.title[0].upper() + table.title[1:]
    if not several and not table.measure.startswith("seconds"):
        text += f" after {table.columns[0].steps:,} steps"
    if counts:
        runs = " or ".join(f"{n:,}" for n in counts)
        text += f": mean ± standard error over {runs} {table.one}{'' if counts == [1] else 's'}"
    return f"{text}; {'lower' if table.lower else 'higher'} is better."


@functools.cache
def _environment() -> Environment:
    loader = PackageLoader("hyperadam.report", "template")
    return Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _file(name: str) -> str:
    return (resources.files("hyperadam.report") / "template" / name).read_text(encoding="utf-8")


def _json(data: Any) -> Markup:
    """JSON that can stand inside a script element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _colours(looks: Mapping[str, Look]) -> str:
    """A colour per optimizer, by the order in which they come, for either scheme."""
    light = "".join(f".look-{n}{{--c:{look.colour}}}" for n, look in enumerate(looks.values()))
    dark = "".join(
        f".look-{n}{{--c:{ON_DARK[look.colour]}}}"
        for n, look in enumerate(looks.values())
        if look.colour in ON_DARK
    )
    return f"\n{light}\n@media screen and (prefers-color-scheme: dark){{{dark}}}\n"
