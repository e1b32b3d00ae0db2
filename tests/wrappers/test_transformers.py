"""Hugging Face's Trainer with ``optimizers=(opt, scheduler)``, on a GPT-2 of two small layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from .problem import assert_same_bits, assert_same_state, flat

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")  # the Trainer needs it

Make = Callable[..., Any]

pytestmark = [
    pytest.mark.usefixtures("fresh_accelerate"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

STEPS = 6


def tiny_gpt() -> Any:
    """Weights from a seed, none from a hub. No dropout: a resumed run draws other numbers."""
    config = transformers.GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return transformers.GPT2LMHeadModel(config)


def labels_of(rows: Tensor) -> Tensor:
    """The first token is nobody's target. Said here, it is not left to how the Trainer counts."""
    labels = rows.clone()
    labels[..., 0] = -100
    return labels


class Sentences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Forty-eight rows of eight tokens that count up; ``seen`` keeps the order they are read in."""

    def __init__(self) -> None:
        starts = torch.randint(32, (48, 1), generator=torch.Generator().manual_seed(6))
        self.rows = (starts + torch.arange(8)) % 32
        self.seen: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        self.seen.append(i)
        return {"input_ids": self.rows[i], "labels": labels_of(self.rows[i])}


def linear(opt: Any) -> Any:
    return transformers.get_linear_schedule_with_warmup(opt, 2, STEPS)


def arguments(folder: Path, **options: Any) -> Any:
    settings = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 8,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "dataloader_pin_memory": False,
        "seed": 7,
    }
    return transformers.TrainingArguments(output_dir=str(folder), **settings | options)


def trained(
    make: Make,
    folder: Path,
    resume: str | None = None,
    **options: Any,
) -> tuple[Any, Any, Sentences]:
    model, data = tiny_gpt(), Sentences()
    opt = make(model.parameters(), weight_decay=0.1)
    trainer = transformers.Trainer(
        model=model,
        args=arguments(folder, **options),
        train_dataset=data,
        optimizers=(opt, linear(opt)),
    )
    trainer.train(resume_from_checkpoint=resume)
    return model, opt, data


def loss_of(model: Any, rows: Tensor, batches: int = 1) -> Tensor:
    """A batch's share of the mean over the tokens of ``batches`` batches, as the Trainer sums it.

    To the bit: an attention key's bias has a gradient that is zero but for rounding, and the
    optimizers, that do not know sizes, move it by a full step in the direction of that rounding.
    """
    tokens = torch.tensor(batches * rows[:, 1:].numel())
    return model(input_ids=rows, labels=labels_of(rows), num_items_in_batch=tokens).loss


def by_hand(
    model: Any,
    opt: Any,
    order: list[int],
    scheduler: Any = None,
    accumulate: int = 1,
    autocast: bool = False,
) -> None:
    """The loop on the rows in the order in which the Trainer read them, with its clipping at 1."""
    rows = Sentences().rows
    for step in torch.tensor(order).split(8 * accumulate)[:STEPS]:
        opt.zero_grad()
        for batch in step.split(8):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = loss_of(model, rows[batch], accumulate)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if scheduler is not None:
            scheduler.step()


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({}, {}),
        ({"gradient_accumulation_steps": 2}, {"accumulate": 2}),
        ({"bf16": True}, {"autocast": True}),
    ],
    ids=["plain", "accumulation", "mixed precision"],
)
def test_trainer(make: Make, tmp_path: Path, options: Any, same: Any) -> None:
    model, opt, data = trained(make, tmp_path, **options)
    twin = tiny_gpt()
    expected = make(twin.parameters(), weight_decay=0.1)
    by_hand(twin, expected, data.seen, linear(expected), **same)
    assert_same_bits(model, twin)
    assert_same_state(opt, expected)
    assert opt.param_groups[0]["lr"] == expected.param_groups[0]["lr"] == 0.0
    assert (flat(model) - flat(tiny_gpt())).abs().max() > 1e-3


def test_resume_from_a_checkpoint(make: Make, tmp_path: Path) -> None:
    """All the way, and from the checkpoint in the middle with new objects: the same bits."""
    saving = {"save_strategy": "steps", "save_steps": 3}
    whole, opt, data = trained(make, tmp_path, **saving)
    middle = tmp_path / "checkpoint-3"
    assert (middle / "optimizer.pt").exists()
    resumed, opt2, rest = trained(make, tmp_path / "second", resume=str(middle))
    assert rest.seen[-24:] == data.seen[24:48]
    assert_same_bits(resumed, whole)
    assert_same_state(opt2, opt)


def test_the_optimizer_given_as_a_class(make: Make, tmp_path: Path) -> None:
    """The other door: the Trainer makes it, in two groups, with and without weight decay.

    Its own learning rate does not reach it: the optimizer's default stands.
    """
    model, data = tiny_gpt(), Sentences()
    trainer = transformers.Trainer(
        model=model,
        args=arguments(tmp_path, lr_scheduler_type="constant", weight_decay=0.1),
        train_dataset=data,
        optimizer_cls_and_kwargs=(make, {}),
    )
    trainer.train()

    twin = tiny_gpt()
    decayed = set(trainer.get_decay_parameter_names(twin))
    named = dict(twin.named_parameters())
    groups = [
        {"params": [p for n, p in named.items() if n in decayed], "weight_decay": 0.1},
        {"params": [p for n, p in named.items() if n not in decayed], "weight_decay": 0.0},
    ]
    assert all(group["params"] for group in groups)
    by_hand(twin, make(groups), data.seen)
    assert_same_bits(model, twin)


def constant(opt: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1.0)


class TellTotalSteps(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
    """The Trainer counts in epochs and accumulation; at the start, a resumed one too, it knows."""

    def on_train_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any
    ) -> None:
        for group in optimizer.param_groups:
            group["total_steps"] = state.max_steps


def told(
    make: Make, folder: Path, epochs: float, resume: str | None = None, **options: Any
) -> tuple[Any, Any, Sentences]:
    model, data = tiny_gpt(), Sentences()
    opt = make(model.parameters())
    settings = {"num_train_epochs": epochs, "max_steps": -1, "lr_scheduler_type": "constant"}
    trainer = transformers.Trainer(
        model=model,
        args=arguments(folder, **settings | options),
        train_dataset=data,
        optimizers=(opt, None),
        callbacks=[TellTotalSteps()],
    )
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.state.global_step == trainer.state.max_steps
    return model, opt, data


def test_the_trainer_tells_how_many_steps_there_will_be(make: Make, tmp_path: Path) -> None:
    model, opt, data = told(make, tmp_path, epochs=2, gradient_accumulation_steps=2)
    assert opt.param_groups[0]["total_steps"] == STEPS
    twin = tiny_gpt()
    expected = make(twin.parameters(), total_steps=STEPS)
    by_hand(twin, expected, data.seen, accumulate=2)
    assert_same_bits(model, twin)
    assert_same_state(opt, expected)


def test_a_longer_plan_after_a_checkpoint(make: Make, tmp_path: Path) -> None:
    """One epoch of six steps, and then another one."""
    saving = {"save_strategy": "epoch"}
    _, _, first = told(make, tmp_path, epochs=1, **saving)
    checkpoint = str(tmp_path / f"checkpoint-{STEPS}")
    model, opt, rest = told(make, tmp_path / "second", epochs=2, resume=checkpoint)
    assert opt.param_groups[0]["total_steps"] == 2 * STEPS
    twin = tiny_gpt()
    expected = make(twin.parameters(), total_steps=STEPS)
    by_hand(twin, expected, first.seen)
    expected.param_groups[0]["total_steps"] = 2 * STEPS
    by_hand(twin, expected, rest.seen[-48:])
    assert_same_bits(model, twin)
    assert_same_state(opt, expected)


def test_a_horizon_beside_the_trainers_own_schedule_decays_twice(
    make: Make, tmp_path: Path
) -> None:
    """What the page warns of: with no scheduler given, the Trainer adds one."""
    ends = []
    for schedule in (None, constant):
        model = tiny_gpt()
        opt = make(model.parameters(), total_steps=STEPS)
        scheduler = schedule(opt) if schedule else None
        trainer = transformers.Trainer(
            model=model,
            args=arguments(tmp_path),
            train_dataset=Sentences(),
            optimizers=(opt, scheduler),
        )
        trainer.train()
        ends.append((opt.param_groups[0]["lr"], flat(model)))
    (decayed, shorter), (kept, longer) = ends
    assert decayed == 0.0
    assert kept == opt.defaults["lr"]
    assert not torch.equal(shorter, longer)
