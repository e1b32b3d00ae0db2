"""Say how long training lasts: steps warm up, then shrink to nothing at the end. No scheduler.

The number counts calls of step(), not batches. Training may end earlier, or go on longer: then say
so in the groups. HyperAdam2 was made to be told.
"""

import torch
from torch.nn.functional import mse_loss

import hyperadam

EPOCHS, ACCUMULATE = 40, 2

torch.manual_seed(0)
x = torch.randn(512, 10)
y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]
batches = list(zip(x.split(64), y.split(64), strict=True))

model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
steps = EPOCHS * len(batches) // ACCUMULATE
opt = hyperadam.HyperAdam2(model.parameters(), total_steps=steps)
start = mse_loss(model(x), y).item()


def train(epochs: int) -> float:
    for _ in range(epochs):
        for i, (inputs, targets) in enumerate(batches, start=1):
            (mse_loss(model(inputs), targets) / ACCUMULATE).backward()
            if i % ACCUMULATE == 0:
                opt.step()
                opt.zero_grad()
    return mse_loss(model(x), y).item()


print(f"after {EPOCHS} epochs, as announced: loss {train(EPOCHS):.3f}")

# twice as long after all: announce the new end, and steps grow again
for group in opt.param_groups:
    group["total_steps"] *= 2
end = train(EPOCHS)
taken = opt.state[model[0].weight]["step"].item()
print(f"step {taken} of {opt.param_groups[0]['total_steps']}")
print(f"loss {start:.3f} -> {end:.3f}")
