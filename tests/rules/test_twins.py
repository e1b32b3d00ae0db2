"""Every rule against its NumPy twin, over many steps in float64."""

import numpy as np
import pytest
import torch

from tests.rules.cases import every_rule, gradients, rollout
from tests.rules.numpy_twins import DMTwin, HyperAdamTwin, RNNpropTwin

TWINS = {"hyperadam": HyperAdamTwin, "rnnprop": RNNpropTwin, "dm": DMTwin}


@pytest.mark.parametrize("name", every_rule())
@pytest.mark.parametrize("p", [1, 11])
def test_rule_equals_numpy_twin(name, p):
    rule = every_rule()[name].double()
    grads = gradients(60, p)
    twin = TWINS[rule.kind](rule, p)
    expected = np.stack([twin.step(g.numpy()) for g in grads])
    with torch.no_grad():
        updates, state = rollout(rule, grads)
    np.testing.assert_allclose(updates.numpy(), expected, rtol=1e-9, atol=1e-12)
    if rule.kind == "hyperadam":
        for field, value in twin.C.items():
            np.testing.assert_allclose(
                getattr(state, field).numpy().T, value, rtol=1e-9, atol=1e-300
            )


def test_published_size():
    assert sum(value.numel() for value in every_rule()["hyperadam-paper"].parameters()) == 5380


def test_published_initialisation():
    from hyperadam.rules import HyperAdamRule

    torch.manual_seed(0)
    rule = HyperAdamRule(candidates=400, lstm=False)
    assert rule.theta_q.std().item() == pytest.approx(
        0.1 * 0.88, rel=0.02
    )  # a normal cut at two deviations
    assert rule.theta_q.abs().max().item() <= 0.2
    limit = (6 / (800 + 800)) ** 0.5
    assert rule.theta_u.abs().max().item() == pytest.approx(limit, rel=0.01)
    assert all(not getattr(rule, bias).any() for bias in ("b_p", "b_u", "b_r", "b_q"))
