"""Directions of HyperAdam2: what one unit of each does, and nothing else."""

import math

import pytest
import torch

from hyperadam.meta.directions import (
    FEATURES,
    LENGTHS,
    LONG,
    SHORT,
    STRONG,
    UNITS,
    directions,
    moved,
    prepared,
)
from hyperadam.rules import HyperAdam2Rule
from tests.meta.trainers import rule as unprepared


def rule():
    return prepared(unprepared())


def place(along, name):
    """One unit of the direction of that name."""
    return torch.tensor([float(direction.name == name) for direction in along])


def at(along, name):
    """The rule one unit along a direction."""
    found = rule()
    weights = moved(found, along, place(along, name))
    for x, value in zip(found.parameters(), weights, strict=True):
        x.copy_(value)
    return found


def test_features_are_those_of_the_tensor_cell():
    assert len(FEATURES) == rule().theta_1.shape[1]
    # the first units hand them on
    assert torch.equal(rule().theta_1[: len(FEATURES)], torch.eye(len(FEATURES)))


def test_a_prepared_rule_does_the_same():
    features = torch.randn(20, len(FEATURES), generator=torch.Generator().manual_seed(0))
    for a, b in zip(rule().tensor_cell(features), unprepared().tensor_cell(features), strict=True):
        assert torch.equal(a, b)


def test_names_differ_and_all_directions_move_something():
    along = directions(rule())
    assert len({direction.name for direction in along}) == len(along)
    for direction in along:
        assert any(change.abs().sum() > 0 for change in direction.changes.values())


def test_nowhere_is_the_rule_itself():
    start, along = rule(), directions(rule())
    nowhere = moved(start, along, torch.zeros(5, len(along)))
    for x, value in zip(start.parameters(), nowhere, strict=True):
        assert value.shape == (5, *x.shape)
        assert torch.equal(value, x.expand_as(value))


@pytest.mark.parametrize("name", [name for name in LENGTHS if name in FEATURES])
def test_a_feature_lengthens_steps_beyond_its_usual_value_alone(name):
    along, (usual, unit) = directions(rule()), LENGTHS[name]
    ruled = at(along, f"length by {name}")
    features = torch.zeros(3, len(FEATURES))
    wanted = torch.tensor([usual, usual + 0.1, usual - 0.1])
    features[:, FEATURES.index(name)] = torch.atanh(wanted)
    start, _ = rule().tensor_cell(features)
    log_step, rho = ruled.tensor_cell(features)
    # nearly: the cell's answer goes through a tanh
    expected = unit * torch.tensor([0.0, 0.1, -0.1])
    torch.testing.assert_close(log_step - start, expected, rtol=0.2, atol=0.04)
    assert log_step[1] > log_step[0] > log_step[2]
    assert torch.equal(rho, rule().tensor_cell(features)[1])


def horizons(*steps):
    """Features of trainings of so many steps, two of each."""
    features = torch.zeros(len(steps), 2, len(FEATURES))
    logs = torch.tensor([math.log(n) / 4 - 1 for n in steps])
    features[..., FEATURES.index("log N")] = logs.unsqueeze(1)
    return features


def test_a_signal_in_short_trainings_does_nothing_in_long_ones():
    features = horizons(100, 2000)
    for name in ("signal of m(.9)", "signal of m(.98)"):
        features[..., FEATURES.index(name)] = torch.tensor([-1.1, -0.7])
    log_step, _ = at(directions(rule()), f"length by {SHORT}").tensor_cell(features)
    weak, strong = log_step[0].tolist()
    assert strong - weak > 0.1
    weak, strong = log_step[1].tolist()
    assert abs(strong - weak) < 0.02


def test_a_strong_signal_lengthens_steps_and_a_usual_one_does_not():
    features = torch.zeros(3, len(FEATURES))
    features[:, FEATURES.index("signal of m(.98)")] = torch.tensor([-1.0, -0.9, -0.2])
    log_step, _ = at(directions(rule()), f"length by {STRONG}").tensor_cell(features)
    change = log_step - rule().tensor_cell(features)[0]
    assert change[:2].abs().max() < 0.02
    assert change[2] > 0.4


def test_the_slow_average_counts_for_more_in_long_trainings():
    features = horizons(50, 270, 2000)
    log_step, rho = at(directions(rule()), "weight of m(0.98) in long trainings").tensor_cell(
        features
    )
    j = rule().pairs.index((0.98, 0.99))
    short, middle, long = (rho[:, 0, j] - rule().rho[j]).tolist()
    assert middle == pytest.approx(0, abs=0.01)
    assert short < -0.2
    assert long > 0.2
    assert torch.equal(log_step, rule().tensor_cell(features)[0])
    assert LONG in UNITS


def test_slower_second_moments_leave_the_sum_of_weights():
    along = directions(rule())
    before, after = rule().rho, at(along, "slower γ").rho
    assert after.sum().item() == pytest.approx(before.sum().item(), abs=1e-6)
    assert after[4:].sum() > before[4:].sum()


def test_other_rates_are_refused():
    with pytest.raises(ValueError, match="the directions are for betas"):
        directions(HyperAdam2Rule(betas=(0.0, 0.9)))
