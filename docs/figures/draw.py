"""Draw the pictures of "How it works": python docs/figures/draw.py writes them beside this file.

They are drawn from computed numbers, so that what they show is what the formulas do.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FONT = 'font-family="Helvetica, Arial, sans-serif"'
BLUE, ORANGE, RED, GREY, INK = "#3b76c4", "#d98324", "#c0392b", "#8a8a8a", "#222"


def svg(width: int, height: int, label: str, parts: list[str]) -> str:
    """A picture on white, so that it can be read on a dark page, too."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {FONT} '
        f'font-size="15" role="img" aria-label="{label}">'
    )
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#fff"/>', *parts]) + (
        "\n</svg>\n"
    )


def text(x: float, y: float, words: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{INK}" {more}>{words}</text>'


def line(points: list[tuple[float, float]], colour: str, width: float = 2.5) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def averages() -> str:
    """One weight's noisy gradient, which turns, and a fast and a slow average of it."""
    draw = random.Random(3)
    count, turn = 80, 45
    gradients = [(0.7 if t < turn else -0.6) + draw.gauss(0, 0.8) for t in range(count)]

    def place(t: float, g: float) -> tuple[float, float]:
        return 60 + 7.4 * t, 150 - 48 * g

    parts = [
        line([place(0, 0), place(count, 0)], "#bbb", 1),
        line([place(turn - 0.5, -2.5), place(turn - 0.5, 2.6)], "#bbb", 1),
        text(*place(turn, 2.45), "here the gradient turns", more='font-size="13"'),
    ]
    for t, g in enumerate(gradients):
        x, y = place(t, g)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{GREY}" opacity=".7"/>')
    for beta, colour in ((0.5, ORANGE), (0.95, BLUE)):
        m, points = 0.0, []
        for t, g in enumerate(gradients):
            m = beta * m + (1 - beta) * g
            points.append(place(t, m / (1 - beta ** (t + 1))))
        parts.append(line(points, colour))
    parts += [
        f'<circle cx="70" cy="290" r="3.5" fill="{GREY}"/>',
        text(82, 295, "gradient of one weight, step by step", more='font-size="14"'),
        line([(340, 290), (366, 290)], ORANGE),
        text(374, 295, "fast average: turns at once, jumps about", more='font-size="14"'),
        line([(340, 314), (366, 314)], BLUE),
        text(374, 319, "slow average: sees through noise, turns late", more='font-size="14"'),
    ]
    return svg(700, 330, "A noisy gradient with a fast and a slow average of it", parts)


def shade(value: float, largest: float, above: tuple[int, ...] = (59, 118, 196)) -> str:
    """Blue above zero, red below, white at it."""
    share = min(1.0, abs(value) / largest)
    to = above if value > 0 else (192, 57, 43)
    return "#" + "".join(f"{round(255 + share * (c - 255)):02x}" for c in to)


def fields() -> str:
    """The moment field times the weight field, summed over the Adams, is the update."""
    draw = random.Random(5)
    weights, adams, side = 9, 5, 30
    noise = [0.9, 0.55, 0.35, 0.2, 0.1]  # a slow average has less of it
    true = [math.sin(1.7 * i + 0.6) for i in range(weights)]
    moment = [[true[i] + draw.gauss(0, noise[j]) for i in range(weights)] for j in range(adams)]
    rho = [
        [0.4 * math.exp(-((j - 4 * i / 8) ** 2) / 2.5) for i in range(weights)] for j in range(5)
    ]
    update = [sum(rho[j][i] * moment[j][i] for j in range(adams)) for i in range(weights)]

    def grid(left: float, top: float, rows: list[list[float]], *colour: Any) -> list[str]:
        return [
            f'<rect x="{left + side * i}" y="{top + side * j}" width="{side - 2}" '
            f'height="{side - 2}" fill="{shade(value, *colour)}" stroke="#ccc"/>'
            for j, row in enumerate(rows)
            for i, value in enumerate(row)
        ]

    small = 'font-size="13"'
    bold = 'font-weight="bold"'
    parts = [
        *grid(96, 60, moment, 1.6),
        *grid(456, 60, rho, 0.45, (217, 131, 36)),
        *grid(276, 290, [update], 1.2),
        text(231, 44, "moment field: where each Adam points", "middle", bold),
        text(591, 44, "weight field: how much each counts", "middle", bold),
        text(407, 138, "×", "middle", 'font-size="30"'),
        text(86, 80, "fast", "end", small),
        text(86, 200, "slow", "end", small),
        text(231, 228, "the weights of the network", "middle", small),
        text(591, 228, "the weights of the network", "middle", small),
        text(411, 272, "multiplied, and summed over the Adams", "middle", small),
        text(411, 342, "the step of each weight", "middle", bold),
        f'<path d="M411 238V256" stroke="{INK}" stroke-width="1.5"/>',
        f'<path d="M405 252L411 260L417 252z" fill="{INK}"/>',
        f'<rect x="242" y="362" width="14" height="14" fill="{shade(1, 1)}"/>',
        text(262, 374, "up", more=small),
        f'<rect x="302" y="362" width="14" height="14" fill="{shade(-1, 1)}"/>',
        text(322, 374, "down", more=small),
        '<rect x="382" y="362" width="14" height="14" fill="#d98324" stroke="#ccc"/>',
        text(402, 374, "counts; white: does not", more=small),
    ]
    return svg(760, 390, "The moment field times the weight field, summed, is the step", parts)


def box(x: float, y: float, width: float, height: float, fill: str, edge: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" '
        f'stroke="{edge}" stroke-width="1.5"/>'
    )


def arrow(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="#444" stroke-width="1.5" marker-end="url(#tip)"/>'


def cells() -> str:
    """HyperAdam's two cells, for one weight of the network."""
    tip = (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L10 5L0 10z" fill="#444"/></marker></defs>'
    )
    bold, small = 'font-weight="bold"', 'font-size="13"'
    parts = [
        tip,
        box(14, 150, 92, 50, "#f3f3f3", "#888"),
        box(196, 40, 200, 84, "#fdeedd", ORANGE),
        box(196, 232, 200, 84, "#e3edf9", BLUE),
        box(492, 40, 150, 84, "#fdeedd", ORANGE),
        box(492, 232, 150, 84, "#e3edf9", BLUE),
        '<circle cx="567" cy="178" r="26" fill="#f3f3f3" stroke="#888" stroke-width="1.5"/>',
        arrow("M106 175H150V82H194"),
        arrow("M106 175H150V274H194"),
        arrow("M396 82H490"),
        arrow("M396 274H490"),
        arrow("M296 124V230"),
        arrow("M567 124V150"),
        arrow("M567 232V206"),
        arrow("M593 178H690"),
        arrow("M250 40C250 8 342 8 342 38"),
        arrow("M250 316C250 350 342 350 342 318"),
        text(60, 180, "gradient", "middle"),
        text(296, 72, "StateCell", "middle", bold),
        text(296, 96, "an LSTM that watches", "middle", small),
        text(296, 113, "the gradient", "middle", small),
        text(296, 264, "AdamCell", "middle", bold),
        text(296, 288, "twenty Adams keep", "middle", small),
        text(296, 305, "their moments", "middle", small),
        text(306, 172, "how slowly each forgets:", "start", small),
        text(306, 190, "β and γ", "start", small),
        text(567, 74, "weight field", "middle", bold),
        text(567, 98, "how much each counts", "middle", small),
        text(567, 266, "moment field", "middle", bold),
        text(567, 290, "where each points", "middle", small),
        text(567, 184, "Σ", "middle", 'font-size="20"'),
        text(700, 183, "step"),
        text(362, 22, "remembers", "start", small),
        text(362, 348, "remembers", "start", small),
    ]
    return svg(750, 362, "HyperAdam: a StateCell decides, an AdamCell keeps the moments", parts)


if __name__ == "__main__":
    for name, made in {"averages": averages, "fields": fields, "paper-cells": cells}.items():
        (HERE / f"{name}.svg").write_text(made(), encoding="utf-8")
