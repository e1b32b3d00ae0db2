"""Slopes: the surface through trials, its lowest point, and a trainer that resumes and spreads."""

import dataclasses

import pytest
import torch

from hyperadam import load_rule
from hyperadam.meta import SlopeTrainer, episodes, make_trainer, preset
from hyperadam.meta.slope_trainer import RADIUS
from hyperadam.meta.slopes import LEAST, REACH, Surface, Trial, fit, lowest
from hyperadam.rules import HyperAdam2Rule
from tests.meta.trainers import finish, on_one_and_two_ranks, same

SETTINGS = dataclasses.replace(
    preset("hyperadam2"),
    updates=4,
    rollouts=4,
    pairs=2,
    horizons=(5, 12),
    budget=0.03,
    validate_every=2,
    validation_runs=1,
    validation_steps=1,
)
SLOPES = torch.tensor([0.02, -0.03, 0.0, 0.01], dtype=torch.float64)
CURVATURES = torch.tensor(
    [[0.01, 0.004, 0, 0], [0.004, 0.02, 0, 0], [0, 0, 0.008, 0], [0, 0, 0, 0.006]],
    dtype=torch.float64,
)


def trials(count, noise=0.0, seed=0):
    """Trials on a known surface; each task has a level of its own, and a taste of its own."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for k in range(count):
        places = torch.randn(17, 4, generator=generator, dtype=torch.float64)
        taste = noise * torch.randn(4, generator=generator, dtype=torch.float64)
        surface = Surface(SLOPES + taste, CURVATURES)
        final = torch.tensor([surface.at(place) for place in places]) - 3 * k
        found.append(Trial(places, final))
    return found


# The surface --------------------------------------------------------------------------------------


def test_the_fit_finds_a_known_surface_whatever_the_levels_of_tasks():
    found = fit(trials(300))
    torch.testing.assert_close(found.slopes, SLOPES, rtol=0.15, atol=2e-3)
    torch.testing.assert_close(found.curvatures, CURVATURES, rtol=0.3, atol=2e-3)


def test_tastes_of_single_tasks_average_out():
    found = fit(trials(600, noise=0.03))
    torch.testing.assert_close(found.slopes, SLOPES, rtol=0.3, atol=5e-3)


def test_few_trials_are_not_believed():
    few, many = fit(trials(1)).slopes, fit(trials(300)).slopes
    assert few.norm() < many.norm() / 2


def test_one_task_cannot_decide():
    """A task that would gain everything by going the other way counts as one among many."""
    places = torch.randn(17, 4, generator=torch.Generator().manual_seed(5)).double()
    wild = Trial(places, -50 * places @ SLOPES)
    found = fit([*trials(60), wild])
    torch.testing.assert_close(found.slopes, fit(trials(60)).slopes, atol=REACH / 20, rtol=0)


# Its lowest point ---------------------------------------------------------------------------------


def test_the_lowest_point_is_found_if_it_is_near():
    expected = -torch.linalg.solve(CURVATURES, SLOPES)
    for start in (torch.zeros(4).double(), torch.ones(4).double()):
        found = lowest(Surface(SLOPES, CURVATURES), start, radius=50.0)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("radius", [0.1, 0.7, 1.5])
def test_it_goes_no_further_than_the_radius_and_down(radius):
    start = torch.tensor([1.0, 0.0, -1.0, 0.5], dtype=torch.float64)
    surface = Surface(SLOPES, CURVATURES)
    found = lowest(surface, start, radius)
    assert (found - start).norm().item() == pytest.approx(radius, rel=1e-6)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        step = torch.randn(4, generator=generator, dtype=torch.float64)
        other = start + radius * step / step.norm()
        assert surface.at(found) <= surface.at(other) + 1e-9


def test_a_ridge_is_not_believed():
    """Where the surface seems to fall both ways, it is taken for nearly flat."""
    curvatures = torch.diag(torch.tensor([-0.5, 0.01, 0.01, 0.01], dtype=torch.float64))
    slopes = torch.tensor([0.001, 0, 0, 0], dtype=torch.float64)
    found = lowest(Surface(slopes, curvatures), torch.zeros(4).double(), 10.0)
    assert found[0].item() == pytest.approx(-0.001 / LEAST)


# The trainer --------------------------------------------------------------------------------------


@pytest.mark.data
def test_a_trial_is_of_rules_about_the_present_one(tmp_path):
    trainer = SlopeTrainer(SETTINGS, tmp_path)
    trainer.place += 0.3
    trainer._settle()
    episode = episodes.draw(3, 5, (30, 30), 0.0, 9.0, "digit-mlp")
    found, lost = trainer.trial(episode, 7)
    assert lost == 0
    assert found.places.shape == (5, len(trainer.along))
    assert torch.equal(found.places[0], trainer.place)
    torch.testing.assert_close(found.places[1] + found.places[3], 2 * trainer.place)
    alone = episodes.final_log(episodes.train(trainer.rule, episode, 1))
    torch.testing.assert_close(found.final[:1], alone, rtol=1e-3, atol=1e-3)
    assert len(set(found.final.tolist())) == 5


@pytest.mark.data
def test_it_learns_longer_steps_where_they_are_too_short(tmp_path):
    """From a start with steps of a twentieth, on tasks of one short horizon."""

    class Timid(SlopeTrainer):
        def prepare(self):
            super().prepare()
            for x in (self.start, self.rule, self.average):
                with torch.no_grad():
                    x.log_step -= 3

    settings = dataclasses.replace(
        SETTINGS, rollouts=8, pairs=6, horizons=(20, 40), budget=0.4, validate_every=1
    )
    kinds = 2 * ("regression", "digit-mlp", "synthetic-mlp", "quadratic")
    fresh = [episodes.draw(1000 + k, 1, (30, 30), 0.0, 9.0, kind) for k, kind in enumerate(kinds)]

    def score(rule):
        return sum(episodes.final_log(episodes.train(rule, e, 1)).item() for e in fresh) / 8

    trainer = Timid(settings, tmp_path)
    before = score(trainer.rule)
    outcome = trainer.step()
    assert outcome.update == 1
    assert len(outcome.trials) == 8
    assert outcome.expected < -0.01
    assert 0 < outcome.norm <= RADIUS + 1e-9
    assert score(trainer.rule) < before - 0.01
    assert "steps" in outcome.describe()


@pytest.mark.data
def test_resuming_repeats_the_uninterrupted_run_bit_for_bit(tmp_path):
    whole = SlopeTrainer(SETTINGS, tmp_path / "whole")
    whole.validate()
    finish(whole)
    first = SlopeTrainer(SETTINGS, tmp_path / "parts")
    first.validate()
    rounds = finish(first, until=3)
    assert [x.expected is None for x in rounds] == [True, False, True]
    resumed = SlopeTrainer(SETTINGS, tmp_path / "parts")
    assert (resumed.update, len(resumed.trials)) == (3, 12)
    finish(resumed)
    assert torch.equal(whole.place, resumed.place)
    assert same(whole.rule, resumed.rule)
    assert same(whole.average, resumed.rule)
    assert whole.curve == resumed.curve


@pytest.mark.data
def test_a_finished_run_may_go_on_for_more_updates(tmp_path):
    whole = SlopeTrainer(dataclasses.replace(SETTINGS, updates=6), tmp_path / "whole")
    finish(whole)
    finish(SlopeTrainer(SETTINGS, tmp_path / "parts"))
    longer = SlopeTrainer(dataclasses.replace(SETTINGS, updates=6), tmp_path / "parts")
    finish(longer)
    assert same(whole.rule, longer.rule)
    assert longer.changes == [(4, "updates", 4, 6)]
    with pytest.raises(ValueError, match="other settings"):
        SlopeTrainer(dataclasses.replace(SETTINGS, sigma=0.5), tmp_path / "parts")


@pytest.mark.data
def test_what_is_kept_says_what_made_it(tmp_path):
    trainer = make_trainer(SETTINGS, tmp_path)
    assert isinstance(trainer, SlopeTrainer)
    assert trainer.validate().score == 0
    finish(trainer)
    found = load_rule(tmp_path / "best.safetensors")
    assert isinstance(found, HyperAdam2Rule)
    assert found.provenance["settings"]["estimator"] == "slopes"
    assert set(found.provenance["place"]) == {direction.name for direction in trainer.along}
    best = min(trainer.curve, key=lambda result: result.score)
    assert found.provenance["updates"] == best.update


@pytest.mark.data
def test_two_ranks_do_what_one_does(tmp_path):
    one, two = on_one_and_two_ranks(tmp_path, __name__)
    for name in one["rule"]:
        torch.testing.assert_close(two["rule"][name], one["rule"][name], rtol=1e-3, atol=2e-4)
