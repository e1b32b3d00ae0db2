"""Parameters split over ranks: whose sums make the norms whole, and state sharded as they are."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hyperadam.rules import UpdateRule


def is_dtensor(x: Tensor) -> bool:
    """Whether ``x`` is a ``DTensor``; its module is not imported for the question."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(x, kind)


def local(x: Any) -> Tensor:
    """This rank's own share of a tensor: all of it, unless it is a ``DTensor``."""
    if is_dtensor(x):
        x = x.to_local()
        if hasattr(x, "trigger_wait"):  # still on its way, of which its address would not tell
            x = x.trigger_wait()
    return x


def local_grad(p: Any) -> Tensor:
    """This rank's share of the gradient of ``p``, split as ``p`` is."""
    grad = p.grad
    if is_dtensor(p) and is_dtensor(grad) and grad.placements != p.placements:
        grad = grad.redistribute(p.device_mesh, p.placements)
    return local(grad)


def rows_like(p: Any, rows: Tensor) -> Tensor:
    """``rows (count, *local shape)`` as state of ``p``, split as it is if it is a ``DTensor``."""
    if not is_dtensor(p):
        return rows
    from torch.distributed.tensor import DTensor

    shape = torch.Size((len(rows), *p.shape))
    stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    placed = p.device_mesh, _row_placements(p)
    return DTensor.from_local(rows, *placed, run_check=False, shape=shape, stride=stride)


def local_rows(p: Any, saved: Any) -> Tensor:
    """This rank's share of ``saved (count, *p.shape)``, which may be whole or split otherwise."""
    if not is_dtensor(p):
        return saved.full_tensor() if is_dtensor(saved) else saved
    if not is_dtensor(saved):
        from torch.distributed.tensor import DTensor, Replicate

        whole = [Replicate()] * p.device_mesh.ndim
        saved = DTensor.from_local(saved, p.device_mesh, whole, run_check=False)
    return local(saved.redistribute(p.device_mesh, _row_placements(p)))


def turned_shard(p: Any, mixture: Tensor, turn: Any) -> Tensor:
    """This rank's share ``(1, n)`` of the direction of ``p``, a matrix, given its share of the
    mixture. Ranks gather the whole one, and all of them ``turn`` it: a rule or its kernel."""
    from torch.distributed.tensor import DTensor, Replicate

    shape = torch.Size(p.shape)
    stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    mesh, here = p.device_mesh, mixture.view(local(p).shape)
    split = DTensor.from_local(
        here, mesh, p.placements, run_check=False, shape=shape, stride=stride
    )
    made = turn.direction(split.full_tensor().reshape(1, -1), shape).view(shape)
    whole = DTensor.from_local(made, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return local(whole.redistribute(mesh, p.placements)).reshape(1, -1)


def turns_of(rule: Any, params: Iterable[Any], now: Iterable[Any]) -> list[float]:
    """Of every parameter 1 if it is a matrix whose shards ranks must gather ``now``, else 0."""
    if not rule.per_tensor:
        return []
    turn = {id(p) for p in now}
    return [float(id(p) in turn and is_dtensor(p) and rule.turns(p.shape)) for p in params]


def shards(p: Any) -> int:
    """Into how many pieces a ``DTensor`` is split; each may lie on several ranks."""
    placements = zip(p.placements, p.device_mesh.shape, strict=True)
    return math.prod(size for placement, size in placements if not placement.is_replicate())


def _row_placements(p: Any) -> list[Any]:
    """How rows of state of ``p`` are placed: as ``p`` is, one dimension on."""
    return [_one_dimension_on(placement) for placement in p.placements]


def _one_dimension_on(placement: Any) -> Any:
    """The placement of a tensor that has one more dimension in front."""
    from torch.distributed.tensor import Replicate, Shard

    if placement.is_replicate():
        return Replicate()
    if hasattr(placement, "split_factor"):
        return type(placement)(placement.dim + 1, split_factor=placement.split_factor)
    return Shard(placement.dim + 1)


class Ranks:
    """The ranks that step together.

    Args:
        groups: sums are added up over each of these in turn.
        size: how many ranks the device mesh of this rank's parameters has. What lies outside of it
            is another piece of the vector; within it, what is not sharded is a copy.
    """

    def __init__(self, groups: Sequence[Any], size: int) -> None:
        self.groups, self.size = groups, size

    @property
    def split(self) -> bool:
        """Whether they hold pieces of the same tensors, and not each some of its own."""
        return self.size > 1

    def add(self, sums: Tensor) -> Tensor:
        """The total of all ranks' ``sums``, in place."""
        for group in self.groups:
            dist.all_reduce(sums, group=group)
        return sums

    def weight(self, p: Any) -> float:
        """How much this rank's share of ``p`` counts: one that k ranks hold alike counts 1/k."""
        return (shards(p) if is_dtensor(p) else 1) / self.size

    @property
    def device(self) -> torch.device:
        """A device that the ranks can add on, for one that holds no parameter to ask."""
        types: list[torch.device] = self.groups[0]._device_types
        return torch.device("cpu") if torch.device("cpu") in types else types[0]


def find_ranks(optimizer: Any, params: Iterable[Any], process_group: Any) -> Ranks | None:
    """Over whom sums are added up; ``None``: this rank holds all. Raises if it cannot be known."""
    params = list(params)
    rule = optimizer.rule
    if rule.rounds and any(optimizer in getattr(p, "_in_backward_optimizers", ()) for p in params):
        raise RuntimeError(
            f"{type(optimizer).__name__} takes norms over all gradients together, and here it "
            "steps one parameter at a time in the backward pass: call step() after it instead"
        )
    meshes = [p.device_mesh for p in params if is_dtensor(p)]
    mesh = max(meshes, key=lambda mesh: mesh.size(), default=None)
    ranks = _members(mesh)
    if not all(ranks.issuperset(_members(other)) for other in meshes):
        raise RuntimeError(
            f"the parameters lie on device meshes of ranks {sorted(ranks)} and others, "
            "of which none spans the rest, expected one that does"
        )
    if process_group is not None:
        if rule.per_tensor and mesh is not None:
            raise RuntimeError(
                f"{type(optimizer).__name__} under ZeroRedundancyOptimizer needs whole tensors on "
                "each rank, and here they are DTensors: leave one of the two out"
            )
        return Ranks([process_group], max(1, len(ranks)))
    if any(getattr(p, "_fsdp_flattened", False) for p in params):
        raise RuntimeError(
            "the parameters are FSDP shards, and norms run over all of them: pass process_group= "
            "the group that they are split over, for instance torch.distributed.group.WORLD"
        )
    if mesh is None:
        return None
    return Ranks(mesh_groups(mesh), len(ranks))


def mesh_groups(mesh: Any) -> Sequence[Any]:
    """What is added up over each of these in turn is added up over all of the mesh."""
    whole = mesh.size() == dist.get_world_size()
    groups: Sequence[Any] = [dist.group.WORLD] if whole else mesh.get_all_groups()
    return groups


def _members(mesh: Any) -> set[int]:
    return set() if mesh is None else set(mesh.mesh.flatten().tolist())


def check_group(process_group: Any, rule: UpdateRule[Any]) -> None:
    """Refuse what is no group, and any for a rule that needs none.

    A rank outside of a group has been given something else for it."""
    if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
        expected = "None or a torch.distributed.ProcessGroup that has this rank"
        raise TypeError(f"process_group must be {expected}, got {process_group!r}")
    if process_group is not None and rule.per_tensor:
        raise ValueError(
            f"process_group must be None, got a group: {rule.kind} takes norms tensor by tensor. "
            "Split tensors with fully_shard (FSDP2); the stages of a pipeline need no group"
        )


def zero_redundancy_group() -> Any:
    """The group of the ``ZeroRedundancyOptimizer`` that is making the optimizer just now, if any.

    It hands each rank some of the parameters and is silent about the rest: only its frame tells."""
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    frame = sys._getframe() if module is not None else None
    while module is not None and frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, module.ZeroRedundancyOptimizer):
            return owner.process_group
        frame = frame.f_back
    return None
