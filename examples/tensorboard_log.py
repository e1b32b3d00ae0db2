"""See inside while you train: what the optimizer tells, in TensorBoard, and figures at the end.

    python tensorboard_log.py [FOLDER]     then: tensorboard --logdir FOLDER

Without a folder all is written to a temporary one and read back.
"""

import sys
import tempfile

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.functional import mse_loss
from torch.utils.tensorboard import SummaryWriter

import hyperadam

STEPS, EVERY = 200, 10

torch.manual_seed(0)
x = torch.randn(512, 10)
y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
# with names: the optimizer then tells of "0.weight", not of tensor 0
opt = hyperadam.HyperAdam2(model.named_parameters(), total_steps=STEPS)
inside = hyperadam.inspect(opt)
start = mse_loss(model(x), y).item()

with tempfile.TemporaryDirectory() as temporary:
    folder = sys.argv[1] if len(sys.argv) > 1 else temporary
    with SummaryWriter(folder) as board:
        for step in range(STEPS):
            opt.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            if step % EVERY == 0:  # between backward() and step()
                board.add_scalar("loss", loss.item(), step)
                for name, value in opt.diagnostics(flat=True).items():
                    board.add_scalar(name, value, step)
                inside.look(loss)
            opt.step()
    inside.write(f"{folder}/inside")  # figures and a page
    events = EventAccumulator(folder).Reload()
    tags = events.Tags()["scalars"]
    first, *_, last = (event.value for event in events.Scalars("0.weight/effective_step"))

print(inside)
print(f"{len(tags)} scalars, among them 0.weight/log_step: {'0.weight/log_step' in tags}")
print(
    f"the first layer moved by {100 * first:.1f} % a step at first, by {100 * last:.2f} % at last"
)
print(f"loss {start:.3f} -> {mse_loss(model(x), y).item():.3f}")
