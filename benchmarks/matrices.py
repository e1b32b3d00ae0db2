"""What a step of HyperAdam2 costs on matrices, whose directions it makes orthogonal.

    python benchmarks/matrices.py [--out DIR]

Beside it fused Adam, schedule-free AdamW, Prodigy and Muon, on one thread, in processor time. Every
variant is timed in turn, round after round, and its median taken. Writes ``matrices.json`` and
``matrices.md``.
"""

from __future__ import annotations

import argparse
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import hyperadam
from contenders import (
    FREE,
    FUSED,
    PRODIGY,
    Setup,
    Shapes,
    adam,
    deep_mlp,
    learned,
    parameters,
    prodigy,
    schedule_free,
    second_name,
    size,
    transformer,
)
from hyperadam.kernels import native
from timing import Work, in_turn, machine, versions

RESULTS = Path(__file__).parent / "results"
ROUNDS = 9
MUON = "Muon"


def mlp(*widths: int) -> Shapes:
    """Weights and biases of an MLP."""
    return [shape for i, o in pairwise(widths) for shape in ((o, i), (o,))]


#: Matrices alone, then networks.
LISTS: dict[str, Shapes] = {
    "128 × 784": [(128, 784)],
    "1024 × 1024": [(1024, 1024)],
    "ten of 1024 × 1024": [(1024, 1024)] * 10,
    "MLP 784-128-128-10": mlp(784, 128, 128, 10),
    "MLP 784-512-512-512-10": mlp(784, 512, 512, 512, 10),
    "MLP of 9 hidden layers of 20": deep_mlp(),
    "MLP 64-32-10": mlp(64, 32, 10),
    "CNN 32-64-64": [(32, 3, 3, 3), (32,), (64, 32, 3, 3), (64,), (64, 64, 3, 3), (64,), (10, 64)],
    "transformer, 6 layers of 256": transformer(),
}


def muon(shapes: Shapes) -> Work:
    """Torch's Muon on matrices, and fused Adam on the rest."""
    made = parameters([(s[0], torch.Size(s[1:]).numel()) if len(s) > 2 else s for s in shapes])
    matrices = [p for p in made if p.dim() == 2]
    rest = [p for p in made if p.dim() != 2]
    both: list[Any] = [torch.optim.Muon(matrices)]
    both += [torch.optim.Adam(rest, fused=True)] if rest else []

    def step() -> None:
        for one in both:
            one.step()

    return step


def contenders() -> dict[str, Setup]:
    """All that is measured."""
    known = {"total_steps": 1_000_000}
    return {
        **{
            second_name(name): learned(hyperadam.HyperAdam2, name, **known)
            for name in (*native.available()[:2], "torch")
        },
        FUSED: adam(fused=True),
        FREE: schedule_free,
        PRODIGY: prodigy,
        MUON: muon,
    }


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "machine": machine(),
        "versions": versions("torch", "schedulefree", "prodigyopt"),
        "load": [os.getloadavg()[0]],
        "lists": {},
    }
    for name, shapes in LISTS.items():
        works = {label: setup(shapes) for label, setup in contenders().items()}
        result["lists"][name] = {
            "coordinates": size(shapes),
            "seconds": in_turn(works, ROUNDS),
        }
    result["load"].append(os.getloadavg()[0])
    return result


def report(result: dict[str, Any]) -> str:
    """The tables in Markdown."""
    labels = list(next(iter(result["lists"].values()))["seconds"])
    lines = [
        "<!-- Made by benchmarks/matrices.py. Do not edit. -->",
        "# What a step on matrices costs",
        f"{result['machine']}. One thread, processor time, medians of {ROUNDS} rounds. "
        f"Load average {result['load'][0]:.1f} before and {result['load'][1]:.1f} after.",
        "",
        "| ns a parameter | parameters | " + " | ".join(labels) + " |",
        "| --- | ---: |" + " ---: |" * len(labels),
    ]
    for name, part in result["lists"].items():
        cells = [
            f"{part['seconds'][label]['median'] / part['coordinates'] * 1e9:.2f}"
            for label in labels
        ]
        lines.append(f"| {name} | {part['coordinates']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to write")
    out = parser.parse_args().out
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    result = measure()
    out.mkdir(parents=True, exist_ok=True)
    (out / "matrices.json").write_text(json.dumps(result, indent=1) + "\n")
    (out / "matrices.md").write_text(report(result))
    print(report(result))


if __name__ == "__main__":
    main()
