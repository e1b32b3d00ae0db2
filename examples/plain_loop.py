"""The loop you already have: only the line that makes the optimizer changes."""

import torch
from torch.nn.functional import mse_loss

import hyperadam

torch.manual_seed(0)
x = torch.randn(512, 10)
y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]

model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
opt = hyperadam.HyperAdam(model.parameters())  # was: torch.optim.Adam(model.parameters(), lr=...)
start = mse_loss(model(x), y).item()

for epoch in range(25):
    for rows in torch.randperm(512).split(64):
        opt.zero_grad()
        loss = mse_loss(model(x[rows]), y[rows])
        loss.backward()
        opt.step()
    if epoch % 5 == 4:
        print(f"epoch {epoch + 1}: loss {mse_loss(model(x), y).item():.3f}")

print(f"loss {start:.3f} -> {mse_loss(model(x), y).item():.3f}")
