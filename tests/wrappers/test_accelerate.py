"""Accelerate: prepared, accumulated, saved and resumed, with the numbers of a loop by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

from .problem import (
    BATCH,
    assert_close,
    assert_same_bits,
    assert_same_state,
    make_batches,
    make_data,
    make_model,
    train,
)

accelerate = pytest.importorskip("accelerate")

Make = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


def prepared(make: Make, schedule: Any, **options: Any) -> tuple[Any, ...]:
    """An accelerator, and what it makes of model, optimizer, loader and scheduler."""
    accelerator = accelerate.Accelerator(cpu=True, **options)
    model = make_model()
    opt = make(model.parameters())
    loader = DataLoader(TensorDataset(*make_data()), batch_size=BATCH)
    return accelerator, *accelerator.prepare(model, opt, loader, schedule(opt))


def epoch(accelerator: Any, model: Any, opt: Any, loader: Any, scheduler: Any) -> None:
    """The loop of Accelerate's own documentation, with clipping."""
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(cross_entropy(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.2)
            opt.step()
            scheduler.step()
            opt.zero_grad()


def halving(opt: Any) -> Any:
    return StepLR(opt, 4, 0.5)


def cycle(opt: Any) -> Any:
    return OneCycleLR(opt, max_lr=0.02, total_steps=13)


@pytest.mark.parametrize("schedule", [halving, cycle])
def test_prepare(make: Make, schedule: Any) -> None:
    parts = prepared(make, schedule)
    for _ in range(2):
        epoch(*parts)
    twin = make_model()
    opt = make(twin.parameters())
    train(twin, opt, make_batches(12), schedule(opt), clip=0.2)
    accelerator, model, prepared_opt, *_ = parts
    assert_same_bits(accelerator.unwrap_model(model), twin)
    assert_same_state(prepared_opt, opt)


def test_accumulate(make: Make) -> None:
    parts = prepared(make, halving, gradient_accumulation_steps=2)
    for _ in range(2):
        epoch(*parts)
    twin = make_model()
    opt = make(twin.parameters())
    scheduler = halving(opt)
    for i, (x, y) in enumerate(make_batches(12)):
        (cross_entropy(twin(x), y) / 2).backward()
        if i % 2:
            torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.2)
            opt.step()
            scheduler.step()
            opt.zero_grad()
    assert_same_bits(parts[1], twin)
    assert parts[2].param_groups[0]["lr"] == opt.param_groups[0]["lr"]


def test_mixed_precision(make: Make) -> None:
    parts = prepared(make, halving, mixed_precision="bf16")
    for _ in range(2):
        epoch(*parts)
    twin = make_model()
    opt = make(twin.parameters())
    scheduler = halving(opt)
    for x, y in make_batches(12):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = twin(x)
        cross_entropy(out.float(), y).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.2)
        opt.step()
        scheduler.step()
    assert_close(parts[1], twin)


def test_save_and_load_state(make: Make, tmp_path: Path) -> None:
    """One epoch, a folder, another process' worth of objects, two more epochs: the same bits."""
    parts = prepared(make, halving)
    epoch(*parts)
    parts[0].save_state(tmp_path)
    for _ in range(2):
        epoch(*parts)

    resumed = prepared(make, halving)
    epoch(*resumed)
    epoch(*resumed)  # whatever it did before, the folder says where it is
    resumed[0].load_state(tmp_path)
    for _ in range(2):
        epoch(*resumed)
    assert_same_bits(resumed[1], parts[1])
    assert_same_state(resumed[2], parts[2])

    twin = make_model()
    opt = make(twin.parameters())
    train(twin, opt, make_batches(18), halving(opt), clip=0.2)
    assert_same_bits(resumed[1], twin)
