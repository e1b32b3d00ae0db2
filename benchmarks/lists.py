"""Many tensors beside one flat vector of the same size, and what of a step is not the kernel's."""

from __future__ import annotations

import gc
from typing import Any

import torch

import hyperadam
from contenders import BEST, Shapes, parameters, peers, size
from timing import Clock, clock_for, in_turn, summary

#: Below this many coordinates a step is short, and many are taken.
SHORT = 100_000


def time_list(shapes: Shapes, threads: int, rounds: int) -> dict[str, Any]:
    """Seconds a step of each optimizer on the tensors ("list") and on the vector ("flat").

    On one thread also those of HyperAdam's that are "outside" the kernel."""
    torch.set_num_threads(threads)
    flat = [(size(shapes),)]
    works = {}
    for name, setup in peers().items():
        works[name, "flat"], works[name, "list"] = setup(flat), setup(shapes)
    clock = clock_for(threads)
    times = in_turn(works, rounds, clock)
    works.clear()
    gc.collect()
    forms = {"flat": flat, "list": shapes} if threads == 1 and BEST != "torch" else {}
    return {
        "tensors": len(shapes),
        "coordinates": size(shapes),
        "seconds": {
            name: {form: times[name, form] for form in ("flat", "list")} for name in peers()
        },
        "outside": {form: outside_kernel(ones, rounds, clock) for form, ones in forms.items()},
    }


def outside_kernel(shapes: Shapes, rounds: int, clock: Clock) -> dict[str, dict[str, float]]:
    """Seconds of HyperAdam's step that are not spent in C.

    "whole": steps less their calls into C; Python finds its caches as the kernel leaves them, cold.
    "warm": steps whose calls into C do nothing.
    """
    optimizer = hyperadam.HyperAdam(parameters(shapes), backend=BEST)
    optimizer.step()
    kernel: Any = optimizer._plan.shares[0].kernel
    inside = 0.0

    def timed(function: Any) -> Any:
        def call(*arguments: Any) -> None:
            nonlocal inside
            start = clock()
            function(*arguments)
            inside += clock() - start

        return call

    def measure(functions: dict[str, Any]) -> dict[str, float]:
        nonlocal inside
        kernel._functions = functions
        optimizer.step()
        samples = []
        for _ in range(rounds * (20 if size(shapes) < SHORT else 1)):
            inside, start = 0.0, clock()
            optimizer.step()
            samples.append(clock() - start - inside)
        return summary(samples)

    functions = dict(kernel._functions)
    return {
        "whole": measure({name: timed(function) for name, function in functions.items()}),
        "warm": measure(dict.fromkeys(functions, lambda *_: None)),
    }
