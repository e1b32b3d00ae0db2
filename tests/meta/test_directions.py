"""Directions of HyperAdam2: what one unit of each does, and nothing else."""

import pytest
import torch

from hyperadam.meta.directions import FEATURES, directions, moved
from hyperadam.rules import HyperAdam2Rule
from tests.meta.trainers import rule


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


def test_names_differ_and_all_directions_move_something():
    along = directions(rule())
    assert len({direction.name for direction in along}) == len(along)
    for direction in along:
        assert any(change.abs().sum() > 0 for change in direction.changes.values())


def test_nowhere_is_the_rule_itself():
    start, along = rule(), directions(rule())
    for x, value in zip(start.parameters(), moved(start, along, torch.zeros(5, len(along)))):
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


def test_slower_second_moments_leave_the_sum_of_weights():
    along = directions(rule())
    before, after = rule().rho, at(along, "slower γ").rho
    assert after.sum().item() == pytest.approx(before.sum().item(), abs=1e-6)
    assert after[4:].sum() > before[4:].sum()


def test_a_weight_by_time_is_lower_first_and_higher_last():
    along, features = directions(rule()), torch.zeros(2, len(FEATURES))
    features[:, list(FEATURES).index("t/N")] = torch.tensor([-1.0, 1.0])
    j = rule().pairs.index((0.98, 0.99))
    _, rho = at(along, "weight of m(0.98) by t/N").tensor_cell(features)
    start = rule().rho[j].item()
    assert rho[0, j] < start < rho[1, j]
    assert (rho[0, j] + rho[1, j]).item() / 2 == pytest.approx(start, abs=1e-6)


def test_other_rates_are_refused():
    with pytest.raises(ValueError, match="the directions are for betas"):
        directions(HyperAdam2Rule(betas=(0.0, 0.9)))
