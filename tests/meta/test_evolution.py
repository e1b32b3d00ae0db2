"""Evolution strategies: episodes, the meta-loss, the estimate, and a trainer that resumes and spreads."""

import dataclasses
import math

import pytest
import torch

from hyperadam import load_rule
from hyperadam.data.catalog import MNIST
from hyperadam.meta import EvolutionTrainer, Settings, episodes, make_trainer, preset
from hyperadam.meta.episodes import Training
from hyperadam.meta.evolution import advantage
from hyperadam.meta.validation import validation_episodes
from hyperadam.rules import HyperAdam2Rule
from tests.meta.trainers import finish, on_one_and_two_ranks, rule, same

SETTINGS = dataclasses.replace(
    preset("hyperadam2"),
    estimator="es",
    trained=("log_step", "theta_a"),
    updates=6,
    rollouts=2,
    pairs=3,
    sigma=0.06,
    horizons=(5, 12),
    budget=0.03,
    lr=3e-3,
    final_lr=3e-4,
    warmup=5,
    average=0.9,
    validate_every=3,
    validation_runs=1,
    validation_steps=1,
)


def training(losses, end=None):
    """A training with these losses, and the last of them at its end."""
    return Training(losses, losses[-1] if end is None else end)


# The meta-loss -----------------------------------------------------------------------------------


def test_meta_loss_is_of_the_end_and_a_little_of_the_way():
    steps = torch.arange(100.0)
    constant, falling = torch.full((100,), 3.0), 3.0 * torch.exp(-steps / 20)
    found = training(torch.stack([constant, falling], dim=1), torch.tensor([3.0, 0.03]))
    flat, down = episodes.meta_loss(found).tolist()
    assert flat == pytest.approx(0, abs=1e-3)
    way = (torch.exp(-steps.double() / 20) + episodes.FLOOR).log().mean()
    end = math.log(0.01 + episodes.FLOOR)
    assert down == pytest.approx(end + 0.25 * way.item(), abs=1e-6)


def test_units_do_not_matter():
    losses = torch.rand(60, 4, generator=torch.Generator().manual_seed(0)) + 0.5
    losses[0] = 1.0
    small, large = (episodes.meta_loss(training(x)) for x in (losses, 1000 * losses))
    torch.testing.assert_close(small, large)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_diverged_runs_are_the_worst_yet_finite(bad):
    losses = torch.ones(50, 3)
    losses[30:, 1] = bad
    losses[31:, 2] = 50.0
    found = episodes.meta_loss(training(losses))
    assert found.isfinite().all()
    assert found.argmax() == 1
    assert episodes.diverged(training(losses)) == 2


def test_lost_is_lost():
    losses = torch.ones(50, 2)
    losses[10, 1] = math.nan
    losses[11:, 1] = 0.0
    assert episodes.final_log(training(losses))[1].item() == pytest.approx(
        math.log(episodes.CEILING), abs=1e-3
    )


def test_what_reaches_zero_has_a_floor():
    losses = torch.ones(50, 2)
    losses[1:] = torch.tensor([0.0, 1e-12])
    found = episodes.final_log(training(losses))
    assert found[0] == pytest.approx(math.log(episodes.FLOOR))
    assert found[1] == pytest.approx(math.log(episodes.FLOOR), abs=1e-6)


# Episodes ----------------------------------------------------------------------------------------


@pytest.mark.data
def test_episodes_depend_on_their_seed_and_keep_to_the_budget():
    drawn = [episodes.draw(seed, 24, (50, 2000), 0.3, 2.0) for seed in range(120)]
    again = episodes.draw(7, 24, (50, 2000), 0.3, 2.0)
    assert repr(again) == repr(drawn[7])
    steps = [episode.steps for episode in drawn]
    assert min(steps) >= 50
    assert 1000 < max(steps) <= 2000
    assert 0.15 < sum(not episode.known for episode in drawn) / 120 < 0.45
    dear = [e for e in drawn if e.steps > 50 and episodes.seconds(e.task, 24) * e.steps > 2.01]
    assert not dear


@pytest.mark.data
@pytest.mark.parametrize("known", [True, False])
def test_a_run_among_perturbed_ones_is_the_rule_alone(known):
    episode = episodes.draw(3, 6, (20, 30), 0.0, 9.0, "digit-mlp")._replace(known=known)
    weights = list(rule().parameters())
    noise = [torch.randn(3, *x.shape, generator=torch.Generator().manual_seed(0)) for x in weights]
    noise = [torch.cat([torch.zeros_like(e[:1]), e]) for e in noise]
    several = episodes.with_weights(
        rule(), [x + 0.1 * e for x, e in zip(weights, noise, strict=True)]
    )
    losses, end = episodes.train(several, episode, 4)
    alone = episodes.train(rule(), episode, 1)
    assert losses.shape == (episode.steps, 4)
    torch.testing.assert_close(losses[:, :1], alone.losses, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(end[:1], alone.end, rtol=1e-3, atol=1e-4)
    assert (losses[0] == losses[0, 0]).all()
    assert len(set(losses[-1].tolist())) == 4


@pytest.mark.data
def test_a_known_horizon_changes_the_steps():
    episode = episodes.draw(3, 1, (30, 30), 0.0, 9.0, "regression")
    known = episodes.train(rule(), episode, 1).losses
    hidden = episodes.train(rule(), episode._replace(known=False), 1).losses
    assert torch.equal(known[0], hidden[0])
    assert not torch.equal(known[2:], hidden[2:])


@pytest.mark.data
def test_validation_is_on_other_tasks_and_both_horizons():
    found = validation_episodes(1, 100)
    half = len(found) // 2
    assert [e.steps for e in found] == half * [100] + half * [1000]
    assert all(a.task is b.task for a, b in zip(found[:half], found[half:], strict=True))
    widest = max(found, key=lambda e: e.task.p).task
    assert widest.shapes[0][1] >= 784
    assert widest.shapes[0][0] >= 256
    trained = {repr(episodes.draw(s, 24, (50, 60), 0, 9.0).task) for s in range(50)}
    assert not trained & {repr(e.task) for e in found}


# The estimate ------------------------------------------------------------------------------------


def test_the_estimate_points_along_the_gradient():
    """Of a linear function, with many more pairs than dimensions."""
    generator = torch.Generator().manual_seed(0)
    slope, noise = torch.randn(20, generator=generator), torch.randn(3000, 20, generator=generator)
    losses = torch.cat([noise, -noise]) @ slope + 5
    found = advantage(losses) @ noise
    assert torch.cosine_similarity(found, slope, dim=0) > 0.99
    # units of the loss do not matter
    torch.testing.assert_close(advantage(1e3 * losses - 7), advantage(losses), rtol=1e-3, atol=1e-5)


def test_equal_runs_say_nothing():
    assert torch.equal(advantage(torch.ones(8, dtype=torch.float64)), torch.zeros(4))


@pytest.mark.data
def test_perturbations_are_antithetic(tmp_path):
    trainer = EvolutionTrainer(SETTINGS, tmp_path)
    episode, pairs = trainer.episode(5)
    (losses, _), noise = trainer.perturbed(episode, pairs, 5)
    assert losses.shape == (episode.steps, 2 * pairs)
    for sign, column in ((1, 1), (-1, pairs + 1)):
        weights = [
            x.detach() + sign * SETTINGS.sigma * e[1]
            for x, e in zip(trainer.rule.parameters(), noise, strict=True)
        ]
        alone = episodes.train(episodes.with_weights(trainer.rule, weights), episode, 1).losses
        torch.testing.assert_close(losses[:, column : column + 1], alone, rtol=1e-3, atol=1e-4)


# The trainer -------------------------------------------------------------------------------------


@pytest.mark.data
def test_it_learns(tmp_path):
    """A small cell, with few dimensions for the noise to get lost in, on small tasks."""
    settings = dataclasses.replace(
        SETTINGS,
        config={"hidden": 1, "units": 1},
        start="published",
        updates=8,
        pairs=6,
        sigma=0.1,
        horizons=(20, 40),
        budget=0.1,
        lr=0.1,
        final_lr=0.05,
        warmup=1,
    )
    kinds = 2 * ("regression", "digit-mlp", "synthetic-mlp", "quadratic")
    fresh = [episodes.draw(1000 + k, 1, (30, 30), 0.0, 9.0, kind) for k, kind in enumerate(kinds)]

    def score():
        weights = [x.detach() for x in trainer.rule.parameters()]
        rule = episodes.with_weights(trainer.rule, weights)
        return sum(episodes.final_log(episodes.train(rule, e, 1)).item() for e in fresh) / 8

    trainer = make_trainer(settings, tmp_path)
    before = score()
    for _ in range(settings.updates):
        outcome = trainer.step()
    assert outcome.update == 8
    assert math.isfinite(outcome.norm)
    assert score() < before - 0.1


@pytest.mark.data
def test_what_is_kept_says_what_made_it(tmp_path):
    trainer = make_trainer(SETTINGS, tmp_path)
    assert trainer.validate().score == 0
    finish(trainer)
    assert [result.update for result in trainer.curve] == [0, 3, 6]
    found = load_rule(tmp_path / "best.safetensors")
    assert isinstance(found, HyperAdam2Rule)
    assert found.provenance["settings"]["estimator"] == "es"
    assert found.provenance["data"] == {"mnist": MNIST.sha256}
    best = min(trainer.curve, key=lambda result: result.score)
    update, short, long = found.provenance["validation"][-1]
    assert (update, found.provenance["updates"]) == (best.update, best.update)
    assert (short + long) / 2 == pytest.approx(trainer.best, abs=1e-4)


@pytest.mark.data
def test_resuming_repeats_the_uninterrupted_run_bit_for_bit(tmp_path):
    whole = EvolutionTrainer(SETTINGS, tmp_path / "whole")
    whole.validate()
    finish(whole)
    first = EvolutionTrainer(SETTINGS, tmp_path / "parts")
    first.validate()
    finish(first, until=2)
    finish(EvolutionTrainer(SETTINGS, tmp_path / "parts"), until=4)
    resumed = EvolutionTrainer(SETTINGS, tmp_path / "parts")
    assert resumed.update == 4
    finish(resumed)
    assert same(whole.rule, resumed.rule)
    assert same(whole.average, resumed.average)
    assert whole.curve == resumed.curve


@pytest.mark.data
def test_two_ranks_do_what_one_does(tmp_path):
    one, two = on_one_and_two_ranks(tmp_path, __name__)
    for name in one["rule"]:
        torch.testing.assert_close(two["rule"][name], one["rule"][name], rtol=1e-3, atol=1e-5)
    for a, b in zip(one["curve"], two["curve"], strict=True):
        assert a == pytest.approx(b, abs=0.02)


def test_other_rules_and_estimators_are_refused(tmp_path):
    with pytest.raises(ValueError, match="estimator 'es' is HyperAdam2's alone, not dm's"):
        make_trainer(Settings(rule="dm", estimator="es"), tmp_path)
    with pytest.raises(ValueError, match="EvolutionTrainer is HyperAdam2's alone, not dm's"):
        EvolutionTrainer(Settings(rule="dm"), tmp_path)
    with pytest.raises(ValueError, match="estimator must be one of 'bptt', 'es', 'slopes', got"):
        Settings(estimator="pes")
    with pytest.raises(ValueError, match="start 'mixture' is HyperAdam2's alone, not dm's"):
        Settings(rule="dm", start="mixture").make_rule()


def test_settings_that_came_later_are_left_out_unless_used():
    assert "sigma" not in Settings().as_dict()
    assert dataclasses.replace(Settings(), sigma=0.1).as_dict()["sigma"] == 0.1
    assert preset("hyperadam2").as_dict()["estimator"] == "slopes"


@pytest.mark.data
def test_parameters_are_trained_from_their_update_on(tmp_path):
    trainer = EvolutionTrainer(
        dataclasses.replace(SETTINGS, trained=("rho", "theta_4@1")), tmp_path
    )
    start = {name: x.detach().clone() for name, x in trainer.rule.named_parameters()}

    def moved():
        now = trainer.rule.named_parameters()
        return {name for name, x in now if not torch.equal(x, start[name])}

    trainer.step()
    assert moved() == {"rho"}
    trainer.step()
    assert moved() == {"rho", "theta_4"}


@pytest.mark.parametrize(
    ("trained", "error"),
    [
        ("theta", "trained: a parameter of hyperadam2 .*, got 'theta'; did you mean"),
        ("rho@soon", "NAME or NAME@UPDATE"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path, trained, error):
    with pytest.raises(ValueError, match=error):
        EvolutionTrainer(dataclasses.replace(SETTINGS, trained=(trained,)), tmp_path)
