"""Pages in one file, with style, script and curves inside and nothing to load.

Templates are Jinja's, with autoescape: what comes from results is text, whatever it holds.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hyperadam.report.claims import Verdict
from hyperadam.report.curves import TAIL, Panel
from hyperadam.report.figures import EXPLODED, Look
from hyperadam.report.measures import smallest_in_words
from hyperadam.report.names import called
from hyperadam.report.paper import Document
from hyperadam.report.section import Table

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
    "#661100": "#e0906a",
    "#8A6D00": "#b39a2e",
    "#AA4499": "#d06cc0",
    "#117733": "#53c27a",
    "#332288": "#9d93f2",
    "#882255": "#e07fb0",
}


def page(
    document: Document, links: Mapping[str, str] | None = None, foot: Sequence[str] = ()
) -> str:
    """The page of the paper. ``links`` lead to other pages, each with its text; ``foot`` is what
    stands at the end: where and when it was made."""
    panels = [panel for part in document.sections for panel in part.panels]
    if document.recipe:
        panels += document.recipe.panels
    if document.suite:
        panels += [*document.suite.panels, *document.suite.sensitivity]
    return fill(
        "paper.html",
        document.looks,
        panels,
        document=document,
        signs=SIGNS,
        band=f"{100 - 200 * TAIL:.0f} %",
        matters=smallest_in_words(),
        caption=caption,
        links=links or {},
        foot=foot,
    )


def fill(template: str, looks: Mapping[str, Look], panels: Sequence[Panel], **values: Any) -> str:
    """A template with these values; style, script and the curves of ``panels`` inside."""
    numbers = {name: f"look-{n}" for n, name in enumerate(looks)}
    data = {
        "panels": {panel.id: panel.data for panel in panels},
        "looks": {
            name: {"dash": DASHES[x.line], "width": x.width, "called": called(name)}
            for name, x in looks.items()
        },
        "exploded": EXPLODED,
    }
    script = "\n".join(_file(name) for name in ("numbers.js", "chart.js", "page.js"))
    shared = {
        "style": Markup(_file("page.css") + _colours(looks)),
        "script": Markup(f'"use strict";\n{{\n{script}}}'),
        "curves": _json(data),
        "kind": lambda name: numbers.get(name, ""),
        "called": called,
    }
    shared |= {"panels": panels}
    return _environment().get_template(template).render(values | shared)


def caption(table: Table) -> str:
    """What stands above a table: what its numbers are, over how many runs, and which way is
    better."""
    there = [entry for row in table.rows for entry in row.entries if entry.runs]
    text = table.title[0].upper() + table.title[1:]
    if not table.several and not table.measure.startswith("seconds"):
        text += f" after {table.columns[0].steps:,} steps"
    if there:
        parts = []
        for one in sorted({entry.one for entry in there}):
            counts = sorted({entry.runs for entry in there if entry.one == one})
            name = table.one if one == "run" else one
            numbers = " or ".join(f"{n:,}" for n in counts)
            parts.append(f"{numbers} {name}{'' if counts == [1] else 's'}")
        text += f": mean ± standard error over {' or '.join(parts)}"
    return f"{text}; {'lower' if table.lower else 'higher'} is better."


@functools.cache
def _environment() -> Environment:
    loader = PackageLoader("hyperadam.report", "template")
    made = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["called"] = called
    return made


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
