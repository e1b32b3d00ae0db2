"""Lightning: the optimizer goes into configure_optimizers, where the trainer knows the steps."""

import logging
import warnings

import lightning
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import hyperadam

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = [torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)]
        self.net = torch.nn.Sequential(*layers)

    def training_step(self, batch, index):
        x, y = batch
        return mse_loss(self.net(x), y)

    def configure_optimizers(self):
        # accumulation and several devices are counted in
        steps = int(self.trainer.estimated_stepping_batches)
        return hyperadam.HyperAdam(self.parameters(), total_steps=steps)


lightning.seed_everything(0, verbose=False)
x = torch.randn(512, 10)
y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]
module = Regression()
start = mse_loss(module.net(x), y).item()
trainer = lightning.Trainer(
    max_epochs=30,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True))
print(f"loss {start:.3f} -> {mse_loss(module.net(x), y).item():.3f}")
