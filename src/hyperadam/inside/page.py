"""Looks as one page: figures, how to read them, and the last look in a table."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from hyperadam.files import write_atomically
from hyperadam.inside.figures import Figure, draw_all

if TYPE_CHECKING:
    from hyperadam.inside.inspection import Inspection

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0.25rem }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.2rem }
p { color: #333; max-width: 46rem; margin: 0.3rem 0 }
figure { margin: 0.8rem 0; overflow-x: auto }
img { width: 100%; min-width: 40rem; height: auto }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin-top: 0.8rem }
th, td { text-align: right; padding: 0.25rem 0 0.25rem 1.4rem; white-space: nowrap }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
th { border-bottom: 2px solid #1a1a1a; font-weight: 600 }
td { border-bottom: 1px solid #e4e4e4 }
"""


def write_page(inspection: Inspection, folder: Path, title: str, about: str) -> list[Path]:
    """Write ``index.html``, ``looks.json`` and the figures; their paths, the page's first."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = draw_all(inspection.looks, folder)
    page, numbers = folder / "index.html", folder / "looks.json"
    write_atomically(numbers, inspection.as_json())
    write_atomically(page, _page(inspection, title, about, figures))
    return [page, numbers, *(path for figure in figures for path in figure.paths)]


def _page(inspection: Inspection, title: str, about: str, figures: list[Figure]) -> str:
    last = inspection.last
    text = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(about)}</p>" if about else "",
    ]
    for figure in figures:
        svg = base64.b64encode(figure.paths[0].read_bytes()).decode()
        title, source = escape(figure.title), f"data:image/svg+xml;base64,{svg}"
        text += [
            f"<h2>{title}</h2><p>{escape(figure.caption)}</p>",
            f'<figure><img alt="{title}" src="{source}"></figure>',
        ]
    header, rows = inspection.table()
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    text += [
        f"<h2>Every tensor at step {last.step}</h2>",
        '<div class="wide"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>",
        "<p>The numbers behind the figures are in looks.json.</p></body></html>",
    ]
    return "\n".join([line for line in text if line] + [""])
