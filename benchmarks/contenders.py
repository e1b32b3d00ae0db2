"""The optimizers that are measured, on tensors of given shapes, and shapes as models have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import prodigyopt
import schedulefree
import torch
from torch import nn

import hyperadam
from hyperadam.kernels import native
from timing import Work

Shapes = Sequence[tuple[int, ...]]
Setup = Callable[[Shapes], Work]

#: The fastest of the backends on the CPU.
BEST = native.available()[0] if native.available() else "torch"
NAIVE, TILES, FUSED, FREE = "naive eager", "rule in tiles", "Adam fused", "schedule-free AdamW"
PRODIGY = "Prodigy"


def kernel_name(backend: str) -> str:
    """What the reports call HyperAdam on a backend."""
    return TILES if backend == "torch" else f"kernel {backend}"


def second_name(backend: str) -> str:
    """What the reports call HyperAdam2 on a backend."""
    return f"HyperAdam2 {backend}"


def half_name(name: str) -> str:
    """The same with a state of half the size."""
    return f"{name}, bfloat16 state"


OURS, SECOND = kernel_name(BEST), second_name(BEST)


def parameters(shapes: Shapes) -> list[nn.Parameter]:
    """Parameters with gradients, which stay the same from step to step."""
    made = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for p in made:
        p.grad = torch.randn(p.shape)
    return made


def learned(kind: type[hyperadam.LearnedOptimizer], backend: str, **options: Any) -> Setup:
    return lambda shapes: kind(parameters(shapes), backend=backend, **options).step


def adam(**options: bool) -> Setup:
    return lambda shapes: torch.optim.Adam(parameters(shapes), **options).step


def schedule_free(shapes: Shapes) -> Work:
    optimizer = schedulefree.AdamWScheduleFree(parameters(shapes))
    optimizer.train()
    return optimizer.step


def prodigy(shapes: Shapes) -> Work:
    # a gradient that never turns would let its step size grow without end
    return prodigyopt.Prodigy(parameters(shapes), growth_rate=1.02).step


def naive(shapes: Shapes) -> Work:
    """The rule on a whole vector, as one would first write it: new state at every step."""
    (w,) = parameters(shapes)
    rule = hyperadam.load_rule("hyperadam").requires_grad_(False)
    state, steps = rule.init_state(w.grad), 0

    @torch.no_grad()
    def step() -> None:
        nonlocal state, steps
        steps += 1
        update, state = rule(w.grad, state)
        w.sub_(update, alpha=rule.step_size * rule.pace(steps))

    return step


def peers() -> dict[str, Setup]:
    """Ours on their best backend, and the optimizers that people use in their place."""
    return {
        OURS: learned(hyperadam.HyperAdam, BEST),
        SECOND: learned(hyperadam.HyperAdam2, BEST),
        FUSED: adam(fused=True),
        "Adam foreach": adam(foreach=True),
        FREE: schedule_free,
        PRODIGY: prodigy,
    }


def every() -> dict[str, Setup]:
    """All that is measured on one flat vector."""
    backends = ["torch", *reversed(native.available())]
    half = torch.bfloat16
    return {
        NAIVE: naive,
        **{kernel_name(backend): learned(hyperadam.HyperAdam, backend) for backend in backends},
        half_name(OURS): learned(hyperadam.HyperAdam, BEST, state_dtype=half),
        **{second_name(backend): learned(hyperadam.HyperAdam2, backend) for backend in backends},
        half_name(SECOND): learned(hyperadam.HyperAdam2, BEST, state_dtype=half),
        f"RNNprop {BEST}": learned(hyperadam.RNNprop, BEST),
        f"DMoptimizer {BEST}": learned(hyperadam.DMOptimizer, BEST),
        **{name: setup for name, setup in peers().items() if name not in (OURS, SECOND)},
    }


def longest() -> dict[str, Setup]:
    """What is measured where the state of one optimizer takes gigabytes: HyperAdam only at its
    best, all else."""
    table = every()
    ours = [OURS, half_name(OURS), half_name(SECOND)]
    ours += [second_name(backend) for backend in ("torch", *native.available())]
    return {name: table[name] for name in table if name in (*ours, *peers())}


# Lists of tensors ---------------------------------------------------------------------------------


def deep_mlp(hidden: int = 9, width: int = 20) -> Shapes:
    """The paper's MLP on MNIST with some hidden layers: weights and biases."""
    widths = [784, *[width] * hidden, 10]
    return [shape for i, o in pairwise(widths) for shape in ((o, i), (o,))]


def transformer(
    layers: int = 6, width: int = 256, words: int = 4096, positions: int = 256
) -> Shapes:
    """Embeddings; of each layer two norms, attention and an MLP four times as wide; a last norm."""
    norm = [(width,), (width,)]
    attention = [(3 * width, width), (3 * width,), (width, width), (width,)]
    mlp = [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    layer = norm + attention + norm + mlp
    return [(words, width), (positions, width), *layer * layers, *norm]


LISTS: dict[str, Shapes] = {
    "100 tensors of 64": [(64,)] * 100,
    "MLP of 9 hidden layers": deep_mlp(),
    "transformer": transformer(),
}


def size(shapes: Shapes) -> int:
    return sum(torch.Size(shape).numel() for shape in shapes)
