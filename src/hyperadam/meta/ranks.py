"""Joining the other ranks under ``torchrun``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import TCPStore  # type: ignore[attr-defined]

from hyperadam.files.lock import Lock


def join() -> None:
    """Join the process group that ``torchrun`` describes in the environment, on CPUs; without it,
    do nothing.

    After a restart torchrun may hand out the store of the attempt before, in which the addresses of
    dead workers still stand. Each attempt therefore meets under a name of its own."""
    environment = os.environ
    if "RANK" not in environment or dist.is_initialized():
        return
    rank, ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    hosted = (
        environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    )  # by torchrun itself, not by rank 0
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    store = TCPStore(
        address, port, ranks, is_master=rank == 0 and not hosted, wait_for_workers=False
    )
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        "gloo", store=PrefixStore(f"attempt {attempt}", store), rank=rank, world_size=ranks
    )


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder``: rank 0 for all ranks. If it is refused, all are."""
    refused: list[OSError | None] = [None]
    with contextlib.ExitStack() as stack:
        if not dist.is_initialized() or dist.get_rank() == 0:
            try:
                stack.enter_context(Lock(folder))
            except OSError as error:
                refused = [error]
        if dist.is_initialized():
            dist.broadcast_object_list(refused)
        if refused[0] is not None:
            raise refused[0]
        yield
