"""DistributedDataParallel on two processes of this machine, which the script starts itself.

With torchrun, leave out the last line and let init_process_group read the environment.
"""

import tempfile

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import hyperadam


def main(rank: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{rendezvous}", rank=rank, world_size=2)
    torch.manual_seed(0)  # the same model and data on every rank
    x = torch.randn(512, 10)
    y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    net = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    model = DistributedDataParallel(net)
    opt = hyperadam.HyperAdam(model.parameters())
    start = mse_loss(net(x), y).item()

    for _ in range(200):
        opt.zero_grad()
        mse_loss(model(x[rank::2]), y[rank::2]).backward()  # each rank has half of the data
        opt.step()

    mine = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    if rank == 0:
        print("ranks have the same bits:", torch.equal(*both))
        print(f"loss {start:.3f} -> {mse_loss(net(x), y).item():.3f}")
    dist.barrier()  # nobody leaves while another one still listens
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(main, (f"{folder}/rendezvous",), nprocs=2)
