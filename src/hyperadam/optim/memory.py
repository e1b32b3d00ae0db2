"""What a rule keeps of each tensor as a whole: how it begins, and how a saved one is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hyperadam.optim.sharding import is_dtensor, local, mesh_groups, shards
from hyperadam.rules import UpdateRule
from hyperadam.rules.faults import extremes
from hyperadam.rules.pace import square_sum

#: Its name in an optimizer's state.
MEMORY = "memory"
#: No weights are larger, on average. Steps in units of such numbers might overflow.
LARGEST_SIZE = 1e12


def new_memories(
    rule: UpdateRule[Any], params: Sequence[Tensor], label: Callable[[Tensor], str]
) -> list[Tensor | None]:
    """What ``rule`` keeps of each parameter before its first step, ``(rule.memory,)``, if it does.

    An error calls a parameter by its ``label``. All ranks of a device mesh must ask together.
    """
    if not rule.memory:
        return [None] * len(params)
    if not params:
        return []
    sizes = whole_rms(params)
    for p, size in zip(params, sizes.tolist(), strict=True):
        if not size <= LARGEST_SIZE:
            raise RuntimeError(
                f"{label(p)} has the root mean square {size:g}, expected at most {LARGEST_SIZE:g}: "
                "its steps would be a share of it"
            )
    # each in storage of its own: a checkpoint of one must not bring the others along
    return [memory.clone() for memory in rule.init_memory(sizes)]


def check_whole(rule: UpdateRule[Any], params: Iterable[Tensor]) -> None:
    """Refuse shards that do not tell of what tensor they are to a rule that must know."""
    if rule.memory and any(getattr(p, "_fsdp_flattened", False) for p in params):
        raise RuntimeError(
            "the parameters are shards of FSDP1, which do not tell their tensor's size, and "
            f"{rule.kind}({rule.extra_repr()}) needs it: use fully_shard (FSDP2)"
        )


def memory_fault(x: Tensor) -> str | None:
    """What is wrong with the values of a saved memory, as float32."""
    low, high = extremes(x)
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"has an entry that is not finite in {x.dtype}"
    if low < 0:
        return "has a negative entry"
    return f"has a size above {LARGEST_SIZE:g}" if x[0] > LARGEST_SIZE else None


def loaded_memory(saved: Any) -> Tensor:
    """A copy of a saved memory, whole on every rank: float32 on the CPU."""
    whole = saved.full_tensor() if is_dtensor(saved) else saved
    copied: Tensor = whole.detach().to("cpu", torch.float32, copy=True).contiguous()
    return copied


def whole_rms(params: Sequence[Any]) -> Tensor:
    """The root mean square of each whole tensor, ``(len(params),)`` in float32 on the CPU.

    Of shards it takes one all-reduce for each device mesh. All of its ranks must ask together.
    """
    sums = [square_sum(local(p)) for p in params]
    meshes: dict[Any, list[int]] = {}
    for i, p in enumerate(params):
        if is_dtensor(p):
            meshes.setdefault(p.device_mesh, []).append(i)
    for mesh, members in meshes.items():
        total = torch.stack([sums[i] * (shards(params[i]) / mesh.size()) for i in members])
        for group in mesh_groups(mesh):
            dist.all_reduce(total, group=group)
        for i, whole in zip(members, total, strict=True):
            sums[i] = whole
    means = [x.cpu() / max(1, p.numel()) for x, p in zip(sums, params, strict=True)]
    return torch.stack(means).sqrt().float()
