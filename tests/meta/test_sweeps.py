"""Sweeps of step sizes: what is seen on the way, the fit, and a trainer that resumes and spreads."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hyperadam import load_rule
from hyperadam.meta import SweepTrainer, episodes, make_trainer, preset
from hyperadam.meta.fitting import LOST, Sweeps, costs, fit, interpolate
from hyperadam.meta.sweeps import Sweep, log_steps, sweep
from hyperadam.rules import HyperAdam2Rule

ROOT = Path(__file__).parents[2]
SETTINGS = dataclasses.replace(
    preset("hyperadam2"),
    updates=4,
    rollouts=4,
    pairs=1,
    sigma=0.7,
    horizons=(5, 12),
    budget=0.03,
    validate_every=2,
    validation_runs=1,
    validation_steps=1,
)
OFFSETS = torch.tensor([-0.8, -0.4, 0.0, 0.4, 0.8])


def rule():
    return preset("hyperadam2").make_rule().requires_grad_(False)


def steered():
    """A rule whose step sizes depend on all that the TensorCell sees."""
    generator = torch.Generator().manual_seed(0)
    found = rule()
    found.theta_a += 0.1 * torch.randn(found.theta_a.shape, generator=generator)
    return found


def same(a, b):
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


# A sweep ------------------------------------------------------------------------------------------


@pytest.mark.data
def test_a_run_of_a_sweep_is_the_rule_with_longer_steps():
    episode = episodes.draw(3, 5, (30, 30), 0.0, 9.0, "digit-mlp")
    found, losses = sweep(steered(), episode, OFFSETS)
    assert losses.shape == (30, 5)
    for k, offset in enumerate(OFFSETS.tolist()):
        longer = steered()
        longer.log_step += offset
        alone = episodes.train(longer, episode, 1)
        torch.testing.assert_close(losses[:, k : k + 1], alone, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.final, episodes.final_log(losses).float())


@pytest.mark.data
@pytest.mark.parametrize("known", [True, False])
def test_what_a_sweep_saw_is_what_the_rule_was_steered_by(known):
    """The first row's features lead to the size of the first step, as the kernel takes it."""
    episode = episodes.draw(3, 5, (30, 30), 0.0, 9.0, "digit-mlp")._replace(known=known)
    ruled = steered()
    found, _ = sweep(ruled, episode, OFFSETS)
    rows, tensors = len(found.weights), len(episode.task.shapes)
    assert rows % tensors == 0
    assert found.features.shape == (rows, 5, 15)
    torch.testing.assert_close(found.said, ruled.tensor_cell(found.features)[0])
    assert found.weights.sum() == pytest.approx(1)
    assert (found.weights >= 0).all()
    # before the first step all runs are alike; later their offsets tell
    first = found.features[:tensors]
    assert torch.equal(first, first[:, :1].expand_as(first))
    last = found.features[-tensors:]
    assert not torch.equal(last[:, 0], last[:, 1])
    # how far along a training is: the feature of t/N, where it is known
    times = found.features[::tensors, 0, 6]
    assert (times.diff() > 0).all() if known else (times == 0).all()


# The fit ------------------------------------------------------------------------------------------


def test_interpolation_is_exact_on_lines_and_at_places():
    places = torch.tensor([[-1.0, 0.0, 1.0, 2.0]])
    values = torch.tensor([[3.0, 1.0, 0.0, 4.0]])
    torch.testing.assert_close(interpolate(values, places, places), values)
    at = torch.tensor([[-3.0, -0.5, 1.5, 3.0]])
    torch.testing.assert_close(
        interpolate(values, places, at), torch.tensor([[7.0, 2.0, 2.0, 8.0]])
    )
    at.requires_grad_()
    interpolate(values, places, at).sum().backward()
    torch.testing.assert_close(at.grad, torch.tensor([[-2.0, -2.0, 4.0, 4.0]]))


def test_costs_are_beside_the_best_and_what_is_lost_counts_little():
    final = torch.tensor([-2.0, -2.5, -2.6, -2.4, 9.0])
    found = costs(final)
    assert found.min() == 0
    assert found.argmin() == 1  # the best is too near the cliff
    assert 1 < found[-1] < LOST + 2
    torch.testing.assert_close(costs(final + 7), found)
    line = torch.arange(5.0) / 10
    torch.testing.assert_close(costs(line), line)


def synthetic(count, likes, seed=0):
    """Sweeps of tasks whose best offset is ``likes`` of their features, a parabola around it."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        features = torch.randn(1, 1, 15, generator=generator).expand(6, 5, 15) / 2
        final = (OFFSETS - likes(features[0, 0])).square() - 3
        said = log_steps(rule(), features)
        found.append(Sweep(OFFSETS, final, features, said, torch.full((6,), 1 / 6)))
    return found


def test_the_fit_finds_what_tasks_like_from_what_is_seen():
    def likes(features):
        return 0.5 * torch.tanh(features[5]) - 0.3

    start = rule()
    fitted, cost = fit(start, synthetic(200, likes))
    fresh = synthetic(50, likes, seed=1)
    before, after = (Sweeps(fresh).expected(x)[0].mean() for x in (start, fitted))
    assert after < before / 10
    assert cost < 0.03
    untouched = ("rho", "theta_rho", "theta_3", "theta_4", "b_3")
    assert all(torch.equal(getattr(fitted, n), getattr(start, n)) for n in untouched)


def test_a_feature_that_gives_the_offset_away_teaches_nothing():
    """All tasks like no change. In each run a feature says its offset, as growth does. A rule that
    follows it would do harm; asked in all runs alike, the fit leaves it alone."""
    told = torch.zeros(5, 15)
    told[:, 1] = OFFSETS
    said = log_steps(rule(), told.expand(6, 5, 15))
    tasks = 50 * [Sweep(OFFSETS, OFFSETS.square(), told.expand(6, 5, 15), said, torch.ones(6) / 6)]
    fitted, _ = fit(rule(), tasks)
    moved = log_steps(fitted, told) - log_steps(rule(), told)
    assert moved.abs().max() < 0.05


# The trainer --------------------------------------------------------------------------------------


def finish(trainer, until=None):
    rounds = []
    trainer.run(
        lambda outcome, value: rounds.append(outcome),
        lambda: until is not None and trainer.update >= until,
    )
    return rounds


@pytest.mark.data
def test_it_learns_longer_steps_where_they_are_too_short(tmp_path):
    """From a start with steps of a twentieth, on tasks of one short horizon."""

    class Timid(SweepTrainer):
        def prepare(self):
            super().prepare()
            for x in (self.rule, self.average):
                with torch.no_grad():
                    x.log_step -= 3

    settings = dataclasses.replace(
        SETTINGS, rollouts=8, pairs=2, horizons=(20, 40), budget=0.2, validate_every=1
    )
    trainer = Timid(settings, tmp_path)
    before = trainer.rule.log_step.item()
    outcome = trainer.step()
    assert outcome.update == 1
    assert len(outcome.sweeps) == 8
    assert math.isfinite(outcome.norm)
    told = torch.cat([x.features for x in trainer.sweeps])
    mean = log_steps(trainer.rule, told).mean().item()
    assert mean > before + 0.5
    assert "gain" in outcome.describe()


@pytest.mark.data
def test_resuming_repeats_the_uninterrupted_run_bit_for_bit(tmp_path):
    whole = SweepTrainer(SETTINGS, tmp_path / "whole")
    whole.validate()
    finish(whole)
    first = SweepTrainer(SETTINGS, tmp_path / "parts")
    first.validate()
    rounds = finish(first, until=3)
    assert [x.cost is None for x in rounds] == [True, False, True]
    resumed = SweepTrainer(SETTINGS, tmp_path / "parts")
    assert (resumed.update, len(resumed.sweeps)) == (3, 12)
    finish(resumed)
    assert same(whole.rule, resumed.rule)
    assert same(whole.average, resumed.rule)
    assert whole.curve == resumed.curve
    assert len(resumed.sweeps) == 16


@pytest.mark.data
def test_a_finished_run_may_go_on_for_more_updates(tmp_path):
    whole = SweepTrainer(dataclasses.replace(SETTINGS, updates=6), tmp_path / "whole")
    finish(whole)
    finish(SweepTrainer(SETTINGS, tmp_path / "parts"))
    longer = SweepTrainer(dataclasses.replace(SETTINGS, updates=6), tmp_path / "parts")
    finish(longer)
    assert same(whole.rule, longer.rule)
    assert longer.changes == [(4, "updates", 4, 6)]
    with pytest.raises(ValueError, match="other settings"):
        SweepTrainer(dataclasses.replace(SETTINGS, sigma=0.5), tmp_path / "parts")


@pytest.mark.data
def test_what_is_kept_says_what_made_it(tmp_path):
    trainer = make_trainer(SETTINGS, tmp_path)
    assert isinstance(trainer, SweepTrainer)
    assert trainer.validate().score == 0
    finish(trainer)
    found = load_rule(tmp_path / "best.safetensors")
    assert isinstance(found, HyperAdam2Rule)
    assert found.provenance["settings"]["estimator"] == "sweep"
    best = min(trainer.curve, key=lambda result: result.score)
    assert found.provenance["updates"] == best.update


WORKER = """
import sys, torch, torch.distributed as dist
from pathlib import Path
sys.path.insert(0, {root!r})
from hyperadam.meta import ranks
from tests.meta.test_sweeps import SETTINGS, SweepTrainer, finish
torch.set_num_threads(1)
ranks.join()
trainer = SweepTrainer(SETTINGS, Path(sys.argv[1]))
finish(trainer)
if trainer.rank == 0:
    torch.save(trainer.rule.state_dict(), sys.argv[1] + "/end.pt")
if dist.is_initialized():
    dist.destroy_process_group()
"""


@pytest.mark.data
def test_two_ranks_do_what_one_does(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(root=str(ROOT)))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for options, out in (([], "one"), (torchrun, "two")):
        subprocess.run(
            [sys.executable, *options, str(script), str(tmp_path / out)],
            check=True,
            capture_output=True,
            timeout=600,
        )
    one, two = (torch.load(tmp_path / out / "end.pt", weights_only=True) for out in ("one", "two"))
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-5)
