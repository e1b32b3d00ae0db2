"""One of two processes under DDP. ``test_torch_ddp.py`` starts them: RANK, RENDEZVOUS, FOLDER.

Every rank trains on its half of each joint batch and writes what it ends with to FOLDER.
"""

from __future__ import annotations

import contextlib
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.wrappers.problem import (
    OPTIMIZERS,
    backward,
    make_batches,
    make_model,
)

STEPS = 6


def main(rank: int, rendezvous: str, folder: Path) -> None:
    torch.set_num_threads(1)
    # a file, not a port: no port can be taken by someone else between choosing and binding it
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    ends = {}
    for name, make in OPTIMIZERS.items():
        model = make_model()
        parallel = DistributedDataParallel(model)
        opt = make(parallel.parameters(), weight_decay=0.1)
        for batch in make_batches(2 * STEPS)[rank::2]:
            opt.zero_grad()
            backward(parallel, batch)
            opt.step()
        ends[name] = {"model": model.state_dict(), "opt": opt.state_dict()}

        model = make_model()
        parallel = DistributedDataParallel(model)
        opt = make(parallel.parameters())
        for i, (x, y) in enumerate(make_batches(2 * STEPS)[rank::2]):
            with contextlib.nullcontext() if i % 2 else parallel.no_sync():
                (cross_entropy(parallel(x), y) / 2).backward()
            if i % 2:
                opt.step()
                opt.zero_grad()
        ends[f"{name} accumulated"] = {"model": model.state_dict(), "opt": opt.state_dict()}
    torch.save(ends, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
