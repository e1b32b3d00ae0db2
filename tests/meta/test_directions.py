"""Directions of HyperAdam2: what one unit of each does, and nothing else."""

import math

import pytest
import torch

from hyperadam.meta.directions import FEATURES, SHORT, directions, moved, prepared
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


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_lengthens_steps_beyond_its_usual_value_alone(name):
    along, (usual, unit) = directions(rule()), FEATURES[name]
    ruled = at(along, f"length by {name}")
    features = torch.zeros(3, len(FEATURES))
    wanted = torch.tensor([usual, usual + 0.1, usual - 0.1])
    features[:, list(FEATURES).index(name)] = torch.atanh(wanted)
    start, _ = rule().tensor_cell(features)
    log_step, rho = ruled.tensor_cell(features)
    # nearly: the cell's answer goes through a tanh
    expected = unit * torch.tensor([0.0, 0.1, -0.1])
    torch.testing.assert_close(log_step - start, expected, rtol=0.2, atol=0.04)
    assert log_step[1] > log_step[0] > log_step[2]
    assert torch.equal(rho, rule().tensor_cell(features)[1])


def test_a_signal_in_short_trainings_does_nothing_in_long_ones():
    seen, features = list(FEATURES), torch.zeros(2, 2, len(FEATURES))
    for k, steps in enumerate((100, 2000)):
        features[k, :, seen.index("log N")] = math.log(steps) / 4 - 1
    for name in ("signal of m(.9)", "signal of m(.98)"):
        features[..., seen.index(name)] = torch.tensor([-1.1, -0.7])
    log_step, _ = at(directions(rule()), f"length by {SHORT}").tensor_cell(features)
    weak, strong = log_step[0].tolist()
    assert strong - weak > 0.1
    weak, strong = log_step[1].tolist()
    assert abs(strong - weak) < 0.02


def test_slower_second_moments_leave_the_sum_of_weights():
    along = directions(rule())
    before, after = rule().rho, at(along, "slower γ").rho
    assert after.sum().item() == pytest.approx(before.sum().item(), abs=1e-6)
    assert after[4:].sum() > before[4:].sum()


@pytest.mark.parametrize("name", ["t/N", "log N"])
def test_a_weight_by_a_feature_is_as_before_at_its_usual_value(name):
    along, features = directions(rule()), torch.zeros(3, len(FEATURES))
    usual = FEATURES[name].usual
    wanted = torch.tensor([usual - 0.3, usual, usual + 0.3])
    features[:, list(FEATURES).index(name)] = torch.atanh(wanted)
    j = rule().pairs.index((0.98, 0.99))
    log_step, rho = at(along, f"weight of m(0.98) by {name}").tensor_cell(features)
    start = rule().rho[j].item()
    assert rho[1, j].item() == pytest.approx(start, abs=0.01)
    assert rho[0, j] < rho[1, j] < rho[2, j]
    assert torch.equal(log_step, rule().tensor_cell(features)[0])


def test_other_rates_are_refused():
    with pytest.raises(ValueError, match="the directions are for betas"):
        directions(HyperAdam2Rule(betas=(0.0, 0.9)))
