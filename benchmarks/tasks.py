"""How much faster a hundred runs of the basic MLP are as one computation than one by one.

    python benchmarks/tasks.py [--repeats N] [--out DIR]

Every variant is timed in turn, round after round. Writes ``tasks.json`` to the output directory.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from hyperadam import tasks
from timing import machine

NAME, RUNS, RATE = "mnist-mlp", 100, 0.03125


def batched(runs: int, fused: bool = True) -> Callable[[int], object]:
    """A step of ``runs`` runs of the task together. Adam knows coordinates only: one ``(runs, p)``
    tensor serves them all."""
    task, seeds = tasks.get(NAME), range(runs)
    params = nn.Parameter(task.init(seeds))
    optimizer = torch.optim.Adam([params], lr=RATE, fused=fused)

    def step(t: int) -> None:
        _, params.grad = task.loss_and_grad(params, task.batch(seeds, t))
        optimizer.step()

    return step


def ordinary(fused: bool) -> Callable[[int], object]:
    """A step of one run as anyone would write it: ``torch.nn`` and ``torch.optim.Adam``."""
    images, labels = tasks.get(NAME).train
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.Sigmoid(), nn.Linear(20, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=fused)

    def step(t: int) -> None:
        rows = torch.randint(len(labels), (128,))
        loss = nn.functional.cross_entropy(model(images[rows] / 255), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def measure(repeats: int) -> dict[str, float]:
    """Milliseconds a step and run of each variant: the best of ``repeats``, since other work on the
    machine only ever adds."""
    contenders = {
        f"{RUNS} runs together": (batched(RUNS), RUNS),
        "8 at a time": (batched(8), 8),
        "one by one": (batched(1), 1),
        "one by one, torch.nn": (ordinary(fused=True), 1),
        "one by one, torch.nn, Adam not fused": (ordinary(fused=False), 1),
    }
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(repeats):
        for label, (step, runs) in contenders.items():
            steps = max(1, 40 // runs)
            start = time.perf_counter()
            for t in range(steps):
                step(t)
            best[label] = min(best[label], 1000 * (time.perf_counter() - start) / steps / runs)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=30, help="rounds (default 30)")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="where to write"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    best = measure(arguments.repeats)
    together = next(iter(best.values()))
    print(f"{NAME} with Adam, one thread, ms per step and run, and how many times the first")
    for label, alone in best.items():
        print(f"  {label:<40}{alone:.3f}   {alone / together:.1f}×")
    result = {
        "machine": machine(),
        "torch": torch.__version__,
        "threads": 1,
        "task": NAME,
        "ms": best,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "tasks.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nwritten to {arguments.out}/tasks.json")


if __name__ == "__main__":
    main()
