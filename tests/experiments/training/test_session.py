"""Training: the protocol's numbers, runs that do not mix, divergence as a result, and resuming to the bit."""

from __future__ import annotations

import io
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hyperadam import DMRule, HyperAdamRule, RNNpropRule, data
from hyperadam.experiments import train
from hyperadam.experiments.training import session as training
from hyperadam.experiments.training.optimizers import find
from hyperadam.files import read_checked, write_checked
from hyperadam.results import Result, Store

from ..tiny import NoisyBowl, Trap

pytestmark = pytest.mark.usefixtures("tiny")


def same(a: Result, b: Result) -> bool:
    return (
        torch.equal(a.losses, b.losses)
        and torch.equal(a.final_loss, b.final_loss)
        and a.diverged_at == b.diverged_at
    )


def test_the_protocol_on_one_run_with_torch() -> None:
    """Losses before each step, and the final loss over the very batches of training."""
    task, seed, steps = NoisyBowl(), 7, 20
    w = nn.Parameter(task.init([seed]))
    optimizer = torch.optim.Adam([w], lr=0.1)
    curve = []
    for step in range(steps):
        loss = task.losses(w, task.batch([seed], step)).sum()
        curve.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    final = np.mean([task.losses(w, task.batch([seed], step)).item() for step in range(steps)])

    result = train("noisy-bowl", "adam@0.1", [3, seed, 5], steps)
    assert result.losses.shape == (3, steps)
    torch.testing.assert_close(result.losses[1], torch.tensor(curve), rtol=1e-5, atol=1e-6)
    assert result.final_loss[1].item() == pytest.approx(final, rel=1e-5)
    assert result.final_loss[1] < 0.5 * result.losses[1, 0]
    assert (result.task, result.optimizer, result.lr, result.steps, result.runs) == (
        "noisy-bowl",
        "adam",
        0.1,
        20,
        3,
    )
    assert result.diverged_at == (None, None, None)


@pytest.mark.parametrize("optimizer", ["adam@0.1", "momentum@0.1", "hyperadam"])
def test_batches_of_runs_do_not_matter(optimizer: str) -> None:
    together = train("noisy-bowl", optimizer, range(7), 12)
    for size in (1, 3):
        assert same(train("noisy-bowl", optimizer, range(7), 12, runs_at_once=size), together)
    alone = train("noisy-bowl", optimizer, [4], 12)
    assert torch.equal(alone.losses[0], together.losses[4])
    assert torch.equal(alone.final_loss[0], together.final_loss[4])


@pytest.mark.parametrize("options", ["+horizon", "+relative", "+relative+horizon"])
def test_horizons_and_relative_steps_resume_to_the_bit(options: str, tmp_path: Path) -> None:
    """And no company of runs matters."""
    whole = train("noisy-bowl", f"hyperadam{options}", range(5), 12)
    plain = train("noisy-bowl", "hyperadam", range(5), 12)
    assert whole.key != plain.key
    assert not torch.equal(whole.final_loss, plain.final_loss)
    assert same(train("noisy-bowl", f"hyperadam{options}", range(5), 12, runs_at_once=2), whole)

    class Stop(Exception):
        pass

    def stop(share: float) -> None:
        if share > 0.4:
            raise Stop

    file = tmp_path / "checkpoint"
    with pytest.raises(Stop):
        train(
            "noisy-bowl",
            f"hyperadam{options}",
            range(5),
            12,
            progress=stop,
            checkpoint=file,
            interval=0,
        )
    assert file.is_file()
    resumed = train("noisy-bowl", f"hyperadam{options}", range(5), 12, checkpoint=file)
    assert same(resumed, whole)


def test_memory_bounds_how_many_runs_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    batch = NoisyBowl.batch

    def counting(self: NoisyBowl, seeds: list[int], step: int) -> tuple[Tensor]:
        sizes.append(len(seeds))
        return batch(self, seeds, step)

    monkeypatch.setattr(NoisyBowl, "batch", counting)
    monkeypatch.setattr(training, "MEMORY", 3 * 11 * (480 + 16))
    train("noisy-bowl", "hyperadam", range(7), 2)
    assert set(sizes) == {3, 1}
    sizes.clear()
    train("noisy-bowl", "sgd", range(7), 2)
    assert set(sizes) == {7}


def test_final_loss_over_fewer_batches() -> None:
    task = NoisyBowl()
    w = task.init(range(3))
    few = training.final_loss(task, w, range(3), 100, 4)
    chosen = torch.stack([task.loss(w, task.batch(range(3), step)) for step in (12, 37, 62, 87)])
    torch.testing.assert_close(few, chosen.mean(0))
    torch.testing.assert_close(
        training.final_loss(task, w, range(3), 5, 5), task.final_loss(w, range(3), 5)
    )
    capped = train("noisy-bowl", "sgd@0.1", range(3), 10, final_batches=4)
    whole = train("noisy-bowl", "sgd@0.1", range(3), 10, final_batches=40)
    assert capped.settings["final_batches"] == 4
    assert "final_batches" not in whole.settings, "over all is the default"
    assert capped.key != whole.key
    assert not torch.equal(capped.final_loss, whole.final_loss)
    assert torch.equal(capped.losses, whole.losses)


@pytest.mark.parametrize("optimizer", ["sgd@0.1", "adam@0.1", "hyperadam"])
def test_a_run_that_diverges_is_stopped_and_recorded(optimizer: str) -> None:
    result = train("trap", optimizer, range(6), 8)
    assert result.diverged_at == (None, 3, None, 3, None, 3)
    assert result.diverged == 3
    assert result.losses[1::2, :3].isfinite().all()
    assert (result.losses[1::2, 3:] == math.inf).all()
    assert (result.final_loss[1::2] == math.inf).all()
    clean = train("noisy-bowl", optimizer, [0, 2, 4], 8)
    assert torch.equal(result.losses[::2], clean.losses)
    assert torch.equal(result.final_loss[::2], clean.final_loss)


def test_a_step_too_large_is_divergence() -> None:
    # the loss and the gradient of step 0 are finite, the parameters after it are not
    result = train("noisy-bowl", "sgd@3e38", range(2), 5)
    assert result.diverged_at == (0, 0)
    assert result.losses[:, 0].isfinite().all()
    assert (result.losses[:, 1:] == math.inf).all()
    # with 1e25 it is the gradient of step 1 whose square overflows
    assert train("noisy-bowl", "adam@1e25", range(2), 5).diverged_at == (1, 1)


def test_nothing_is_computed_for_runs_that_all_diverged() -> None:
    task = Trap()
    train(task, "sgd@0.1", [1, 3], 50)
    assert task.batches == 4


def test_a_final_loss_that_is_not_finite_is_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoisyBowl, "final_loss", lambda *_: torch.tensor([1.0, math.nan]))
    result = train("noisy-bowl", "sgd@0.1", range(2), 5)
    assert result.diverged_at == (None, 5)
    assert result.final_loss.tolist() == [1.0, math.inf]


class Stop(Exception):
    """What interrupts a training in these tests."""


RULES = {
    "hyperadam": HyperAdamRule(decay_bound=0.97, warmup=20),
    "rnnprop": RNNpropRule(units=4),
    "dm": DMRule(units=4),
}


@pytest.mark.parametrize(
    "name", ["sgd", "momentum", "adagrad", "adadelta", "rmsprop", "adam", *RULES]
)
def test_a_resumed_training_has_the_same_bits(name: str, tmp_path: Path) -> None:
    optimizer = find(RULES[name]) if name in RULES else find(name)
    whole = train("trap", optimizer, range(5), 9, runs_at_once=2)
    checkpoint = tmp_path / "a.checkpoint"
    for stop_after in (5, 4, 7):  # in the first chunk, in the second, in the third
        calls = 0

        def stop(share: float, limit: int = stop_after) -> None:
            nonlocal calls
            calls += 1
            if calls == limit:
                raise Stop

        with pytest.raises(Stop):
            train(
                "trap",
                optimizer,
                range(5),
                9,
                runs_at_once=2,
                progress=stop,
                checkpoint=checkpoint,
                interval=0,
            )
        saved = torch.load(io.BytesIO(read_checked(checkpoint)), weights_only=True)
        assert (saved["first"], saved["step"]) != (0, 0)
    resumed = train("trap", optimizer, range(5), 9, checkpoint=checkpoint, interval=0)
    assert same(resumed, whole)
    assert resumed.settings == whole.settings
    # and a finished one is only read
    task = Trap()
    task.title = "trap"
    assert same(train(task, optimizer, range(5), 9, checkpoint=checkpoint), whole)
    assert task.batches == 0


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    checkpoint = tmp_path / "a.checkpoint"
    train("noisy-bowl", "adam@0.1", range(2), 5, checkpoint=checkpoint)
    with pytest.raises(ValueError, match=r"another training \(lr, seeds differ\)"):
        train("noisy-bowl", "adam@0.2", range(3), 5, checkpoint=checkpoint)
    write_checked(checkpoint, b"of another version")
    with pytest.raises(ValueError, match="not a checkpoint that can be read"):
        train("noisy-bowl", "adam@0.1", range(2), 5, checkpoint=checkpoint)


def interrupted(checkpoint: Path, after: int) -> None:
    """A training that leaves a checkpoint after every step, and is stopped."""

    def stop(share: float) -> None:
        nonlocal after
        after -= 1
        if not after:
            raise Stop

    with pytest.raises(Stop):
        train(
            "noisy-bowl",
            "adam@0.1",
            range(2),
            9,
            progress=stop,
            checkpoint=checkpoint,
            interval=0,
        )


def test_a_flipped_bit_in_a_checkpoint_changes_no_number(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = train("noisy-bowl", "adam@0.1", range(2), 9)
    checkpoint = tmp_path / "a.checkpoint"
    interrupted(checkpoint, 6)
    files = training.checkpoint_files(checkpoint)
    contents = [file.read_bytes() for file in files]
    places = random.Random(0).sample(range(8 * len(contents[0])), 40)
    for place in places:
        flipped = bytearray(contents[0])
        flipped[place // 8] ^= 1 << place % 8
        files[0].write_bytes(flipped)
        files[1].write_bytes(contents[1])
        steps: list[float] = []
        again = train(
            "noisy-bowl", "adam@0.1", range(2), 9, checkpoint=checkpoint, progress=steps.append
        )
        assert same(again, whole)
        assert len(steps) == 1 + 9 - 4, "it goes on from the one before it"
        first, second = capfd.readouterr().err.splitlines()
        assert (
            first == f"hyperadam: {checkpoint} is damaged: its checksum is not that of its content"
        )
        assert second == f"hyperadam: going on from {files[1]}"


def test_with_both_checkpoints_damaged_it_starts_anew(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "a.checkpoint"
    interrupted(checkpoint, 6)
    for file, content in zip(training.checkpoint_files(checkpoint), (b"", b"x" * 99), strict=True):
        file.write_bytes(content)
    steps: list[float] = []
    again = train(
        "noisy-bowl", "adam@0.1", range(2), 9, checkpoint=checkpoint, progress=steps.append
    )
    assert same(again, train("noisy-bowl", "adam@0.1", range(2), 9))
    assert len(steps) == 1 + 9
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[2] == "hyperadam: noisy-bowl with adam@0.1 starts anew"


def test_progress_goes_from_nothing_to_all() -> None:
    shares: list[float] = []
    train("noisy-bowl", "sgd@0.1", range(5), 4, runs_at_once=2, progress=shares.append)
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.2
    assert shares[-1] == 1
    assert len(shares) == 3 * (4 + 1)


def test_the_test_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)

    def noise(name: str, root: None = None) -> data.Dataset:
        parts = [
            (torch.randint(256, (n, 1, 28, 28), generator=generator), torch.randint(10, (n,)))
            for n in (200, 300)
        ]
        return data.Dataset(*parts[0], *parts[1])

    monkeypatch.setattr(data, "load", noise)
    result = train("mnist14-mlp", "adam", range(3), 2, test=True)
    assert result.test is not None
    assert result.test["top1"].shape == (3,)
    assert ((result.test["top2"] >= result.test["top1"]) & (result.test["top1"] < 0.5)).all()
    store = Store(tmp_path)
    store.add(result)
    loaded = store.find(result.settings, [1])
    assert loaded is not None
    assert loaded.test is not None
    assert torch.equal(loaded.test["loss"], result.test["loss"][1:2])
    with pytest.raises(ValueError, match="task noisy-bowl has no test set"):
        train("noisy-bowl", "sgd", range(2), 2, test=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"seeds": []}, "seeds is empty"),
        ({"final_batches": 0}, "final_batches"),
    ],
)
def test_arguments_that_make_no_sense(change: dict[str, object], message: str) -> None:
    arguments = {"task": "noisy-bowl", "optimizer": "sgd", "seeds": range(2), "steps": 3} | change
    with pytest.raises(ValueError, match=message):
        train(**arguments)
