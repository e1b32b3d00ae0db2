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
