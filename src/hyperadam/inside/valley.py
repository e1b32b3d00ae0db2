"""Optimizers on a loss of two weights, step by step: their paths, and what each candidate of ours
would add to a step. For a page that plays it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hyperadam.files import write_atomically
from hyperadam.optim import HyperAdam, HyperAdam2, LearnedOptimizer
from hyperadam.optim.memory import MEMORY, new_memories
from hyperadam.rules import HyperAdam2Rule
from hyperadam.rules.hyperadam2 import Stage

#: The valley y = x² is flat along its floor and steep across; its lowest place is (1, 1).
ALONG, ACROSS = 0.25, 4.0
START = (-1.3, 1.2)
STEPS = 600
#: Gradients are noisy, as those of batches are; all optimizers meet the same noise.
NOISE = 0.3
#: Tuned Adam has the best of these rates.
RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
#: Every so many steps there is a picture.
EVERY = 3


class Path2(NamedTuple):
    """The way of one optimizer: the weights ``(steps + 1, 2)``, and of ours, for every step, the
    part that each candidate has in it, ``(steps, J, 2)``, and its decay rate β, ``(steps, J)``."""

    name: str
    places: Tensor
    arrows: Tensor | None = None
    betas: Tensor | None = None


def loss(w: Tensor) -> Tensor:
    """The height of the valley at ``w (..., 2)``."""
    x, y = w.unbind(-1)
    return ALONG * (1 - x) ** 2 + ACROSS * (y - x**2) ** 2


def walk(
    name: str, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], steps: int = STEPS
) -> Path2:
    """Train the two weights, and look at every step of a learned optimizer before it is made."""
    noise = NOISE * torch.randn(steps, 2, generator=torch.Generator().manual_seed(0))
    p = nn.Parameter(torch.tensor(START))
    optimizer = make([p])
    places, arrows, betas = [p.detach().clone()], [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss(p).backward()
        assert p.grad is not None
        p.grad += noise[step]
        if isinstance(optimizer, LearnedOptimizer):
            arrow, beta = candidates(optimizer, p)
            arrows.append(arrow)
            betas.append(beta)
        optimizer.step()
        places.append(p.detach().clone())
    if not arrows:
        return Path2(name, torch.stack(places))
    return Path2(name, torch.stack(places), torch.stack(arrows), torch.stack(betas))


@torch.no_grad()
def candidates(optimizer: LearnedOptimizer, p: nn.Parameter) -> tuple[Tensor, Tensor]:
    """What each candidate adds to the step that comes next, ``(J, n)``, their sum being the step,
    and its β, ``(J,)``. The optimizer has one parameter, a vector."""
    rule, state, group = optimizer.rule, optimizer.state.get(p) or {}, optimizer.param_groups[0]
    assert p.grad is not None
    grad = p.grad.reshape(-1)
    step = int(state["step"]) + 1 if state else 1
    kept = [state[name].reshape(rows, -1) for name, rows in rule.state_rows().items() if state]
    fields = rule.State(*kept) if state else rule.init_state(grad)
    memory = state[MEMORY] if MEMORY in state else new_memories(rule, [p], str)[0]
    size, sums, beta = torch.ones(()), None, torch.empty(0)
    if isinstance(rule, HyperAdam2Rule):
        assert memory is not None
        sums = rule.control(memory, Stage(step, group["total_steps"] or 0, tuple(p.shape)))
        size, beta = sums.size, torch.tensor([first for first, _ in rule.pairs])
    elif memory is not None:
        size = rule.scale(memory[0].double(), p.shape).float()
    _, look = rule.look(grad, fields, sums)
    pace = rule.pace(step, group["total_steps"])
    if "beta" in look:  # the rule's own choice, for every coordinate
        beta = look["beta"].mean(-1)
    return -group["lr"] * pace * size * look["rho"] * look["moment"], beta


def paths(steps: int = STEPS) -> list[Path2]:
    """Ours with nothing tuned, Adam at a rate tuned for this very valley, and Adam at 0.001."""

    def adam(lr: float) -> Path2:
        return walk(f"Adam at {lr:g}", lambda p: torch.optim.Adam(p, lr=lr), steps)

    # the mean over the last tenth: where noisy steps end is chance
    def height(path: Path2) -> float:
        return float(loss(path.places[-max(1, steps // 10) :]).mean())

    tuned = min(map(adam, RATES), key=height)
    return [
        walk("HyperAdam2", lambda p: HyperAdam2(p, total_steps=steps), steps),
        walk("HyperAdam", lambda p: HyperAdam(p), steps),
        tuned._replace(name=f"tuned Adam ({tuned.name.removeprefix('Adam at ')})"),
        adam(0.001),
    ]


def write_valley(path: Path) -> Path:
    """Write the page that plays the paths; it is one file, and loads nothing."""
    template = resources.files("hyperadam.report") / "template" / "valley.html"
    text = template.read_text(encoding="utf-8")
    data = json.dumps(_data(paths()), separators=(",", ":"), allow_nan=False)
    write_atomically(path, text.replace("/* the runs */ null", data))
    return path


def _data(found: Sequence[Path2]) -> dict[str, Any]:
    def short(x: Tensor, digits: int) -> Any:
        return [[round(float(a), digits), round(float(b), digits)] for a, b in x.reshape(-1, 2)]

    made = []
    for one in found:
        entry: dict[str, Any] = {"name": one.name, "places": short(one.places[::EVERY], 4)}
        if one.arrows is not None:
            assert one.betas is not None
            entry["arrows"] = [short(x, 5) for x in one.arrows[::EVERY]]
            entry["betas"] = [[round(float(b), 3) for b in row] for row in one.betas[::EVERY]]
        made.append(entry)
    return {"along": ALONG, "across": ACROSS, "every": EVERY, "paths": made}
