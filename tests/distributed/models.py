"""What the ranks train, and how far they end from one process that trains the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hyperadam import (
    DMOptimizer,
    HyperAdam,
    HyperAdam2,
    HyperAdam2Rule,
    HyperAdamRule,
    LearnedOptimizer,
    RNNprop,
)

#: Beside the parameter's own size; sums of squares are added up in another order, and that is all.
TOLERANCE = 1e-6
#: The same where directions are made orthogonal: a small singular value grows by 3.4445 in each of
#: three rounds, and with it whatever was rounded off.
TURNED = 3.4445**3 * TOLERANCE


def check_near(gaps: dict[str, float]) -> None:
    """No gap, each with the name of its optimizer, is larger than rounding explains."""
    for name, gap in gaps.items():
        turned = "hyperadam2" in name and "mixture" not in name
        assert gap < (TURNED if turned else TOLERANCE), gaps


def normalizing() -> HyperAdamRule:
    """A rule that takes a second round of norms, its weights large enough for them to matter."""
    generator = torch.Generator().manual_seed(1)
    rule = HyperAdamRule(candidates=5, normalize_state=True)
    with torch.no_grad():
        for weight in rule.parameters():
            weight.copy_(0.7 * torch.randn(weight.shape, generator=generator))
    return rule


def steered(**config: Any) -> HyperAdam2Rule:
    """A rule whose TensorCell and weight field are heard, the same at every call."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        rule = HyperAdam2Rule(**config)
        for weight in rule.parameters():
            weight += 0.1 * torch.randn_like(weight)
    return rule


class Kind(NamedTuple):
    """How an optimizer is made, and its rounds of norms over the whole vector. One that takes norms
    tensor by tensor has none."""

    make: Callable[..., LearnedOptimizer]
    rounds: int
    per_tensor: bool = False

    def on_shards(self, steps: int = 5, meshes: int = 1) -> int:
        """The all-reduces of a training where tensors are split: one for each round of norms. Or else
        one to agree, one for what was seen of tensors, and for each mesh one when state is made."""
        return 2 * steps + meshes if self.per_tensor else self.rounds * steps

    def on_whole_tensors(self, steps: int = 5) -> int:
        """The same where each rank holds some tensors, as with ZeRO."""
        return steps if self.per_tensor else self.rounds * steps


#: Every rule.
OPTIMIZERS: dict[str, Kind] = {
    "hyperadam": Kind(HyperAdam, 1),
    "normalizing": Kind(
        lambda params, **options: HyperAdam(params, weights=normalizing(), **options), 2
    ),
    "hyperadam2": Kind(
        lambda params, **options: HyperAdam2(
            params, **{"weights": steered(), "total_steps": 20, **options}
        ),
        0,
        per_tensor=True,
    ),
    "hyperadam2 mixture": Kind(
        lambda params, **options: HyperAdam2(
            params, **{"weights": steered(orthogonal=False), "total_steps": 20, **options}
        ),
        0,
        per_tensor=True,
    ),
    "rnnprop": Kind(RNNprop, 0),
    "dm": Kind(DMOptimizer, 0),
}


class Net(nn.Module):
    """Sizes that no number of ranks divides, and one number of which most ranks hold nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 9), nn.Linear(9, 5), nn.Linear(5, 3)
        self.size = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x) * self.size))))


class Row(nn.Module):
    """Only parameters of one row: the second rank and those behind it hold nothing at all."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x)


class Even(nn.Module):
    """Sizes that tensor parallelism can divide, with a normalisation that it leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 8), nn.LayerNorm(6), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.down(torch.tanh(self.up(x))))


def make(kind: Callable[[], nn.Module]) -> nn.Module:
    """A model, the same one on every rank."""
    torch.manual_seed(0)
    return kind()


def batch(step: int, rank: int = 0) -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * rank + step))


def backward(model: nn.Module, x: Tensor) -> None:
    for p in model.parameters():
        p.grad = None
    y = model(x)
    (y - torch.linspace(-1, 1, y.shape[-1], dtype=y.dtype)).square().mean().backward()


def train(model: nn.Module, opt: Any, steps: Iterable[int] = range(5)) -> int:
    """Steps on the same batches whatever the rank: the mean of equal gradients has their bits.

    Returns how many all-reduces the optimizer made."""
    with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as all_reduce:
        total = 0
        for step in steps:
            backward(model, batch(step))
            all_reduce.reset_mock()  # wrappers have theirs in the backward pass
            opt.step()
            total += all_reduce.call_count
    return total


def full(x: Any) -> Tensor:
    """All of a tensor that may be split over ranks."""
    return (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().clone()


def params_of(model: nn.Module) -> dict[str, Tensor]:
    """All parameters whole, by the names that they have in an unwrapped model."""
    wrappers = ("module.", "_fsdp_wrapped_module.")
    named = ((name, full(p)) for name, p in model.named_parameters())
    return {name.removeprefix(wrappers[0]).removeprefix(wrappers[1]): p for name, p in named}


def distance(here: dict[str, Tensor], there: dict[str, Tensor]) -> float:
    """The largest difference in any parameter, beside that parameter's largest entry."""
    assert here.keys() == there.keys()
    gaps = [(here[name] - there[name]).abs().max() / there[name].abs().max() for name in here]
    return torch.stack(gaps).max().item()


def alone(
    kind: Callable[[], nn.Module],
    name: str,
    steps: Iterable[int] = range(5),
    **options: Any,
) -> dict[str, Tensor]:
    """Parameters after training on one process, with nothing split."""
    model = make(kind)
    train(model, OPTIMIZERS[name].make(model.parameters(), **options), steps)
    return params_of(model)


def zero_redundancy(params: Any, make_optimizer: Callable[..., Any], **options: Any) -> Any:
    from torch.distributed.optim import (
        ZeroRedundancyOptimizer,
    )  # its import warns of what torch itself has deprecated

    return ZeroRedundancyOptimizer(params, make_optimizer, **options)
