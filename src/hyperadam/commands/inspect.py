"""``hyperadam inspect``: what a learned optimizer does inside, while it trains a task."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from hyperadam.commands import flags

if TYPE_CHECKING:
    from hyperadam.experiments import OptimizerSpec
    from hyperadam.inside import Inspection
    from hyperadam.tasks import Task

EXAMPLES = """
  hyperadam inspect mnist-mlp
  hyperadam inspect mnist-mlp-8x20 --optimizer hyperadam2+horizon --steps 300
  hyperadam inspect sine-lstm --optimizer my-weights.safetensors --out inside/mine

It trains one run and looks at every hundredth part of it. Figures (PNG and SVG) and a page show how
steps, decay rates and weights of the candidates change over training and over tensors: the paper's
moment field and weight field. The numbers behind them are in looks.json. In your own training:
hyperadam.inspect(optimizer), or optimizer.diagnostics().
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    flags.add_task_options(parser, "hyperadam, hyperadam2+horizon, rnnprop")
    parser.add_argument(
        "--steps",
        type=flags.positive,
        default=100,
        metavar="N",
        help="steps to train (default %(default)s)",
    )
    parser.add_argument(
        "--every",
        type=flags.positive,
        metavar="N",
        help="look at every Nth step (default: a hundred looks)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the run's seed (default %(default)s)"
    )
    flags.add_out_option(parser, "inside")
    flags.add_thread_option(parser)
    flags.add_import_option(parser)


def run(options: argparse.Namespace) -> None:
    """Train, look, draw."""
    from hyperadam import tasks
    from hyperadam.commands import common, terminal
    from hyperadam.experiments import find

    common.prepare(options)
    task, spec = tasks.get(options.task), find(options.optimizer, options.task, options.steps)
    if spec.rule is None:
        raise ValueError(f"--optimizer {options.optimizer}: it is not learned, there is no inside")
    every = options.every or max(1, options.steps // 100)
    line = terminal.ProgressLine()
    try:
        inside = train(task, spec, options.steps, options.seed, every, line)
    finally:
        line.close()
    title = f"Inside {spec.label} on {options.task}"
    about = f"One run of {options.steps:,} steps, seed {options.seed}: {task.title}."
    page, numbers, *figures = inside.write(options.out, title, about)
    header, rows = inside.table()
    terminal.show_table(rows, header, right=range(1, len(header)))
    print(
        f"\nat step {inside.last.step}; loss {inside.looks[0].loss:.4g} -> {inside.last.loss:.4g}"
    )
    print(f"page     {page}")
    print(f"figures  {', '.join(str(path) for path in figures if path.suffix == '.png')}")
    print(f"numbers  {numbers}")


def train(
    task: Task[Any], spec: OptimizerSpec, steps: int, seed: int, every: int, progress: Any
) -> Inspection:
    """One run of a task with the real optimizer, a parameter for each of the task's tensors."""
    import torch

    import hyperadam
    from hyperadam import optim
    from hyperadam.tasks.learners import unflatten

    assert spec.rule is not None
    kinds = (optim.HyperAdam, optim.HyperAdam2, optim.RNNprop, optim.DMOptimizer)
    kind = next(kind for kind in kinds if kind.rule_class is type(spec.rule))
    params = [x[0].clone().requires_grad_() for x in unflatten(task.init([seed]), task.shapes)]
    optimizer = kind(
        zip(names(task), params, strict=True),
        spec.lr,
        weights=spec.rule,
        total_steps=steps if spec.horizon else None,
    )
    inside = hyperadam.inspect(optimizer)
    for step in range(steps):
        vector = torch.cat([p.detach().flatten() for p in params]).unsqueeze(0)
        loss, grad = task.loss_and_grad(vector, task.batch([seed], step))
        if not (loss.isfinite().all() and grad.isfinite().all()):
            raise ValueError(f"the run diverges at step {step + 1}: --steps {step} ends before")
        for p, piece in zip(params, unflatten(grad, task.shapes), strict=True):
            p.grad = piece[0]
        if step % every == 0 or step == steps - 1:
            inside.look(loss)
        optimizer.step()
        progress("training", (step + 1) / steps)
    return inside


def names(task: Task[Any]) -> list[str]:
    """What a task's tensors are called: as in its module, if it has one, or by number and shape."""
    from hyperadam.tasks import ModuleTask

    if isinstance(task, ModuleTask):
        return [name for name, _ in task.module(0).named_parameters()]
    shapes = ["×".join(map(str, shape)) or "1" for shape in task.shapes]
    return [f"{number}: {shape}" for number, shape in enumerate(shapes, 1)]
