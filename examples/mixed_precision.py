"""Autocast for the model, a GradScaler for its gradients, and a step that the scaler skips.

On a GPU write "cuda" for "cpu", and torch.float16 for torch.bfloat16 if you like.
"""

import torch
from torch.nn.functional import mse_loss

import hyperadam

torch.manual_seed(0)
x = torch.randn(512, 10)
y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]

model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
opt = hyperadam.HyperAdam(model.parameters())
scaler = torch.amp.GradScaler("cpu")
start = mse_loss(model(x), y).item()

for step in range(200):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = mse_loss(model(x).float(), y)
    if step == 50:
        loss = loss * torch.inf  # as if a product had overflowed
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(opt)  # skips the step if a gradient is not finite: the optimizer never sees it
    scaler.update()
    if scaler.get_scale() < before:
        print(f"step {step} skipped, scale {before:.0f} -> {scaler.get_scale():.0f}")

print(f"loss {start:.3f} -> {mse_loss(model(x), y).item():.3f}")
