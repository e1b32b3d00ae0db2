"""Accelerate: prepare it with the rest. Accumulation and bfloat16 are the accelerator's job."""

import torch
from accelerate import Accelerator
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import hyperadam

torch.manual_seed(0)
x = torch.randn(512, 10)
y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]

accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
net = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
start = mse_loss(net(x), y).item()
opt = hyperadam.HyperAdam(net.parameters())
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=200)
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
model, opt, loader, scheduler = accelerator.prepare(net, opt, loader, scheduler)

for _ in range(50):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            accelerator.backward(mse_loss(model(inputs), targets))
            opt.step()
            scheduler.step()
            opt.zero_grad()

print(f"loss {start:.3f} -> {mse_loss(accelerator.unwrap_model(model)(x).float(), y).item():.3f}")
