"""A task of your own in a few lines, trained as users train and by a rule on many runs at once."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

import hyperadam
from hyperadam import tasks

torch.manual_seed(0)
x = torch.randn(512, 10)
y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]

task = tasks.ModuleTask(
    make=lambda: nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1)),
    loss=lambda module, batch: mse_loss(module(batch[0]), batch[1]),
    batches=tasks.examples((x, y), n=64),
    title="a small regression",
    test=lambda: [(x, y)],
)
print(task)

# its real life: a module and any optimizer; the seed names the start and every batch
model = task.module(seed=0)
opt = hyperadam.HyperAdam(model.parameters())
start = task.test_loss(model)
for step in range(200):
    opt.zero_grad()
    task.module_loss(model, seed=0, step=step).backward()
    opt.step()

# its flat life: runs as rows of one matrix, as in `hyperadam compare` and meta-training
params = task.init(range(5))
losses, grads = task.loss_and_grad(params, task.batch(range(5), step=0))
print(f"five runs at once: losses {tuple(losses.shape)}, gradients {tuple(grads.shape)}")

print(f"loss {start:.3f} -> {task.test_loss(model):.3f}")
