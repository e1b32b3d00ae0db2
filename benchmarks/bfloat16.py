"""What a bfloat16 state costs in quality: final losses beside those with a float32 state.

    python benchmarks/bfloat16.py [--runs N] [--out DIR]

Both start from the same seeds. Writes ``bfloat16.json`` and ``bfloat16.md``. Takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import torch

import hyperadam
from hyperadam import tasks
from hyperadam.kernels import RuleStepper

#: Tasks with their number of runs.
TASKS = {
    "mnist-mlp": 20,
    "mnist-mlp-relu": 20,
    "mnist-mlp-elu": 20,
    "mnist-mlp-tanh": 20,
    "mnist-cnn1": 5,
}
STEPS = 100
#: Seeds that no table of the results uses.
FIRST_SEED = 50_000


def final_losses(name: str, runs: int, state_dtype: torch.dtype) -> torch.Tensor:
    """Each run's mean loss over its batches at its last parameters."""
    task, rule = tasks.get(name), hyperadam.load_rule("hyperadam")
    seeds = range(FIRST_SEED, FIRST_SEED + runs)
    params = task.init(seeds)
    stepper = RuleStepper(params, rule.step_size, rule, state_dtype)
    for step in range(STEPS):
        stepper.step(task.loss_and_grad(params, task.batch(seeds, step))[1])
    return task.final_loss(params, seeds, STEPS).double()


def compare(name: str, runs: int) -> dict[str, object]:
    """Both means with their standard errors, and the difference, run by run."""
    full, half = (final_losses(name, runs, dtype) for dtype in (torch.float32, torch.bfloat16))

    def with_error(x: torch.Tensor) -> list[float]:
        return [x.mean().item(), x.std().item() / math.sqrt(runs)]

    return {
        "task": name,
        "runs": runs,
        "float32": with_error(full),
        "bfloat16": with_error(half),
        "difference": with_error(half - full),
    }


def as_markdown(rows: list[dict[str, object]]) -> str:
    """The table that docs quote."""

    def shown(value: object) -> str:
        assert isinstance(value, list)
        mean, error = value
        return f"{mean:.4f} ± {error:.4f}"

    lines = [
        f"| final loss, {STEPS} steps | runs | float32 state | bfloat16 state | difference |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = " | ".join(shown(row[key]) for key in ("float32", "bfloat16", "difference"))
        lines.append(f"| `{row['task']}` | {row['runs']} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, help="runs of every task (default 20, CNN-1 5)")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="where to write"
    )
    options = parser.parse_args()
    rows = []
    for name, runs in TASKS.items():
        print(f"{name} …", file=sys.stderr, flush=True)
        rows.append(compare(name, options.runs or runs))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "bfloat16.json").write_text(json.dumps(rows, indent=1) + "\n")
    (options.out / "bfloat16.md").write_text(as_markdown(rows))
    print(as_markdown(rows))


if __name__ == "__main__":
    main()
