"""What a step costs: nanoseconds a coordinate, side by side in one run, and a period forwards and backwards.

    python benchmarks/step.py [--quick] [--threads N] [--out DIR]

Every variant is timed in turn, round after round, and its median taken, so that a busy machine troubles all alike.
Writes ``step.json`` and a figure to the output directory.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from hyperadam import kernels
from hyperadam.kernels import Tape, make_kernel, make_tape
from hyperadam.kernels.base import padded_rows
from hyperadam.rules import DMRule, HyperAdamRule, RNNpropRule
from hyperadam.rules.base import UpdateRule

SIZES = {"16k": 16_000, "100k": 100_000, "1M": 1_000_000, "4M": 4_000_000}
ROUNDS = {"16k": 15, "100k": 9, "1M": 3, "4M": 1}
FLOP = 10_440  # of the small matrix products, a coordinate
PERIOD, LEARNER = 20, 15_910
RIVALS = {"DMoptimizer": DMRule, "RNNprop": RNNpropRule}
FASTEST = kernels.available()[0]


def machine() -> str:
    model = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return f"{model[0] if model else platform.processor()}, {platform.system()}"


def matrix_product_peak() -> float:
    """fp32 flop a second of torch's own matrix product, the best of many."""
    a = torch.randn(1024, 1024)
    best = min(seconds(lambda: a @ a) for _ in range(30))
    return 2 * 1024**3 / best


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def eager(rule: UpdateRule[Any], g: torch.Tensor) -> Callable[[], None]:
    """The rule on whole tensors, as one would first write it."""
    box = [rule.init_state(g)]

    def work() -> None:
        with torch.no_grad():
            box[0] = rule(g, box[0])[1]

    return work


def in_place(rule: UpdateRule[Any], g: torch.Tensor, backend: str) -> Callable[[], None]:
    """The optimizer's step: norms, update, state overwritten."""
    kernel = make_kernel(rule.requires_grad_(False), backend)
    state = rule.State(*padded_rows(g, list(rule.state_rows().values())))

    def work() -> None:
        sums: tuple[torch.Tensor, ...] = ()
        for _ in range(rule.rounds):
            sums += (kernel.column_sums(g, state, sums),)
        kernel.step_(g, state, sums)

    return work


def adam(g: torch.Tensor, **options: bool) -> Callable[[], None]:
    w = torch.nn.Parameter(torch.zeros_like(g))
    w.grad = g
    return torch.optim.Adam([w], **options).step


def variants(g: torch.Tensor) -> dict[str, Callable[[], Callable[[], None]]]:
    """How to set up each variant; set up one at a time, since naive ones at 4M take gigabytes."""
    rule = HyperAdamRule(decay_bound=0.97)
    table: dict[str, Callable[[], Callable[[], None]]] = {"naive eager": lambda: eager(rule, g)}
    for backend in kernels.available():
        name = "tiled torch" if backend == "torch" else f"kernel {backend}"
        table[name] = lambda backend=backend: in_place(rule, g, backend)
    table["Adam fused"] = lambda: adam(g, fused=True)
    table["Adam foreach"] = lambda: adam(g, foreach=True)
    for name, rival in RIVALS.items():
        table[f"{name} naive"] = lambda rival=rival: eager(rival(), g)
        table[f"{name} tiled"] = lambda rival=rival: in_place(rival(), g, "torch")
        if FASTEST != "torch":
            table[f"{name} {FASTEST}"] = lambda rival=rival: in_place(rival(), g, FASTEST)
    return table


def time_steps(size: str, rounds: int) -> dict[str, float]:
    """Median nanoseconds a coordinate of each variant."""
    p = SIZES[size]
    g = torch.randn(p)
    table = variants(g)
    samples: dict[str, list[float]] = {name: [] for name in table}
    together = p <= 100_000
    works = {name: make() for name, make in table.items()} if together else {}
    for work in works.values():
        work()
    for name in table if not together else ():
        work = table[name]()
        work()
        samples[name] = [seconds(work) for _ in range(rounds)]
        del work
    for _ in range(rounds if together else 0):
        for name, work in works.items():
            samples[name].append(seconds(work))
    return {name: statistics.median(values) / p * 1e9 for name, values in samples.items()}


def unroll(variant: str) -> Callable[[], object]:
    """A period of the basic MLP's size with the backward pass, on given gradients; "rival: variant" for another rule."""
    *rival, variant = variant.split(": ")
    rule: UpdateRule[Any] = RIVALS[rival[0]]() if rival else HyperAdamRule(decay_bound=0.97)
    grads = torch.randn(PERIOD, LEARNER)

    def whole_graph() -> object:
        state, total = rule.init_state(grads[0]), torch.zeros(())
        for g in grads:
            d, state = rule(g, state)
            total = total + (d * g).sum()
        return torch.autograd.grad(total, list(rule.parameters()))

    if variant == "eager autograd":
        return whole_graph
    tape = Tape(rule) if variant == "eager, step by step" else make_tape(rule, "torch" if variant == "tiled torch" else variant)

    def taped() -> object:
        tape.start(rule.init_state(grads[0]))
        for g in grads:
            tape.step(g)
        for g in grads.flip(0):
            tape.step_back(g)
        return tape.gradients()

    return taped


def measure_unroll(variant: str, rounds: int) -> dict[str, float]:
    """In a process of its own: median milliseconds, and how much the peak of its memory grew."""
    work = unroll(variant)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    work()
    samples = [seconds(work) for _ in range(rounds)]
    return {"ms": statistics.median(samples) * 1e3, "MB": resident("VmHWM") - before}


def resident(field: str) -> float:
    """Megabytes of this process in memory: now ("VmRSS") or at most ("VmHWM")."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def time_unrolls(threads: int, repeats: int, rounds: int) -> dict[str, dict[str, float]]:
    names = ["eager autograd", "eager, step by step", *("tiled torch" if b == "torch" else b for b in kernels.available())]
    names += [f"{rival}: {variant}" for rival in RIVALS for variant in ("eager autograd", "eager, step by step", FASTEST)]
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            command = [sys.executable, __file__, "--unroll", name, "--threads", str(threads), "--rounds", str(rounds)]
            samples[name].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return {name: {key: statistics.median(s[key] for s in values) for key in ("ms", "MB")} for name, values in samples.items()}


def print_report(result: dict[str, Any]) -> None:
    sizes, peak = list(result["steps"]), result["peak_flops"]
    print(f"\n{result['machine']}, {result['threads']} thread(s), matrix product {peak / 1e9:.0f} GFLOP/s\n")
    print(f"{'ns a coordinate':22}" + "".join(f"{size:>10}" for size in sizes) + "   (times naive, share of peak)")
    for name in result["steps"][sizes[0]]:
        cells = "".join(f"{result['steps'][size][name]:10.1f}" for size in sizes)
        note = ""
        if name.startswith(("kernel", "tiled")):
            naive = [result["steps"][s]["naive eager"] / result["steps"][s][name] for s in sizes]
            share = [FLOP / result["steps"][s][name] * 1e9 / peak for s in sizes]
            note = "   " + " ".join(f"{n:.1f}x/{100 * f:.0f}%" for n, f in zip(naive, share, strict=True))
        print(f"{name:22}{cells}{note}")
    print(f"\n{PERIOD}-step period with backward, p = {LEARNER:,}")
    for name, value in result["unroll"].items():
        base = result["unroll"][": ".join([*name.split(": ")[:-1], "eager autograd"])]
        ratio = f"{base['ms'] / value['ms']:5.1f}x faster, {value['MB'] / base['MB']:.2f} of the memory"
        print(f"{name:34}{value['ms']:8.0f} ms {value['MB']:8.0f} MB   {ratio}")


def draw(result: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=[3, 2], layout="constrained")
    styles = {"naive eager": ("#999999", "o"), "tiled torch": ("#E69F00", "s"), "Adam fused": ("#56B4E9", "v")}
    colours = cycle(["#0072B2", "#009E73", "#D55E00", "#CC79A7", "#000000"])
    for name in result["steps"]["16k"]:
        if name in ("Adam foreach",) or name.startswith(tuple(RIVALS)):
            continue
        colour, marker = styles.get(name) or (next(colours), "^")
        x = [SIZES[size] for size in result["steps"]]
        left.plot(x, [values[name] for values in result["steps"].values()], marker=marker, color=colour, label=name)
    floor = FLOP / result["peak_flops"] * 1e9
    left.axhline(floor, color="black", linestyle=":", linewidth=1)
    left.annotate("matrix-product peak", (SIZES["16k"], floor), textcoords="offset points", xytext=(0, -11), fontsize=8)
    left.set(xscale="log", yscale="log", xlabel="coordinates", ylabel="ns a coordinate", title="One step, one thread")
    left.legend(fontsize=8)
    names = [name for name in result["unroll"] if ": " not in name]
    right.barh(names[::-1], [result["unroll"][n]["ms"] for n in names[::-1]], color="#0072B2")
    for i, n in enumerate(names[::-1]):
        value = result["unroll"][n]
        right.annotate(f" {value['ms']:.0f} ms, {value['MB']:.0f} MB", (value["ms"], i), va="center", fontsize=8)
    right.set(xlabel="ms", title=f"{PERIOD} steps with backward, p = {LEARNER:,}")
    right.margins(x=0.35)
    for suffix in ("png", "svg"):
        figure.savefig(path.with_suffix(f".{suffix}"), dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="16k and 100k coordinates alone")
    parser.add_argument("--threads", type=int, default=1, help="threads for all variants (default 1)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="where to write")
    parser.add_argument("--rounds", type=int, default=5, help=argparse.SUPPRESS)
    parser.add_argument("--unroll", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    if arguments.unroll:
        print(json.dumps(measure_unroll(arguments.unroll, arguments.rounds)))
        return

    result: dict[str, Any] = {
        "machine": machine(),
        "torch": torch.__version__,
        "threads": arguments.threads,
        "backends": kernels.available(),
        "peak_flops": matrix_product_peak(),
        "steps": {},
    }
    for size in ("16k", "100k") if arguments.quick else SIZES:
        print(f"{size} coordinates …", file=sys.stderr, flush=True)
        result["steps"][size] = time_steps(size, ROUNDS[size])
        result["peak_flops"] = max(result["peak_flops"], matrix_product_peak())  # a busy moment must not lower the bar
    print("periods …", file=sys.stderr, flush=True)
    result["unroll"] = time_unrolls(arguments.threads, 1 if arguments.quick else 3, arguments.rounds)
    print_report(result)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "step.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(result, arguments.out / "step")
    print(f"\nwritten to {arguments.out}/step.json, step.png and step.svg")


if __name__ == "__main__":
    main()
