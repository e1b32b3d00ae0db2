"""Validation measures what an experiment would."""

from dataclasses import replace

import pytest
import torch

from hyperadam import tasks
from hyperadam.experiments import find, train
from hyperadam.meta.validation import final_losses
from hyperadam.rules import DMRule, HyperAdamRule, RNNpropRule
from tests.meta import toys


@pytest.mark.parametrize("horizon", [False, True])
@pytest.mark.parametrize(
    "rule",
    [
        HyperAdamRule(candidates=3, warmup=4),
        HyperAdamRule(candidates=3, relative=True),
        RNNpropRule(units=4),
        DMRule(units=4, relative=True),
    ],
    ids=["warm-up", "relative", "rnnprop", "dm"],
)
def test_final_losses_are_those_of_an_experiment(rule, horizon):
    torch.manual_seed(0)
    name, rule = toys.register(), toys.noisy(rule)
    expected = train(name, replace(find(rule), horizon=horizon), range(3), 6).final_loss
    actual = final_losses(rule, tasks.get(name), 3, 6, first_seed=0, horizon=horizon)
    torch.testing.assert_close(
        actual.double(), torch.as_tensor(expected).double(), rtol=1e-5, atol=1e-7
    )


def test_random_scaling_leaves_the_sizes_of_tensors_alone():
    """A relative rule takes the same steps under it, if all tensors begin as the paper's do."""
    torch.manual_seed(0)
    name = toys.register()
    plain = toys.noisy(HyperAdamRule(candidates=3))
    relative = HyperAdamRule(candidates=3, relative=True)
    relative.load_state_dict(plain.state_dict())
    task = tasks.get(name)
    usual = task.init
    task.init = lambda seeds: torch.full_like(usual(seeds), 0.1)
    losses = [final_losses(rule, task, 3, 6, scaled=True) for rule in (plain, relative)]
    torch.testing.assert_close(*losses)
