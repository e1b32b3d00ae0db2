"""The page of the paper: its document as HTML in one file, with style, script and curves inside and nothing to load."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from hyperadam.report.claims import Verdict
from hyperadam.report.curves import TAIL
from hyperadam.report.figures import EXPLODED
from hyperadam.report.measures import smallest_in_words
from hyperadam.report.paper import extent
from hyperadam.report.suite_page import suite_html

#: A sign and a class for each verdict: colour alone says nothing.
SIGNS = {
    Verdict.HOLDS.value: ("✓", "holds"),
    Verdict.PARTLY.value: ("◐", "partly"),
    Verdict.FAILS.value: ("✗", "fails"),
    Verdict.UNDECIDED.value: ("≈", "undecided"),
    Verdict.MISSING.value: ("–", "missing"),
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


def page(document: Mapping[str, Any]) -> str:
    """The whole page."""
    parts = document["experiments"]
    main = next((part for part in parts if part["name"] == document["headline"]), None)
    return _fill(
        _template("paper.html"),
        STYLE=_template("paper.css") + _colours(document["looks"]),
        SCRIPT=_template("paper.js"),
        CURVES=_json(
            {
                "panels": document["curves"],
                "looks": {k: _look(v) for k, v in document["looks"].items()},
                "exploded": EXPLODED,
            }
        ),
        CONTENTS="".join(
            f'<li><a href="#{_id(part)}">{escape(part["title"])}</a></li>' for part in parts
        )
        + ('<li><a href="#suite">The suite</a></li>' if document["suite"] else ""),
        QUICK=_QUICK if document["quick"] else "",
        COUNTS=_counts(document["counts"]),
        HEADLINE=_headline(main) if main else "<p>There are no results yet.</p>",
        CLAIMS=_claims(parts),
        EXPERIMENTS="\n".join(_section(part) for part in parts),
        SUITE=suite_html(document["suite"]) if document["suite"] else "",
        SETTINGS=_settings(document),
        BAND=f"{100 - 200 * TAIL:.0f} %",
        MATTERS=escape(smallest_in_words()),
        CHANCE=escape(document["chance"]),
    )


_QUICK = (
    '<p class="banner"><strong>A coarse version.</strong> Fewer runs than the paper\'s: it shows that everything works, '
    "and its numbers are not those to quote.</p>"
)


def _template(name: str) -> str:
    return (resources.files("hyperadam.report") / "template" / name).read_text(encoding="utf-8")


def _fill(text: str, **parts: str) -> str:
    """Replace each ``{{NAME}}``, in one pass: what is put in is not searched again."""
    pieces = text.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def _json(data: Any) -> str:
    """JSON that can stand inside a script element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _id(part: Mapping[str, Any]) -> str:
    return f"experiment-{escape(part['name'])}"


def _look(look: Mapping[str, Any]) -> dict[str, Any]:
    return {"dash": DASHES[look["line"]], "width": look["width"]}


def _colours(looks: Mapping[str, Mapping[str, Any]]) -> str:
    """A colour per optimizer, by the order in which they come, for either scheme."""
    light = "".join(f".look-{n}{{--c:{look['colour']}}}" for n, look in enumerate(looks.values()))
    dark = [
        (n, ON_DARK[look["colour"]])
        for n, look in enumerate(looks.values())
        if look["colour"] in ON_DARK
    ]
    rules = "".join(f".look-{n}{{--c:{colour}}}" for n, colour in dark)
    return f"\n{light}\n@media screen and (prefers-color-scheme: dark){{{rules}}}\n"


def _verdict(verdict: str) -> str:
    sign, kind = SIGNS[verdict]
    return f'<span class="verdict {kind}"><span aria-hidden="true">{sign}</span> {escape(verdict)}</span>'


def _counts(counts: Mapping[str, int]) -> str:
    tiles = []
    for verdict, count in counts.items():
        sign, kind = SIGNS[verdict]
        tiles.append(
            f'<li class="{kind}"><b>{count}</b> <span><span aria-hidden="true">{sign}</span> {escape(verdict)}</span></li>'
        )
    total = f'<p>What becomes of the paper\'s {sum(counts.values())} claims, each <a href="#claims">listed below</a>:</p>'
    return f'{total}<ul class="counts">{"".join(tiles)}</ul>'


def _headline(part: Mapping[str, Any]) -> str:
    link = f'<p>From <a href="#{_id(part)}">{escape(part["title"])}</a>, where the curves are.</p>'
    return "".join(_table(part, table) for table in part["tables"][:1]) + link


def _scroll(table: str, label: str) -> str:
    """A table that scrolls by itself, also by keyboard."""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'
    )


def _claims(parts: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for part in parts:
        for claim in part["claims"]:
            twin = (
                f"<br><small>{escape(claim['twin']['better'])}: {_verdict(claim['twin']['verdict'])}</small>"
                if claim["twin"]
                else ""
            )
            rows.append(
                f'<tr><td class="prose"><a href="#{escape(claim["id"])}">{escape(claim["text"])}</a></td>'
                f"<td>{_verdict(claim['verdict'])}{twin}</td><td>{escape(part['title'])}</td></tr>"
            )
    if not rows:
        return "<p>No claims.</p>"
    head = '<thead><tr><th scope="col">the paper says</th><th scope="col">we find</th><th scope="col">experiment</th></tr></thead>'
    return _scroll(
        f'<table class="claims">{head}<tbody>{"".join(rows)}</tbody></table>', "All claims"
    )


def _section(part: Mapping[str, Any]) -> str:
    where = f"In the paper: {escape(part['paper'])}" if part["paper"] else "Not in the paper"
    text = [
        f'<section class="experiment" id="{_id(part)}"><h2>{escape(part["title"])}</h2>',
        f'<p class="where">{where}</p><p>{escape(part["about"])}</p>',
        f"<p>Re-make it: <code>{escape(part['command'])}</code></p>",
    ]
    if part["measured"] < part["expected"] or part["short"]:
        text.append(f'<p class="banner">Measured so far: {extent(part)}.</p>')
    if part["claims"]:
        text.append("<h3>What the paper claims, and whether it holds</h3>")
        text += [_claim(claim) for claim in part["claims"]]
    text.append("<h3>What we find</h3>")
    text += [_table(part, table) for table in part["tables"]]
    shown = [_panel(panel) for panel in part["panels"] if panel["shown"]]
    more = [_panel(panel) for panel in part["panels"] if not panel["shown"]]
    if shown:
        text += ["<h3>Training curves</h3>", *shown]
    if more:
        text.append(
            f"<details><summary>Curves of the other tasks ({len(more)})</summary>{''.join(more)}</details>"
        )
    return "\n".join([*text, "</section>"])


def _claim(claim: Mapping[str, Any]) -> str:
    judged = [claim, claim["twin"]] if claim["twin"] else [claim]
    lines = "".join(f"<p>{_verdict(one['verdict'])} {escape(one['finding'])}</p>" for one in judged)
    rows = "".join(
        f'<tr class="{"first" if n == 0 and one is not claim else ""}"><td>{escape(one["better"])}</td>'
        f"<td>{escape(c['other'])}</td><td>{escape(c['task'])}</td><td>{c['steps']:,}</td><td>{escape(c['outcome'])}</td><td>{escape(c['text'])}</td></tr>"
        for one in judged
        for n, c in enumerate(one["comparisons"])
    )
    titles = ("optimizer", "against", "task", "steps", "outcome", f"its {claim['measure']}")
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return (
        f'<div class="claim" id="{escape(claim["id"])}"><p class="says">{escape(claim["text"])}</p>{lines}'
        f"<details><summary>Every comparison</summary>{_scroll(table, 'Comparisons')}</details></div>"
    )


def _table(part: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    if not table["columns"]:
        return f'<p class="banner">The {escape(table["title"])} is not measured yet.</p>'
    several = len({column["steps"] for column in table["columns"]}) > 1
    head = "".join(
        f'<th scope="col">{escape(column["task"])}'
        + (f"<br><small>{column['steps']:,} steps</small>" if several else "")
        + "</th>"
        for column in table["columns"]
    )
    rows = []
    for row in table["rows"]:
        cells = "".join(_cell(cell) for cell in row["cells"])
        rows.append(f'<tr><th scope="row">{escape(row["optimizer"])}</th>{cells}</tr>')
    counts = sorted(
        {cell["runs"] for row in table["rows"] for cell in row["cells"] if not cell["missing"]}
    )
    runs = " or ".join(f"{n:,}" for n in counts)
    steps = (
        ""
        if several or table["measure"].startswith("seconds")
        else f" after {table['columns'][0]['steps']:,} steps"
    )
    over = (
        f": mean ± standard error over {runs} {table['one']}{'' if counts == [1] else 's'}"
        if counts
        else ""
    )
    title = table["title"][0].upper() + table["title"][1:]
    better = "lower" if table["lower"] else "higher"
    caption = f"<caption><span>{escape(title)}{steps}{over}; {better} is better.</span></caption>"
    top = f'<thead><tr><th scope="col">optimizer</th>{head}</tr></thead>'
    body = f'<table class="numbers">{caption}{top}<tbody>{"".join(rows)}</tbody></table>'
    return _scroll(body, f"{part['title']}: {table['title']}")


def _cell(cell: Mapping[str, Any]) -> str:
    paper = f'<small class="paper">paper {escape(cell["paper"])}</small>' if "paper" in cell else ""
    if cell.get("damaged"):
        return f'<td class="missing" title="{escape(cell["damaged"])}">damaged{paper}</td>'
    if cell["missing"]:
        return f'<td class="missing">not measured{paper}</td>'
    if cell["diverged"]:
        count = f"{cell['diverged']} of {cell['runs']} " if cell["failed"] == "diverged" else ""
        rest = f"<small>the others {escape(cell['rest'])}</small>" if "rest" in cell else ""
        return f'<td class="diverged">{count}{escape(cell["failed"])}{rest}{paper}</td>'
    if cell["best"]:
        return f'<td class="best">{escape(cell["text"])} <span title="the best mean">★</span>{paper}</td>'
    tied = ' <span title="not clearly different from the best">≈</span>' if cell.get("tied") else ""
    return f"<td>{escape(cell['text'])}{tied}{paper}</td>"


def _panel(panel: Mapping[str, Any]) -> str:
    return (
        f'<figure class="chart" data-panel="{escape(panel["id"])}" data-alt="{escape(panel["alt"])}">'
        f"<figcaption>{escape(panel['title'])}</figcaption></figure>"
    )


def _settings(document: Mapping[str, Any]) -> str:
    known = document["settings"]
    protocol = _plain(
        ("experiment", "steps", "runs", "seeds", "batches of the final loss", "measured"),
        [
            (
                part["name"],
                ", ".join(f"{n:,}" for n in part["steps"]),
                f"{', '.join(map(str, part['runs'])) or 'none'} (planned: {part['planned_runs']})",
                "; ".join(part["seeds"]),
                ", ".join(f"{n:,}" for n in part["final_batches"]),
                extent(part),
            )
            for part in document["experiments"]
        ],
    )
    versions = _plain(
        ("results", "made with"),
        [
            (str(v["results"]), ", ".join(f"{k} {x}" for k, x in v["made_with"].items()))
            for v in known["versions"]
        ],
    )
    weights = _plain(
        ("optimizer", "rule", "step size", "options changed", "sha256 of the weights"),
        [
            (
                w["optimizer"],
                w["rule"],
                f"{w['step_size']:g}",
                ", ".join(f"{k}={v}" for k, v in w["config"].items()) or "none",
                w["sha256"],
            )
            for w in known["weights"]
        ],
    )
    rates = _plain(
        (
            "task",
            "steps",
            "optimizer",
            "learning rate",
            "where from",
            "tuning seeds",
            "grid: rate → mean final loss",
        ),
        [
            (
                row["task"],
                f"{row['steps']:,}",
                row["optimizer"],
                f"{row['lr']:.4g}",
                row["source"] + (", at the edge of the grid" if row.get("at_edge") else ""),
                row.get("tuning_seeds", "–"),
                "  ".join(_point(*point) for point in row.get("grid", [])) or "–",
            )
            for row in known["rates"]
        ],
    )
    blocks = {
        "Protocol": protocol,
        "Versions": versions,
        "Weights": weights,
        "Learning rates": rates,
    }
    return "".join(
        f"<details><summary>{title}</summary>{_scroll(table, title)}</details>"
        for title, table in blocks.items()
    )


def _point(lr: float, score: float | None, diverged: int) -> str:
    return f"{lr:.3g} → {f'{score:.4g}' if score is not None else f'{diverged} diverged'}"


def _plain(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
