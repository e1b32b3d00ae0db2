"""Lightning: what its Trainer does with the optimizers is what a loop by hand does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

from .problem import (
    BATCH,
    assert_same_bits,
    assert_same_state,
    backward,
    make_batches,
    make_data,
    make_model,
    train,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning")

Make = Callable[..., Any]

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """The problem with an optimizer, and a scheduler if one is given."""

    def __init__(self, make: Make, scheduler: Any = None, **options: Any) -> None:
        super().__init__()
        self.net = make_model()
        self.make, self.options, self.scheduler = make, options, scheduler
        self.rates: list[float] = []

    def training_step(self, batch: Any, index: int) -> Tensor:
        x, y = batch
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        return cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> Any:
        opt = self.make(self.parameters(), **self.options)
        if self.scheduler is None:
            return opt
        schedule = {"scheduler": self.scheduler(opt), "interval": "step"}
        return {"optimizer": opt, "lr_scheduler": schedule}


class Manual(Module):
    """Two steps on every batch, at its own pleasure."""

    def __init__(self, make: Make, **options: Any) -> None:
        super().__init__(make, **options)
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        x, y = batch
        opt = self.optimizers()
        for _ in range(2):
            opt.zero_grad()
            self.manual_backward(cross_entropy(self.net(x), y))
            opt.step()


def loader() -> DataLoader[Any]:
    """Six batches an epoch, in the order of the data."""
    return DataLoader(TensorDataset(*make_data()), batch_size=BATCH)


def trainer(folder: Path, **options: Any) -> Any:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        **quiet | {"max_epochs": 2} | options,
    )


def test_automatic_optimization(make: Make, tmp_path: Path) -> None:
    module, twin = Module(make, weight_decay=0.1), make_model()
    runner = trainer(tmp_path)
    runner.fit(module, loader())
    opt = make(twin.parameters(), weight_decay=0.1)
    train(twin, opt, make_batches(12))
    assert_same_bits(module.net, twin)
    assert_same_state(runner.optimizers[0], opt)


def test_manual_optimization(make: Make, tmp_path: Path) -> None:
    module, twin = Manual(make), make_model()
    trainer(tmp_path).fit(module, loader())
    opt = make(twin.parameters())
    for batch in make_batches(12):
        train(twin, opt, [batch, batch])
    assert_same_bits(module.net, twin)


def test_resume_from_a_checkpoint(make: Make, tmp_path: Path) -> None:
    """Stopped after one epoch of three and resumed by another module: the same bits."""

    def schedule(o: Any) -> Any:
        return StepLR(o, 4, 0.5)

    whole, first, second = (Module(make, schedule) for _ in range(3))
    trainer(tmp_path, max_epochs=3).fit(whole, loader())
    runner = trainer(tmp_path, max_epochs=1)
    runner.fit(first, loader())
    runner.save_checkpoint(tmp_path / "one.ckpt")
    resumed = trainer(tmp_path, max_epochs=3)
    resumed.fit(second, loader(), ckpt_path=tmp_path / "one.ckpt")
    assert resumed.global_step == 18
    assert first.rates + second.rates == whole.rates
    assert_same_bits(second.net, whole.net)

    twin = make_model()
    opt = make(twin.parameters())
    train(twin, opt, make_batches(18), schedule(opt))
    assert_same_bits(second.net, twin)
    assert_same_state(resumed.optimizers[0], opt)


def test_mixed_precision(make: Make, tmp_path: Path) -> None:
    module, twin = Module(make), make_model()
    trainer(tmp_path, precision="bf16-mixed").fit(module, loader())
    opt = make(twin.parameters())
    for x, y in make_batches(12):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(twin(x), y)
        loss.backward()
        opt.step()
    assert_same_bits(module.net, twin)


def test_gradient_accumulation_and_clipping(make: Make, tmp_path: Path) -> None:
    module, twin = Module(make), make_model()
    runner = trainer(tmp_path, accumulate_grad_batches=3, gradient_clip_val=0.1)
    runner.fit(module, loader())
    assert runner.global_step == 4
    opt = make(twin.parameters())
    batches = make_batches(12)
    for i in range(0, 12, 3):
        opt.zero_grad()
        for x, y in batches[i : i + 3]:
            (cross_entropy(twin(x), y) / 3).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
        opt.step()
    assert_same_bits(module.net, twin)


def test_a_scheduler_that_cycles(make: Make, tmp_path: Path) -> None:
    def schedule(o: Any) -> Any:
        return OneCycleLR(o, max_lr=0.02, total_steps=13)

    module, twin = Module(make, schedule), make_model()
    trainer(tmp_path).fit(module, loader())
    opt = make(twin.parameters())
    scheduler = schedule(opt)
    rates = []
    for batch in make_batches(12):
        rates += scheduler.get_last_lr()
        opt.zero_grad()
        backward(twin, batch)
        opt.step()
        scheduler.step()
    assert module.rates == rates
    assert_same_bits(module.net, twin)


class Told(Module):
    """Asks the trainer how many steps there will be; ``again`` also after a checkpoint has said otherwise."""

    def __init__(self, make: Make, again: bool = False) -> None:
        super().__init__(make)
        self.again = again

    def configure_optimizers(self) -> Any:
        steps = int(self.trainer.estimated_stepping_batches)
        return self.make(self.parameters(), total_steps=steps)

    def on_train_start(self) -> None:
        for group in self.trainer.optimizers[0].param_groups if self.again else ():
            group["total_steps"] = int(self.trainer.estimated_stepping_batches)


def test_the_trainer_tells_how_many_steps_there_will_be(make: Make, tmp_path: Path) -> None:
    module, twin = Told(make), make_model()
    runner = trainer(tmp_path, accumulate_grad_batches=4)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*beyond total_steps")
        runner.fit(module, loader())
    # an epoch has six batches: its second step is on the two that are left
    assert runner.global_step == 4
    opt = make(twin.parameters(), total_steps=4)
    batches = make_batches(6)
    for group in (batches[:4], batches[4:]) * 2:
        opt.zero_grad()
        for x, y in group:
            (cross_entropy(twin(x), y) / 4).backward()
        opt.step()
    assert_same_bits(module.net, twin)
    assert_same_state(runner.optimizers[0], opt)


def test_a_longer_plan_after_a_checkpoint(make: Make, tmp_path: Path) -> None:
    """The checkpoint brings its own total back; ``on_train_start`` is late enough to change it."""
    runner = trainer(tmp_path, max_epochs=1)
    runner.fit(Told(make), loader())
    runner.save_checkpoint(tmp_path / "one.ckpt")
    for again, total in ((False, 6), (True, 12)):
        module, twin = Told(make, again), make_model()
        resumed = trainer(tmp_path, max_epochs=2)
        resumed.fit(module, loader(), ckpt_path=tmp_path / "one.ckpt")
        assert resumed.optimizers[0].param_groups[0]["total_steps"] == total
        opt = make(twin.parameters(), total_steps=6)
        train(twin, opt, make_batches(6))
        opt.param_groups[0]["total_steps"] = total
        train(twin, opt, make_batches(6))
        assert_same_bits(module.net, twin)
