"""What the next step would do to each tensor, in plain numbers; looking changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from hyperadam.kernels import Kernel
from hyperadam.kernels.base import DEVICE_TILE, TILE
from hyperadam.optim.checkpoint import STEP
from hyperadam.optim.memory import MEMORY, new_memories
from hyperadam.optim.sharding import (
    Ranks,
    find_ranks,
    is_dtensor,
    local,
    mesh_groups,
    shards,
    turned_shard,
)
from hyperadam.rules import HyperAdam2Rule, UpdateRule
from hyperadam.rules.base import Sums
from hyperadam.rules.hyperadam2 import Stage
from hyperadam.rules.pace import count_matrices

#: Of one tensor: numbers by name, or a list of them, one for each candidate.
Numbers: TypeAlias = dict[str, float | list[float]]

#: What is added up of every tensor: g², w², the update's square, that of the rule's output.
COLUMNS = 4


class Tile(NamedTuple):
    """Some coordinates of a tensor: gradient and weights ``(n,)``, state ``(rows, n)``."""

    grad: Tensor
    state: Any
    w: Tensor


class Seen:
    """A parameter that has a gradient, as the next step will find it."""

    def __init__(
        self, optimizer: Any, group: dict[str, Any], position: int, p: Tensor, memory: Tensor | None
    ) -> None:
        self.p, self.position, self.memory = p, position, memory
        kernels, w = optimizer._kernels, local(p)
        self.kernel = kernels[w.device]
        self.rule: UpdateRule[Any] = self.kernel.rule
        self.grad = kernels.readable_grad(p, group["maximize"], optimizer._label_of)
        self.state: dict[str, Tensor] = optimizer.state.get(p) or {}
        self.step = int(self.state[STEP]) + 1 if self.state else 1
        self.total: int | None = group["total_steps"]
        self.pace = 1.0  # until it is known who moves together
        self.lr, self.decay = float(group["lr"]), float(group["weight_decay"])

    def tiles(self) -> Iterator[Tile]:
        """This rank's share of it, piece by piece."""
        w, grad = local(self.p).reshape(-1), self.grad.reshape(-1)
        rows = self.rule.state_rows()
        fields = [
            local(self.state[name]).reshape(n, len(w)) for name, n in rows.items() if self.state
        ]
        width = TILE.get(w.device.type, DEVICE_TILE)
        for start in range(0, len(w), width):
            here = slice(start, start + width)
            g = grad[here].to(self.kernel.dtype)
            state = self.rule.State(*(x[:, here].to(g.dtype) for x in fields)) if fields else None
            yield Tile(g, state or self.rule.init_state(g), w[here].to(g.dtype))

    def measure(self, sums: Sums, rows: dict[str, int]) -> Tensor:
        """Sums over this rank's share of the tensor ``(columns,)`` in float64: :data:`COLUMNS`,
        then of each field of the rule's look its entries and their squares, row by row."""
        rule, scale = self.rule, 1.0
        if isinstance(rule, HyperAdam2Rule):
            control = rule.control(self._memory(), self._stage())
            sums, scale = control, float(control.size)
        elif rule.memory:
            scale = float(rule.scale(self._memory()[0].double(), self.p.shape))
        total = torch.zeros(columns(rows), dtype=torch.float64, device=self.grad.device)
        direction = self._direction(sums)
        for tile in self.tiles():
            with self.kernel.full_precision():
                d, look = rule.look(tile.grad, tile.state, sums)
            if direction is not None:
                d, direction = direction[: len(d)], direction[len(d) :]
            move = self.lr * self.pace * (scale * d + self.decay * tile.w)
            squares = [_squares(x).view(1) for x in (tile.grad, tile.w, move, d)]
            fields = [f(x) for x in look.values() for f in (_entries, _squares)]
            total += torch.cat(squares + fields)
        return total

    def _direction(self, sums: Sums) -> Tensor | None:
        """This rank's share ``(n,)`` of a direction that is made of the whole tensor at once."""
        rule, p = self.rule, self.p
        if not isinstance(rule, HyperAdam2Rule) or not rule.turns(p.shape):
            return None
        with self.kernel.full_precision():
            pieces = [rule(tile.grad, tile.state, sums)[0] for tile in self.tiles()]
            mixture = torch.cat(pieces) if pieces else self.grad.reshape(-1).to(self.kernel.dtype)
            if is_dtensor(p):
                return turned_shard(p, mixture.unsqueeze(0), rule)[0]
            return rule.direction(mixture.unsqueeze(0), p.shape)[0]

    def numbers(self, sums: list[float], rows: dict[str, int]) -> Numbers:
        """What sums over the whole tensor say."""
        size = self.p.numel()
        g2, w2, move2, d2 = sums[:COLUMNS]
        weight, update = math.sqrt(w2 / size), math.sqrt(move2 / size)
        told: Numbers = {
            "size": float(size),
            "step": float(self.step),
            "lr": self.lr,
            "pace": self.pace,
            "gradient_norm": math.sqrt(g2),
            "weight_rms": weight,
            "update_rms": update,
            "effective_step": update / weight if weight else math.inf if update else 0.0,
            "direction_rms": math.sqrt(d2 / size),
        }
        if isinstance(self.rule, HyperAdam2Rule):
            told["beta"], told["gamma"] = map(list, zip(*self.rule.pairs, strict=True))
            for name, x in self.rule.look_at_tensor(self._memory(), self._stage()).items():
                told[name] = x.tolist()
        rest = iter(sums[COLUMNS:])
        for name, count in rows.items():
            means, squares = ([next(rest) / size for _ in range(count)] for _ in range(2))
            if name == "moment":  # it has either sign: how large it is says more than its mean
                told["moment_rms"] = [math.sqrt(x) for x in squares]
                continue
            pairs = zip(means, squares, strict=True)
            told[name] = means
            told[f"{name}_spread"] = [_root(x2 - x * x) for x, x2 in pairs]
        return told

    def _memory(self) -> Tensor:
        assert self.memory is not None
        return self.memory.to(self.grad.device, self.kernel.dtype)

    def _stage(self) -> Stage:
        return Stage(self.step, self.total or 0, tuple(self.p.shape))


@torch.no_grad()
def diagnose(optimizer: Any) -> dict[str, Numbers]:
    """The numbers of every parameter with a gradient, in the order of the groups, by name.

    A parameter is called by its name if the optimizer was given names, else by its number. All
    ranks that step together must ask together."""
    ranks = _ranks(optimizer)
    found = _find(optimizer)
    matrices = _matrices(optimizer, found, ranks)
    for seen in found:
        seen.pace = seen.rule.pace(seen.step, seen.total, matrices)
    if not found and ranks is None:
        raise RuntimeError(
            "diagnostics: no parameter has a gradient; call it after backward() and before "
            "zero_grad()"
        )
    home = optimizer._kernels[_home(optimizer, ranks)]
    sums = _sums(home, found, ranks)
    rows = _rows(home, sums)
    measured = {
        seen.position: seen.measure(tuple(x.to(seen.grad.device) for x in sums), rows)
        for seen in found
    }
    whole = _over_meshes(optimizer, measured, columns(rows))
    names = _names(optimizer)
    return {
        names[seen.position]: seen.numbers(whole[seen.position].tolist(), rows)
        for seen in found
        if seen.p.numel()
    }


def flattened(told: dict[str, Numbers]) -> dict[str, float]:
    """Every number under a name of its own: ``tensor/what``, or ``tensor/what/candidate``."""
    flat: dict[str, float] = {}
    for tensor, numbers in told.items():
        for what, value in numbers.items():
            if isinstance(value, list):
                flat |= {f"{tensor}/{what}/{j}": x for j, x in enumerate(value)}
            else:
                flat[f"{tensor}/{what}"] = value
    return flat


def _ranks(optimizer: Any) -> Ranks | None:
    """Over whom norms are added up. Shards that do not tell of what tensor they are are refused."""
    params = list(optimizer._params())
    if any(getattr(p, "_fsdp_flattened", False) for p in params):
        raise RuntimeError(
            "diagnostics: the parameters are shards of FSDP1, which do not tell of what tensor "
            "they are: use fully_shard (FSDP2)"
        )
    optimizer._ranks()  # refuses what a step would refuse
    return find_ranks(optimizer, params, optimizer._process_group)


def _find(optimizer: Any) -> list[Seen]:
    """The parameters whose turn it is."""
    found = []
    groups = optimizer.param_groups
    everybody = [(group, p) for group in groups for p in group["params"]]
    turn = [(i, group, p) for i, (group, p) in enumerate(everybody) if p.grad is not None]
    fresh = [p for _, _, p in turn if not optimizer.state.get(p)]
    made = iter(new_memories(optimizer.rule, fresh, optimizer._label_of))
    for i, group, p in turn:
        state = optimizer.state.get(p)
        memory = state.get(MEMORY) if state else next(made)
        found.append(Seen(optimizer, group, i, p, memory))
    return found


def _matrices(optimizer: Any, found: list[Seen], ranks: Ranks | None) -> int:
    """How many matrices move together, on all ranks."""
    count = count_matrices(seen.p.shape for seen in found)
    if ranks is None or not optimizer.rule.depth:
        return count
    told = torch.full((1,), count / ranks.size, device=_home(optimizer, ranks))
    return round(ranks.add(told).item())


def _home(optimizer: Any, ranks: Ranks | None) -> torch.device:
    """Where sums over all parameters are made."""
    params = optimizer._params()
    nowhere = torch.device("cpu") if ranks is None else ranks.device
    return next((local(p).device for p in params), nowhere)


def _sums(home: Kernel, found: list[Seen], ranks: Ranks | None) -> Sums:
    """The norms that a step would take, over all parameters and ranks."""
    none = torch.zeros(0, dtype=home.dtype, device=home.device)

    def share(earlier: Sums) -> Tensor:
        total = home.rule.column_sums(none, home.rule.init_state(none), earlier)
        for seen in found:
            weight = 1.0 if ranks is None else ranks.weight(seen.p)
            there = tuple(x.to(seen.grad.device) for x in earlier)
            for tile in seen.tiles():
                with seen.kernel.full_precision():
                    sums = seen.rule.column_sums(tile.grad, tile.state, there)
                total += weight * sums.to(home.device)
        return total if ranks is None else ranks.add(total)

    return home.rule.total_sums(share)


def _rows(home: Kernel, sums: Sums) -> dict[str, int]:
    """The fields of the rule's look and their rows; the same for all tensors, and on all ranks."""
    rule, none = home.rule, torch.zeros(0, dtype=home.dtype, device=home.device)
    if isinstance(rule, HyperAdam2Rule):
        sums = rule.control(rule.init_memory(none.new_ones(())).to(none.dtype), Stage(1, 0, (1,)))
    with home.full_precision():
        _, look = rule.look(none, rule.init_state(none), sums)
    return {name: x.shape[-2] for name, x in look.items()}


def columns(rows: dict[str, int]) -> int:
    """How many sums are taken of each tensor."""
    return COLUMNS + 2 * sum(rows.values())


def _over_meshes(optimizer: Any, measured: dict[int, Tensor], columns: int) -> dict[int, Tensor]:
    """The sums of whole tensors: those of shards are added up, once for each device mesh.

    On another rank it may be the turn of others: there is a row for every sharded parameter."""
    meshes: dict[Any, list[tuple[int, Any]]] = {}
    for i, p in enumerate(optimizer._params()):
        if is_dtensor(p):
            meshes.setdefault(p.device_mesh, []).append((i, p))
    whole = dict(measured)
    for mesh, members in meshes.items():
        device = local(members[0][1]).device
        totals = torch.zeros(len(members), columns, dtype=torch.float64, device=device)
        for row, (i, p) in enumerate(members):
            if i in measured:
                totals[row] = measured[i].to(device) * (shards(p) / mesh.size())
        for group in mesh_groups(mesh):
            dist.all_reduce(totals, group=group)
        whole |= {i: totals[row] for row, (i, _) in enumerate(members) if i in measured}
    return whole


def _names(optimizer: Any) -> list[str]:
    """How parameters are called, each differently."""
    names: list[str] = []
    for group in optimizer.param_groups:
        first = len(names)
        numbers = [str(first + i) for i in range(len(group["params"]))]
        names += group.get("param_names", numbers)
    twice = {name for name in names if names.count(name) > 1}
    return [f"{name} ({i})" if name in twice else name for i, name in enumerate(names)]


def _root(x: float) -> float:
    """The root of a variance, which rounding may leave below zero; not a number if it is none."""
    return 0.0 if x < 0 else math.sqrt(x)


def _entries(x: Tensor) -> Tensor:
    return x.double().sum(-1)


def _squares(x: Tensor) -> Tensor:
    return x.double().square().sum(-1)
