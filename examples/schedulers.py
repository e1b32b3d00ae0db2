"""Learning-rate schedulers, called as with Adam. OneCycleLR has no momentum to cycle here."""

import torch
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import OneCycleLR

import hyperadam

STEPS = 200

torch.manual_seed(0)
x = torch.randn(512, 10)
y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]

model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
opt = hyperadam.HyperAdam(model.parameters())
scheduler = OneCycleLR(opt, max_lr=0.01, total_steps=STEPS)
start = mse_loss(model(x), y).item()

for step in range(STEPS):
    opt.zero_grad()
    mse_loss(model(x), y).backward()
    opt.step()
    if step % 40 == 0:
        print(f"step {step}: lr {scheduler.get_last_lr()[0]:.4f}")
    scheduler.step()

print(f"loss {start:.3f} -> {mse_loss(model(x), y).item():.3f}")
