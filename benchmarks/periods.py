"""Twenty steps with their way back: time and memory, each variant in a process of its own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hyperadam.kernels import Tape, make_tape, native
from hyperadam.rules import DMRule, HyperAdamRule, RNNpropRule
from hyperadam.rules.base import UpdateRule
from timing import Work, resident, seconds, summary

#: Steps, and coordinates of the basic MLP.
PERIOD, LEARNER = 20, 15_910
WHOLE, STEPWISE = "eager autograd", "eager, step by step"
RIVALS = {"RNNprop": RNNpropRule, "DMoptimizer": DMRule}


def names(quick: bool = False) -> list[str]:
    """The variants; ``rival: variant`` is another rule's."""
    best = native.available()[:1]
    if quick:
        return [WHOLE, STEPWISE, *best]
    ours = [WHOLE, STEPWISE, *native.available()]
    return ours + [
        f"{rival}: {variant}" for rival in RIVALS for variant in (WHOLE, STEPWISE, *best)
    ]


def works(variant: str, coordinates: int = LEARNER) -> tuple[Work, Work]:
    """A period's way forwards, and the whole of it, on given gradients."""
    *rival, variant = variant.split(": ")
    rule: UpdateRule[Any] = RIVALS[rival[0]]() if rival else HyperAdamRule(decay_bound=0.97)
    grads = torch.randn(PERIOD, coordinates)

    def graph() -> torch.Tensor:
        state, total = rule.init_state(grads[0]), torch.zeros(())
        for g in grads:
            d, state = rule(g, state)
            total = total + (d * g).sum()
        return total

    def graph_and_back() -> object:
        return torch.autograd.grad(graph(), list(rule.parameters()))

    if variant == WHOLE:
        return graph, graph_and_back
    tape = Tape(rule) if variant == STEPWISE else make_tape(rule, variant)

    def forwards() -> None:
        tape.start(rule.init_state(grads[0]))
        for g in grads:
            tape.step(g)

    def there_and_back() -> object:
        forwards()
        for g in grads.flip(0):
            tape.step_back(g)
        return tape.gradients()

    return forwards, there_and_back


def measure(variant: str, rounds: int, coordinates: int = LEARNER) -> dict[str, float]:
    """Median seconds forwards and in all, and megabytes by which the peak of this process grew."""
    forwards, both = works(variant, coordinates)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    both()
    samples = [(seconds(forwards), seconds(both)) for _ in range(rounds)]
    ahead, in_all = (statistics.median(column) for column in zip(*samples, strict=True))
    return {"forwards": ahead, "all": in_all, "MB": resident("VmHWM") - before}


def measure_apart(variant: str, rounds: int, coordinates: int = LEARNER) -> dict[str, float]:
    """:func:`measure` in a process of its own."""
    command = [sys.executable, __file__, variant, str(rounds), str(coordinates)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def time_periods(
    variants: Sequence[str], repeats: int, rounds: int, coordinates: int = LEARNER
) -> dict[str, Any]:
    """The variants in turn, each ``repeats`` times in a new process."""
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name in variants:
            samples[name].append(measure_apart(name, rounds, coordinates))
    return {
        name: {key: summary(one[key] for one in taken) for key in ("forwards", "all", "MB")}
        for name, taken in samples.items()
    }


def main() -> None:
    """One variant, for :func:`measure_apart`."""
    variant, rounds, coordinates = sys.argv[1:]
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    print(json.dumps(measure(variant, int(rounds), int(coordinates))))


if __name__ == "__main__":
    main()
