"""The suite's section as HTML, for the page of the paper."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from typing import Any

from hyperadam.report.suite import Grid
from hyperadam.report.suite_figures import Figure


def suite_html(made: Mapping[str, Any]) -> str:
    """The section: scores first, then figures, then every number, then what is missing."""
    first, rest = made["grids"][:3], made["grids"][3:]
    text = [
        f'<section class="experiment" id="suite"><h2>{escape(made["title"])}</h2>',
        f"<p>{escape(made['about'])}</p>",
        f"<p>Re-make it: <code>{escape(made['command'])}</code></p>",
        *(_grid(grid) for grid in first if grid.rows),
        f'<ul class="reading">{"".join(f"<li>{escape(note)}</li>" for note in made["notes"])}</ul>',
        *(_figure(figure) for figure in made["figures"]),
    ]
    for grid in [*rest, *made["more"]]:
        if grid.rows:
            text.append(
                f"<details><summary>{escape(grid.title)}</summary>{_grid(grid, False)}</details>"
            )
    if made["missing"]:
        lines = "".join(f"<li>{escape(line)}</li>" for line in made["missing"])
        text.append(f"<details><summary>Not computed yet ({len(made['missing'])})</summary>")
        text.append(f"<ul>{lines}</ul></details>")
    return "\n".join([*text, "</section>"])


def _grid(grid: Grid, titled: bool = True) -> str:
    title = f"<h3>{escape(grid.title)}</h3>" if titled else ""
    head = "".join(f'<th scope="col" class="prose">{escape(cell)}</th>' for cell in grid.header)
    rows = []
    for first, *cells in grid.rows:
        body = "".join(
            f'<td class="best">{escape(cell[1:])} <span title="the lowest">★</span></td>'
            if cell.startswith("*")
            else f"<td>{escape(cell)}</td>"
            for cell in cells
        )
        rows.append(f'<tr><th scope="row">{escape(first)}</th>{body}</tr>')
    table = f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    region = f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(grid.title)}">'
    return f"{title}{region}{table}</div>"


def _figure(figure: Figure) -> str:
    content = base64.b64encode(figure.path.read_bytes()).decode()
    return (
        f'<figure class="picture"><figcaption>{escape(figure.title)}</figcaption>'
        f'<img src="data:image/svg+xml;base64,{content}" alt="{escape(figure.alt)}"></figure>'
    )
