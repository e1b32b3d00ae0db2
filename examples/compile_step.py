"""torch.compile around the whole training step. It compiles once, at the first step."""

import time

import torch
from torch.nn.functional import mse_loss

import hyperadam

torch.manual_seed(0)
x = torch.randn(512, 10)
y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]

model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
opt = hyperadam.HyperAdam(model.parameters())
start = mse_loss(model(x), y).item()


@torch.compile
def training_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = mse_loss(model(x), y)
    loss.backward()
    opt.step()
    opt.zero_grad()
    return loss


for step in range(200):
    begin = time.perf_counter()
    training_step(x, y)
    if step in (0, 1, 199):
        print(f"step {step} took {time.perf_counter() - begin:.4f} s")

print(f"loss {start:.3f} -> {mse_loss(model(x), y).item():.3f}")
