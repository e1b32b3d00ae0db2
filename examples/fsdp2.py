"""FSDP2 on two processes of this machine, which the script starts itself.

Parameters and state are split over the ranks; the optimizer finds that out by itself.
With torchrun, leave out the last lines and let init_process_group read the environment.
"""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

import hyperadam


def main(rank: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{rendezvous}", rank=rank, world_size=2)
    torch.manual_seed(0)  # the same model and data on every rank
    x = torch.randn(512, 10)
    y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    model = torch.nn.Sequential(torch.nn.Linear(10, 33), torch.nn.Tanh(), torch.nn.Linear(33, 1))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    opt = hyperadam.HyperAdam(model.parameters())  # after sharding, as with any optimizer
    with torch.no_grad():
        start = mse_loss(model(x), y).item()

    for _ in range(200):
        opt.zero_grad()
        mse_loss(model(x[rank::2]), y[rank::2]).backward()  # each rank has half of the data
        opt.step()  # adds 21 numbers up over the ranks

    weight = model[0].weight
    moment = opt.state[weight]["m"]
    with torch.no_grad():
        end = mse_loss(model(x), y).item()
    if rank == 0:
        print(f"weight {tuple(weight.shape)}, {tuple(weight.to_local().shape)} of it on rank 0")
        print(f"moments {tuple(moment.shape)}, {tuple(moment.to_local().shape)} of them on rank 0")
        print(f"loss {start:.3f} -> {end:.3f}")
    dist.barrier()  # nobody leaves while another one still listens
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(main, (f"{folder}/rendezvous",), nprocs=2)
