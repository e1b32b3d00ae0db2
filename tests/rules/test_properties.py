"""What the paper proves of HyperAdam, and what every rule promises."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperadam.rules import HyperAdamRule
from hyperadam.rules.hyperadam import GAMMA_MAX
from tests.rules.cases import HYPERADAM_OPTIONS, every_rule, gradients, hyperadam, rollout

RULES = sorted(every_rule())
HYPERADAM = [f"hyperadam-{name}" for name in HYPERADAM_OPTIONS]


def logit(x):
    return torch.logit(torch.tensor(x, dtype=torch.float64)).item()


@torch.no_grad()
def constant_rule(beta, gamma, rho):
    """A rule with fixed decay rates and weights, one candidate for each entry."""
    rule = HyperAdamRule(candidates=len(beta)).double()
    for theta in (rule.theta_u, rule.theta_r, rule.theta_q):
        theta.zero_()
    for j in range(len(beta)):
        rule.b_u[j], rule.b_r[j] = logit(beta[j]), logit(gamma[j])
        rule.b_q[j] = rho[j]
    return rule


@pytest.mark.parametrize("beta", [0.1, 0.9, 0.999])
def test_lemma_1_bias_correction(beta):
    rule = constant_rule([beta], [0.99], [1.0])
    state = rule.init_state(torch.zeros(3, dtype=torch.float64))
    for t in range(1, 51):
        _, state = rule(torch.randn(3, dtype=torch.float64), state)
        torch.testing.assert_close(
            state.beta_hat, torch.full_like(state.beta_hat, 1 - beta**t), rtol=1e-10, atol=0
        )


@pytest.mark.parametrize("name", HYPERADAM)
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e6])
def test_scale_invariance(name, scale):
    rule = every_rule()[name].double()
    grads = torch.randn(30, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, _ = rollout(rule, grads)
        scaled, _ = rollout(rule, scale * grads)
    # The norms' guard is 1e-16 beside ‖1e-6 g‖² = 1e-10: nothing else tells the scale.
    torch.testing.assert_close(scaled, expected, rtol=2e-5, atol=2e-6)


def test_scale_invariance_is_not_that_of_the_rivals():
    """The test above can fail: DMoptimizer has no such property."""
    rule, grads = every_rule()["dm"].double(), torch.randn(5, 20, dtype=torch.float64)
    assert (rollout(rule, grads)[0] - rollout(rule, 1e-3 * grads)[0]).abs().max() > 1e-2


def test_equals_torch_adam_when_constant_and_one_hot():
    rule = constant_rule([0.5, 0.9, 0.2], [0.9, 0.999, 0.5], [0.0, 1.0, 0.0])
    w = torch.nn.Parameter(torch.randn(40, dtype=torch.float64))
    adam = torch.optim.Adam([w], lr=1.0, betas=(0.9, 0.999), eps=1e-16)
    state = rule.init_state(w.detach())
    for g in gradients(50, 40):
        g = torch.where(g == 0, 1e-3, g)
        before = w.detach().clone()
        w.grad = g
        adam.step()
        d, state = rule(g, state)
        torch.testing.assert_close(d, before - w.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", RULES)
def test_permuted_coordinates_permute_the_update(name):
    rule, grads = every_rule()[name].double(), gradients(10, 30)
    order = torch.randperm(30)
    with torch.no_grad():
        torch.testing.assert_close(
            rollout(rule, grads[:, order])[0], rollout(rule, grads)[0][:, order]
        )


@pytest.mark.parametrize("name", RULES)
def test_batch_of_runs_is_runs_one_by_one(name):
    rule, grads = every_rule()[name].double(), gradients(10, 2, 3, 20)
    with torch.no_grad():
        together, state = rollout(rule, grads)
        for i in range(2):
            for j in range(3):
                alone, own = rollout(rule, grads[:, i, j])
                torch.testing.assert_close(together[:, i, j], alone)
                for field, value in zip(state, own, strict=True):
                    torch.testing.assert_close(field[i, j], value)


@pytest.mark.parametrize("name", RULES)
def test_parts_with_summed_norms_are_the_whole(name):
    rule, grads = every_rule()[name].double(), gradients(10, 24)
    with torch.no_grad():
        expected, _ = rollout(rule, grads)
        states = [rule.init_state(torch.zeros(n, dtype=torch.float64)) for n in (10, 1, 13)]
        for g, whole in zip(grads, expected, strict=True):
            parts = list(zip(g.split([10, 1, 13]), states, strict=True))
            sums = rule.total_sums(
                lambda earlier, parts=parts: sum(rule.column_sums(*part, earlier) for part in parts)
            )
            assert len(sums) == rule.rounds
            steps = [rule(part, state, sums) for part, state in parts]
            states = [state for _, state in steps]
            torch.testing.assert_close(torch.cat([d for d, _ in steps]), whole)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("p", [0, 1, 5])
def test_small_and_zero_gradients(name, p):
    rule = every_rule()[name]
    updates, state = rollout(rule, torch.zeros(5, p))
    assert updates.shape == (5, p)
    assert updates.isfinite().all()
    assert all(x.isfinite().all() for x in state)
    if rule.kind == "hyperadam":
        assert not updates.any(), "no gradient, no update"


@pytest.mark.parametrize("name", RULES)
def test_a_coordinate_without_gradients_leaves_derivatives_finite(name):
    rule = every_rule()[name].float()
    grads = gradients(4, 6, seed=3).float()
    grads[:, :2] = 0
    grads.requires_grad_()
    state, total = rule.init_state(grads[0]), torch.zeros(())
    for grad in grads:
        update, state = rule(grad, state)
        total = total + update.square().sum()
    for derivative in torch.autograd.grad(total, [grads, *rule.parameters()], allow_unused=True):
        assert derivative is None or derivative.isfinite().all()


@pytest.mark.parametrize("name", RULES)
def test_pure_and_differentiable(name):
    rule, grads = every_rule()[name].double(), torch.randn(6, 7, dtype=torch.float64)
    grads[grads.abs() < 0.1] = 0.1
    state = rule.init_state(grads[0])
    before = [x.clone() for x in state]
    updates, final = rollout(rule, grads, state)
    assert all(torch.equal(x, y) for x, y in zip(state, before, strict=True)), (
        "the state that went in is as it was"
    )
    loss = updates.square().sum() + sum(x.square().sum() for x in final)
    for parameter, derivative in zip(
        rule.parameters(), torch.autograd.grad(loss, list(rule.parameters())), strict=True
    ):
        assert derivative.shape == parameter.shape
        assert derivative.any()


@pytest.mark.parametrize("name", ["hyperadam-bounded", "rnnprop", "dm"])
def test_gradcheck(name):
    rule = every_rule()[name].double()
    grads = 0.5 + torch.rand(2, 3, dtype=torch.float64)
    names = [n for n, _ in rule.named_parameters()]

    def loss(g, *values):
        state = rule.init_state(g[0])
        total = 0
        for step in g:
            d, state = torch.func.functional_call(
                rule, dict(zip(names, values, strict=True)), (step, state)
            )
            total = total + d
        return total

    inputs = (grads.requires_grad_(), *(p.detach().requires_grad_() for p in rule.parameters()))
    assert torch.autograd.gradcheck(loss, inputs, fast_mode=True)


# The bound ------------------------------------------------------------------------------------------------------------

SPIKY = st.lists(
    st.one_of(st.just(0.0), st.floats(-1e3, 1e3), st.sampled_from([1e-12, -1e-12, 1e12, -1e12])),
    min_size=1,
    max_size=120,
)


def moment_field(state):
    return (state.m / state.beta_hat) / torch.sqrt(state.v / state.gamma_hat + 1e-24)


@settings(max_examples=150, deadline=None)
@given(
    grads=SPIKY,
    seed=st.integers(0, 10**6),
    q=st.sampled_from([0.5, 0.9, 0.97]),
    scale=st.sampled_from([0.3, 3.0]),
)
def test_decay_bound_bounds_the_moment_field(grads, seed, q, scale):
    torch.manual_seed(seed)
    rule = HyperAdamRule(candidates=6, decay_bound=q).double()
    with torch.no_grad():
        for value in rule.parameters():
            value.normal_(std=scale)
        state = rule.init_state(torch.zeros(1, dtype=torch.float64))
        for g in grads:
            _, state = rule(torch.tensor([g], dtype=torch.float64), state)
            assert moment_field(state).abs().max() <= rule.moment_bound * (1 + 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bound_holds_between_decay_rates(dtype):
    rule = hyperadam({"decay_bound": 0.97}).to(dtype)
    with torch.no_grad():
        for scale in (1.0, 10.0, 100.0):
            m, s = scale * torch.randn(2, 20, 500, dtype=dtype)
            beta, gamma = rule.decay_rates(m, s, (torch.ones(21, dtype=dtype),))
            assert (beta**2 <= 0.97 * gamma * (1 + 1e-6)).all()
            assert (gamma <= GAMMA_MAX * (1 + 1e-6)).all()


def worst_case(rule, steps=400):
    """|m̂| of a gradient that dies: ones for a while, then nothing."""
    state = rule.init_state(torch.zeros(1, dtype=torch.float64))
    for t in range(steps):
        _, state = rule(torch.tensor([1.0 if t < 20 else 0.0], dtype=torch.float64), state)
    return moment_field(state).abs().max().item()


def test_the_papers_rule_has_no_bound_and_the_bounded_one_does():
    free = constant_rule([0.956], [0.867], [1.0])  # beta² > gamma
    assert worst_case(free) > 1e4
    bounded = HyperAdamRule(candidates=1, decay_bound=0.97).double()
    bounded.load_state_dict(free.state_dict())
    assert worst_case(bounded) < 5
    assert math.isinf(free.moment_bound)


def test_the_inequality_behind_the_bound_is_sharp():
    """Gradients chosen against fixed decay rates reach what Cauchy and Schwarz allow for these rates."""
    q = 0.97
    beta, gamma = math.sqrt(q * GAMMA_MAX), GAMMA_MAX
    rule = HyperAdamRule(candidates=1, decay_bound=q).double()
    with torch.no_grad():
        for theta in (rule.theta_u, rule.theta_r, rule.theta_q):
            theta.zero_()
        rule.b_u.fill_(40.0)  # beta at its largest, whereby gamma is too
    state = rule.init_state(torch.zeros(1, dtype=torch.float64))
    steps, largest = 3000, 0.0
    for t in range(
        steps
    ):  # equality in Cauchy-Schwarz: g_i in proportion to w_i / u_i = ((beta/gamma)^(t-i))
        g = (gamma / beta) ** (t - steps) if t > steps - 400 else 0.0
        _, state = rule(torch.tensor([g], dtype=torch.float64), state)
        largest = max(largest, moment_field(state).abs().item())
    tight = (
        (1 - beta) / math.sqrt((1 - gamma) * (1 - beta**2 / gamma)) * math.sqrt(1 - gamma**steps)
    )
    assert largest == pytest.approx(tight, rel=0.02)
    assert largest <= rule.moment_bound


# Options --------------------------------------------------------------------------------------------------------------


def test_start_near_adam_is_near_adam():
    rule = HyperAdamRule(decay_bound=0.97).double().start_near_adam()
    grads = torch.randn(200, 50, dtype=torch.float64) + 0.5
    w = torch.nn.Parameter(torch.zeros(50, dtype=torch.float64))
    adam = torch.optim.Adam([w], lr=1.0)
    updates, _ = rollout(rule, grads)
    for g in grads:
        w.grad = g
        adam.step()
    distance = (updates.sum(0) + w.detach()).abs().mean() / w.detach().abs().mean()
    assert distance < 0.3
    weights = torch.nn.functional.elu(rule.b_q).sum().item()
    assert weights == pytest.approx(1.0)


def test_pace_is_full_unless_the_rule_warms_up():
    assert [HyperAdamRule().pace(t) for t in (1, 2, 100)] == [1, 1, 1]
    assert [HyperAdamRule(warmup=4).pace(t) for t in (1, 2, 3, 4, 5, 100)] == [
        0.25,
        0.5,
        0.75,
        1,
        1,
        1,
    ]


@pytest.mark.parametrize(
    "bad",
    [
        {"candidates": 0},
        {"decay_bound": 0.0},
        {"decay_bound": 1.0},
        {"decay_bound": 2},
        {"warmup": -1},
    ],
)
def test_bad_options_are_named(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        HyperAdamRule(**bad)
