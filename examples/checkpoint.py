"""Save in the middle, resume with new objects, and end with the same bits."""

import tempfile
from pathlib import Path

import torch
from torch.nn.functional import mse_loss

import hyperadam

generator = torch.Generator().manual_seed(0)
x = torch.randn(512, 10, generator=generator)
y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]


def make() -> tuple[torch.nn.Module, hyperadam.HyperAdam]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    return model, hyperadam.HyperAdam(model.parameters())


def train(model: torch.nn.Module, opt: hyperadam.HyperAdam, steps: int) -> None:
    for _ in range(steps):
        opt.zero_grad()
        mse_loss(model(x), y).backward()
        opt.step()


model, opt = make()
start = mse_loss(model(x), y).item()
train(model, opt, 100)
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "checkpoint.pt"
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    saved = torch.load(file, weights_only=True)  # nothing in it but tensors and numbers
train(model, opt, 100)

resumed, resumed_opt = make()
resumed.load_state_dict(saved["model"])
resumed_opt.load_state_dict(saved["opt"])
train(resumed, resumed_opt, 100)

pairs = zip(model.parameters(), resumed.parameters(), strict=True)
print("same bits:", all(torch.equal(a, b) for a, b in pairs))
print(f"loss {start:.3f} -> {mse_loss(resumed(x), y).item():.3f}")
