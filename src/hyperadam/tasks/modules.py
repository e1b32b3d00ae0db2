"""Tasks from ordinary ``nn.Module``s: a network as people build it, a loss, and batches named by seed and step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hyperadam.data import draws
from hyperadam.data.draws import Seeds, Steps
from hyperadam.tasks.base import Shape, Task
from hyperadam.tasks.learners import size, unflatten

Batch = tuple[Tensor, ...]
#: From keys ``(runs,)`` to a batch, tensors ``(runs, ...)``.
Sampler = Callable[[Tensor], Batch]


class ModuleTask(Task[Batch]):
    """A task from a function that makes a module, a loss and batches.

    It has two lives. :meth:`module` gives a real module to train with any ``torch.optim`` optimizer, one run at a time.
    The flat interface of :class:`Task` runs the same module on slices of a vector, for rules and steppers::

        import torch
        from torch import nn
        from torch.nn.functional import mse_loss

        from hyperadam.tasks import ModuleTask, examples

        x = torch.randn(512, 10)
        y = torch.sin(x[:, :1])
        task = ModuleTask(
            make=lambda: nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)),
            loss=lambda module, batch: mse_loss(module(batch[0]), batch[1]),
            batches=examples((x, y), n=64),
            title="a small regression",
        )

    Args:
        make: makes the module with its usual initialisation. It is called under torch's generator seeded by the run, so it
            may draw from that, but must not depend on anything else.
        loss: the mean loss of a module on one run's batch, a scalar.
        batches: makes the batches of all runs from one key a run, with :mod:`hyperadam.data.draws`; :func:`examples` and
            :func:`windows` are two such.
        title: what the task is, in a line.
        test: called for the batches of the test set, if there is one: tensors without a dimension of runs.
    """

    runs_at_once = 1

    def __init__(
        self,
        make: Callable[[], nn.Module],
        loss: Callable[[Any, Batch], Tensor],
        batches: Sampler,
        title: str = "",
        test: Callable[[], Iterable[Batch]] | None = None,
    ) -> None:
        self._make, self._loss, self._batches, self.title, self._test = (
            make,
            loss,
            batches,
            title,
            test,
        )
        self._template = self.module(0)
        _check(self._template)
        parameters = dict(self._template.named_parameters())
        self._names = list(parameters)
        shapes = [tuple(p.shape) for p in parameters.values()]
        super().__init__(size(shapes))
        #: The shapes of the parameters, in the order of ``module.parameters()`` and of the flat vector.
        self.shapes: list[Shape] = shapes

    def module(self, seed: int) -> nn.Module:
        """The module of the run ``seed`` as it is before the first step, with parameters of its own."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(draws.keys([seed], "init")[0]))
            return self._make()

    def module_loss(self, module: nn.Module, seed: int, step: int) -> Tensor:
        """The loss of ``module`` on the batch of the run ``seed`` at ``step``, a scalar to call ``backward`` on."""
        return self._loss(module, self.one_batch(seed, step))

    def one_batch(self, seed: int, step: int) -> Batch:
        """The batch of one run, without the dimension of runs."""
        return tuple(tensor[0] for tensor in self.batch([seed], step))

    @torch.no_grad()
    def mean_loss(self, module: nn.Module, batches: Iterable[Batch]) -> float:
        """The mean loss of ``module`` over ``batches``, each weighing as many examples as it has."""
        total, count = 0.0, 0
        for batch in batches:
            total += float(self._loss(module, batch)) * len(batch[0])
            count += len(batch[0])
        return total / count if count else math.nan

    @property
    def has_test(self) -> bool:
        """Whether there is a test set."""
        return self._test is not None

    def test_loss(self, module: nn.Module) -> float:
        """The mean loss of ``module`` on the test set; not a number if there is none."""
        return self.mean_loss(module, self._test() if self._test else ())

    def init(self, seeds: Seeds, dtype: torch.dtype = torch.float32) -> Tensor:
        rows = [
            torch.cat([p.detach().flatten() for p in self.module(int(seed)).parameters()])
            for seed in seeds
        ]
        return torch.stack(rows).to(dtype)

    def batch(self, seeds: Seeds, step: Steps) -> Batch:
        return self._batches(draws.keys(seeds, "batch", step))

    def losses(self, params: Tensor, batch: Batch) -> Tensor:
        weights = unflatten(params, self.shapes)
        return torch.stack(
            [
                self._one_loss([w[run] for w in weights], tuple(part[run] for part in batch))
                for run in range(len(params))
            ]
        )

    def _one_loss(self, weights: list[Tensor], batch: Batch) -> Tensor:
        dtype = weights[0].dtype
        # the template's buffers (running statistics) are read and never written: a loss leaves no trace
        buffers = {
            name: _in(buffer.clone(), dtype) for name, buffer in self._template.named_buffers()
        }
        state = dict(zip(self._names, weights, strict=True)) | buffers

        def module(*inputs: Any, **options: Any) -> Any:
            return functional_call(self._template, state, inputs, options)

        return self._loss(module, tuple(_in(part, dtype) for part in batch))


def examples(tensors: Batch, n: int) -> Sampler:
    """Batches of ``n`` rows of ``tensors``, which are equally long; drawn with replacement."""
    if len({len(tensor) for tensor in tensors}) != 1:
        raise ValueError(
            f"tensors must be equally long, got lengths {[len(tensor) for tensor in tensors]}"
        )

    def sample(keys: Tensor) -> Batch:
        rows = draws.integers(keys, len(tensors[0]), n)
        # whole rows are copied; indexing with a matrix of numbers is several times slower
        return tuple(
            tensor.index_select(0, rows.flatten()).view(*rows.shape, *tensor.shape[1:])
            for tensor in tensors
        )

    return sample


def windows(text: Tensor, length: int, n: int) -> Sampler:
    """Batches of ``n`` windows of ``text``, a vector of whole numbers: ``length`` inputs, and what follows each of them."""
    if len(text) <= length:
        raise ValueError(f"text must be longer than a window of {length}, got {len(text)} numbers")

    def sample(keys: Tensor) -> Batch:
        starts = draws.integers(keys, len(text) - length, n)
        places = starts.unsqueeze(-1) + torch.arange(length + 1)
        found = text[places]
        return found[..., :-1], found[..., 1:]

    return sample


def _in(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _check(module: nn.Module) -> None:
    """Refuse what has no place in a flat vector of one dtype, or is not the same when it is computed again."""
    parameters = dict(module.named_parameters())
    if not parameters:
        raise ValueError("make must return a module with parameters, got one with none")
    kinds = {parameter.dtype for parameter in parameters.values()}
    if kinds != {torch.float32}:
        raise ValueError(f"make must return a module in float32, got {sorted(map(str, kinds))}")
    for name, part in module.named_modules():
        rate = getattr(part, "p", 0) if isinstance(part, nn.modules.dropout._DropoutNd) else 0
        rate = rate or getattr(part, "dropout", 0)
        if isinstance(rate, float) and rate > 0:
            raise ValueError(
                f"make returned a module whose {name or 'root'} drops units out at random ({rate:g}): a run's loss must "
                "depend on its seed and step alone; set dropout to 0, or draw the mask with the batch"
            )
