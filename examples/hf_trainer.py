"""Hugging Face's Trainer: hand it the optimizer, and a scheduler that leaves its rate alone.

A small GPT-2 learns to count.
"""

import tempfile

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import hyperadam

STEPS = 60

torch.manual_seed(0)
rows = (torch.randint(32, (512, 1)) + torch.arange(12)) % 32
data = [{"input_ids": row, "labels": row} for row in rows]
config = GPT2Config(
    vocab_size=32,
    n_positions=16,
    n_embd=32,
    n_layer=2,
    n_head=2,
    bos_token_id=0,
    eos_token_id=0,
)
model = GPT2LMHeadModel(config)
opt = hyperadam.HyperAdam(model.parameters(), weight_decay=0.01, total_steps=STEPS)


def loss() -> float:
    model.eval()
    with torch.no_grad():
        return model(input_ids=rows[:128], labels=rows[:128]).loss.item()


start = loss()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        per_device_train_batch_size=16,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    # total_steps is a schedule already; without this the Trainer would add another one
    constant = LambdaLR(opt, lambda step: 1.0)
    Trainer(model, arguments, train_dataset=data, optimizers=(opt, constant)).train()
print(f"loss {start:.3f} -> {loss():.3f}")
