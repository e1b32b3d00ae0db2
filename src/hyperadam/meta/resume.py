"""Where a meta-training goes on: which checkpoint, and whether its settings are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from hyperadam.files import Damaged
from hyperadam.meta.settings import FREE, Settings


class Change(NamedTuple):
    """A setting that was changed on the way, after so many updates."""

    update: int
    name: str
    before: Any
    after: Any


def changed(settings: Settings, before: Any, update: int) -> list[Change] | None:
    """Which settings are others than ``before``, in JSON; ``None`` if one is that may not be."""
    after, usual = json.loads(json.dumps(settings.as_dict())), Settings()
    try:
        old = json.loads(before)
    except (TypeError, ValueError):
        return None
    if not isinstance(old, dict):
        return None
    names = FREE[settings.estimator]
    free = [(name, *(x.pop(name, getattr(usual, name)) for x in (old, after))) for name in names]
    if old != after:
        return None
    return [Change(update, *change) for change in free if change[1] != change[2]]


def newest(
    contents: list[dict[str, Any]], faults: list[str], out: Path, ranks: int
) -> tuple[int, str]:
    """The newest update that all ranks have a checkpoint of, 0 if there is none yet; and what to
    say about it, if anything.

    A rank that was killed may not have come to its last, or not even to its first.
    """
    mine = {content["update"] for content in contents}, faults
    every: list[Any] = [mine]
    if ranks > 1:
        every = [None] * ranks
        dist.all_gather_object(every, mine)
    if common := set.intersection(*(updates for updates, _ in every)):
        return int(max(common)), ""
    if wrong := [fault for _, found in every for fault in found]:
        raise Damaged(f"{'; '.join(wrong)}: remove the checkpoints to start anew")
    updates = [sorted(found) for found, _ in every]
    if max(map(len, updates)) > 1 or min(map(len, updates)) > 0:
        raise ValueError(
            f"{out}: the ranks' checkpoints are of different updates, {updates}: "
            "remove them to start anew"
        )
    if any(updates):
        return 0, f"{out}: some rank was stopped before its first checkpoint; beginning anew"
    return 0, ""
