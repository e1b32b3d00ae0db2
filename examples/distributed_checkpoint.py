"""A checkpoint of a sharded run, written by two ranks and taken over by a plain process.

Half of the training is done with FSDP2 on two ranks, which write their shards side by side with
torch.distributed.checkpoint. The other half is done by one process with a plain model.
"""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

import hyperadam


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(512, 10, generator=torch.Generator().manual_seed(0))
    return x, torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]


def new_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def train(model: torch.nn.Module, opt: hyperadam.HyperAdam) -> float:
    x, y = data()
    for _ in range(100):
        opt.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        opt.step()
    return loss.item()


def states(model: torch.nn.Module, opt: hyperadam.HyperAdam) -> dict[str, Any]:
    return dict(zip(("model", "opt"), get_state_dict(model, opt), strict=True))


def first_half(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = fully_shard(new_model())
    opt = hyperadam.HyperAdam(model.parameters())
    train(model, opt)
    dcp.save(states(model, opt), checkpoint_id=f"{folder}/checkpoint")
    dist.barrier()  # nobody leaves while another one still listens
    dist.destroy_process_group()


def second_half(folder: str) -> float:
    model = new_model()
    opt = hyperadam.HyperAdam(model.parameters())
    loaded = states(model, opt)  # where everything goes, and in what shape
    dcp.load(loaded, checkpoint_id=f"{folder}/checkpoint")
    set_state_dict(model, opt, model_state_dict=loaded["model"], optim_state_dict=loaded["opt"])
    return train(model, opt)


if __name__ == "__main__":
    x, y = data()
    model = new_model()
    start = mse_loss(model(x), y).item()
    train(model, opt := hyperadam.HyperAdam(model.parameters()))
    never_stopped = train(model, opt)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(first_half, (folder,), nprocs=2)
        end = second_half(folder)
    print(f"never stopped: {never_stopped:.6f}, resumed: {end:.6f}")
    print(f"loss {start:.3f} -> {end:.3f}")
