"""A web page in one file: the table and the figure of a comparison, with nothing to load from anywhere."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

from hyperadam.experiments.atomic import write_text
from hyperadam.report.tables import Table

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff }
body { max-width: 68rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: 0.25rem }
p, footer { color: #444 }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: 0.25rem 1rem 0.25rem 0; white-space: nowrap }
th { border-bottom: 2px solid #1a1a1a }
tr.first td { border-top: 1px solid #bbb }
td.best { font-weight: 700 }
img { width: 100%; height: auto; margin: 1rem 0 }
code { background: #f2f2f2; padding: 0.1rem 0.3rem }
"""


def write_page(
    path: Path, title: str, summary: str, table: Table, figure: Path | None, notes: list[str]
) -> None:
    """Write an HTML page with the table, the figure (an SVG file, copied in) and notes below."""
    text = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1><p>{escape(summary)}</p>",
        _table(table),
    ]
    if figure is not None:
        content = base64.b64encode(figure.read_bytes()).decode()
        tasks = ", ".join(dict.fromkeys(row.result.task for row in table.rows))
        text.append(
            f'<img src="data:image/svg+xml;base64,{content}" alt="Training loss by step for {escape(tasks)}">'
        )
    text += [f"<p>{escape(note)}</p>" for note in notes]
    write_text(path, "\n".join([*text, "</body></html>", ""]))


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in table.header)
    lines, task = [], None
    for row in table.rows:
        cells = [escape(cell) for cell in table.cells(row)]
        first = row.result.task != task
        task = row.result.task
        marked = [
            f'<td class="best">{cell}</td>' if row.best and n in (1, 3) else f"<td>{cell}</td>"
            for n, cell in enumerate(cells)
        ]
        lines.append(f"{'<tr class=first>' if first else '<tr>'}{''.join(marked)}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
