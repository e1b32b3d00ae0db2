"""HyperAdam2 against a NumPy twin in float64, and what it promises."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperadam.rules import HyperAdam2Rule
from hyperadam.rules.hyperadam2 import Stage, moment_bound
from tests.rules.cases import gradients, spread
from tests.rules.numpy_twins import parameters


def rule2(seed=0, scale=0.3, **options):
    torch.manual_seed(seed)
    return spread(HyperAdam2Rule(**options), scale, seed)


def turned(d):
    """The orthogonal direction of a matrix, by its singular values, block by block."""
    rows, columns = d.shape
    count = -(-rows // 32) if min(rows, columns) > 32 else 1
    each = -(-rows // count)
    blocks = []
    for block in (d[i : i + each] for i in range(0, rows, each)):
        u, s, v = np.linalg.svd(block, full_matrices=False)
        s = s / max(np.sqrt(np.sqrt(np.sum(s**4))), 1e-15)
        for _ in range(3):
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        blocks.append(u @ np.diag(s) @ v)
    made = np.concatenate(blocks)
    return 0.5 * made / max(np.sqrt(np.mean(made**2)), 1e-9)


class Twin:
    """One tensor, coordinate by coordinate, with the formulas written out."""

    def __init__(self, rule, w, total=0):
        self.theta, self.betas, self.gammas = parameters(rule), rule.betas, rule.gammas
        self.orthogonal = rule.orthogonal
        self.w, self.total, self.t = w.copy(), total, 0
        n = w.size
        self.m = {b: np.zeros(n) for b in self.betas if b}
        self.v = {c: np.zeros(n) for c in self.gammas}
        self.start = np.sqrt(np.mean(w**2))
        self.seen = {
            "w": self.start**2,
            "g": 0.0,
            "m": [0.0] * len(self.m),
            "v": [0.0] * len(self.v),
        }
        shape = w.shape
        self.fan_in = int(np.prod(shape[1:])) if w.ndim > 1 else 1
        self.floor = 0.1 * min(1, np.sqrt(64 / self.fan_in))
        self.least = self.floor / 20 if self.start > 0 else self.floor
        if w.ndim > 1:
            self.size = max(self.start, self.least)
        else:
            self.size = np.sqrt(max(self.start, self.floor) * self.floor)

    def features(self):
        t, N, seen, s = self.t, self.total, self.seen, max(self.t - 1, 1)
        v = [x / (1 - c**s) for x, c in zip(seen["v"], self.gammas, strict=True)]
        m = [seen["g"]] if self.betas[0] == 0 else []
        m += [x / (1 - b**s) ** 2 for x, b in zip(seen["m"], self.m, strict=True)]
        cut = lambda x: min(max(x, -3.0), 3.0)  # noqa: E731
        e = 1e-24
        return np.array(
            [
                np.log(max(self.start, 0.01)) / 3,
                np.log(max(np.sqrt(seen["w"]), self.least) / max(self.start, self.least)) / 2,
                np.log(self.w.size) / 5 - 1,
                self.w.ndim <= 1,
                self.w.ndim > 2,
                np.log(self.fan_in) / 4 - 1,
                2 * min(t / N, 1) - 1 if N else 0,
                np.log(t) / 4 - 1,
                np.log(N) / 4 - 1 if N else 0,
                bool(N),
                *(cut(np.log((x + e) / (v[-1] + e)) / 3) for x in m),
                cut(np.log((v[0] + e) / (v[-1] + e))),
            ],
            dtype=float,
        )

    def step(self, g, lr, decay=0.0):
        self.t += 1
        theta, t = self.theta, self.t
        h = np.tanh(theta["theta_1"] @ self.features() + theta["b_1"][:, 0])
        a = theta["log_step"][0, 0] + 2.5 * np.tanh(theta["theta_a"] @ h)[0]
        width = np.sqrt(8 / np.sqrt(self.fan_in)) if self.w.ndim > 1 else 1
        horizon = (100 / (self.total or 1000)) ** 0.3
        size = np.exp(a) * width * horizon * self.size / 0.1
        reach = np.array([np.sqrt((1 + b) / (1 - b) / 19) for _ in self.gammas for b in self.betas])
        rho = theta["rho"][:, 0] + reach * np.tanh(theta["theta_rho"] @ h)
        mixture = np.empty(self.w.size)
        for i, x in enumerate(g.reshape(-1)):
            for b in self.m:
                self.m[b][i] = b * self.m[b][i] + (1 - b) * x
            for c in self.v:
                self.v[c][i] = c * self.v[c][i] + (1 - c) * x**2
            m = [self.m[b][i] / (1 - b**t) if b else x for b in self.betas]
            v = [self.v[c][i] / (1 - c**t) for c in self.gammas]
            u = [y / math.sqrt(v[-1] + 1e-24) for y in m]
            total = sum(u)
            inputs = [y * total / (1 + sum(q**2 for q in u)) for y in u]
            inputs.append(v[0] / (v[0] + v[-1] + 1e-24) - 0.5)
            hidden = np.maximum(theta["theta_3"] @ inputs + theta["b_3"][:, 0], 0)
            own = rho + reach * (theta["theta_4"] @ hidden)
            field = [y / math.sqrt(q + 1e-24) for q in v for y in m]
            mixture[i] = own @ field
        d = mixture.reshape(self.w.shape)
        if self.orthogonal and self.w.ndim > 1 and min(len(d), self.fan_in) > 1:
            d = turned(d.reshape(len(d), -1)).reshape(d.shape)
        self.w = self.w - lr * (size * d + decay * self.w)
        self.seen = {
            "w": np.mean(self.w**2),
            "g": np.mean(g**2),
            "m": [np.mean(x**2) for x in self.m.values()],
            "v": [np.mean(x) for x in self.v.values()],
        }


def train(rule, w, grads, total=0, lr=0.01, decay=0.0):
    """``w`` after steps along ``grads``, by the rule alone."""
    shape, w = w.shape, w.reshape(-1)
    state, memory = rule.init_state(w), rule.init_memory(w.square().mean().sqrt()).to(w.dtype)
    memory[:2] = torch.stack([w.square().mean().sqrt(), w.square().mean()])  # unrounded
    for t, g in enumerate(grads, start=1):
        control = rule.control(memory, Stage(t, total, shape))
        mixture, state = rule(g.reshape(-1), state, control)
        d = rule.direction(mixture.unsqueeze(0), shape)[0]
        w = w - lr * (control.size * d + decay * w)
        sums = torch.cat([w.square().sum().reshape(1), rule.column_sums(g.reshape(-1), state, ())])
        memory = torch.cat([memory[:1], sums / w.numel()])
    return w.reshape(shape), state, memory


OPTIONS = {
    "default": {},
    "small": {"betas": (0.3, 0.9), "gammas": (0.95,), "hidden": 3, "units": 2},
    "wide": {"betas": (0.0, 0.9), "gammas": (0.9, 0.99, 0.999), "hidden": 5, "units": 4},
    "not turned": {"orthogonal": False},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("total", [0, 25])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 2, 2), (1, 200)], ids=str)
def test_rule_equals_numpy_twin(options, total, shape):
    rule = rule2(**OPTIONS[options]).double()
    w, grads = torch.randn(shape).double(), gradients(40, *shape)
    twin = Twin(rule, w.numpy(), total)
    for g in grads:
        twin.step(g.numpy(), 0.01, 0.1)
    with torch.no_grad():
        moved, state, memory = train(rule, w, grads, total, decay=0.1)
    np.testing.assert_allclose(moved.numpy(), twin.w, rtol=1e-9, atol=1e-12)
    for row, m in zip(state.m, twin.m.values(), strict=True):
        np.testing.assert_allclose(row.numpy(), m, rtol=1e-12, atol=1e-300)
    seen = [twin.start, twin.seen["w"], twin.seen["g"], *twin.seen["m"], *twin.seen["v"]]
    np.testing.assert_allclose(memory.numpy(), seen, rtol=1e-9)


def test_equals_torch_adam_when_one_candidate_counts():
    rule = HyperAdam2Rule().double().start_from({(0.9, 0.999): 1.0}, log_step=0.3 * math.log(10))
    w = torch.nn.Parameter(0.1 * torch.ones(40, dtype=torch.float64))
    adam = torch.optim.Adam([w], lr=0.01, eps=1e-16)
    grads = torch.randn(50, 40, dtype=torch.float64)
    with torch.no_grad():
        mine, _, _ = train(rule, w.detach().clone(), grads)
    for g in grads:
        w.grad = g
        adam.step()
    torch.testing.assert_close(mine, w.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [2.0**-20, 1e-3, 1e6])
@pytest.mark.parametrize("shape", [(30,), (5, 6)], ids=str)
def test_the_size_of_gradients_does_not_matter(scale, shape):
    rule, w = rule2().double(), torch.randn(shape, dtype=torch.float64)
    grads = torch.randn(30, *shape, dtype=torch.float64)
    with torch.no_grad():
        expected, scaled = (train(rule, w, s * grads, 40)[0] for s in (1.0, scale))
    torch.testing.assert_close(scaled, expected, rtol=1e-9, atol=1e-9)


def test_gradients_of_the_other_sign_move_the_other_way():
    rule, w = rule2().double(), torch.zeros(30, dtype=torch.float64)
    grads = torch.randn(20, 30, dtype=torch.float64)
    with torch.no_grad():
        ahead, back = (train(rule, w, s * grads)[0] for s in (1, -1))
    torch.testing.assert_close(ahead, -back)
    assert ahead.abs().min() > 0


def test_weights_per_run_are_runs_with_their_own_weights():
    rules = [rule2(seed).double() for seed in range(3)]
    joint = HyperAdam2Rule().double()
    for name, _ in list(joint.named_parameters()):
        values = torch.stack([getattr(rule, name).detach() for rule in rules])
        setattr(joint, name, torch.nn.Parameter(values))
    g, shape = gradients(2, 3, 20), (4, 5)
    state, memory = joint.init_state(g[0]), joint.init_memory(g[0].square().mean(1).sqrt()).double()
    with torch.no_grad():
        control = joint.control(memory, Stage(1, 10, shape))
        together, _ = joint(g[1], state, control)
        for k, rule in enumerate(rules):
            own = rule.control(memory[k], Stage(1, 10, shape))
            torch.testing.assert_close(control.size[k], own.size)
            alone, _ = rule(g[1, k], rule.init_state(g[1, k]), own)
            torch.testing.assert_close(together[k], alone)


SPIKY = st.lists(
    st.one_of(st.just(0.0), st.floats(-1e3, 1e3), st.sampled_from([1e-12, -1e-12, 1e12, -1e12])),
    min_size=1,
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(grads=SPIKY, seed=st.integers(0, 10**6), scale=st.sampled_from([0.3, 3.0]))
def test_every_candidate_and_the_update_are_bounded(grads, seed, scale):
    rule = rule2(seed, scale).double()
    bounds = torch.tensor(rule.moment_bounds(), dtype=torch.float64)
    m, v = torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    state = rule.init_state(torch.zeros(1, dtype=torch.float64))
    memory = torch.zeros(rule.memory, dtype=torch.float64)
    with torch.no_grad():
        for t, g in enumerate(grads, start=1):
            control = rule.control(memory, Stage(t, 0, (1,)))
            d, state = rule(torch.tensor([g], dtype=torch.float64), state, control)
            m = torch.cat([torch.tensor([g]), state.m[:, 0]]) / control.beta_hat
            v = state.v[:, 0] / control.gamma_hat
            field = (m / (v + 1e-24).sqrt().unsqueeze(1)).reshape(-1).abs()
            assert (field <= bounds * (1 + 1e-9)).all()
            assert d.abs().item() <= rule.update_bound() * (1 + 1e-9)


def test_the_bound_is_reached_by_gradients_chosen_against_it():
    rule = HyperAdam2Rule().double()
    for (beta, gamma), bound in zip(rule.pairs, rule.moment_bounds(), strict=True):
        if beta == 0:
            continue
        ages = np.arange(20_000)  # equality in Cauchy and Schwarz: g in proportion to (β/γ)^age
        g = (beta / gamma) ** ages
        m = (1 - beta) * np.sum(beta**ages * g)
        v = (1 - gamma) * np.sum(gamma**ages * g**2)
        assert m / np.sqrt(v) == pytest.approx(bound, rel=1e-6)


def test_the_start_is_a_fixed_mixture():
    rule = rule2().start_from({(0.9, 0.99): 1.5, (0.98, 0.99): -0.5}).double()
    memory = torch.rand(5, rule.memory, dtype=torch.float64)
    control = rule.control(memory, Stage(7, 100, (3, 3)))
    expected = torch.tensor([0, 0, 1.5, -0.5, 0, 0, 0, 0], dtype=torch.float64)
    # what the base was before does not matter, nor what the cells see
    torch.testing.assert_close(control.rho, expected.expand(5, 8))
    assert not rule.coordinate_weights(torch.randn(4, 9).double(), torch.rand(2, 9).double()).any()
    with pytest.raises(ValueError, match=r"no candidate has the decay rates \[\(0.8, 0.99\)\]"):
        rule.start_from({(0.8, 0.99): 1.0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"betas": (0.9, 0.5)}, "betas must be numbers that rise"),
        ({"betas": ()}, "betas must be numbers that rise"),
        ({"betas": (0.5, 1.0)}, "betas must lie in"),
        ({"betas": (0.5, 0.5)}, "betas must be numbers that rise"),
        ({"betas": "0"}, "betas must be numbers"),
        ({"betas": (0.5, "0.9")}, "betas must be numbers"),
        ({"betas": (0.5, math.nan)}, "betas must be numbers"),
        ({"gammas": (0.0,)}, "every β² must lie below every γ"),
        ({"betas": (0.5,), "gammas": (0.25 + 1e-9,)}, "every β² must lie below every γ"),
        ({"betas": (0.9, 0.999), "gammas": (0.99,)}, "every β² must lie below every γ"),
        ({"hidden": 0}, "hidden must be a whole number"),
        ({"units": 0}, "units must be a whole number"),
        ({"orthogonal": 1}, "orthogonal must be True or False"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        HyperAdam2Rule(**options)


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.98])
@pytest.mark.parametrize("gamma", [0.99, 0.999])
def test_first_moments_reach_their_bound_and_a_state_beyond_it_is_found_out(beta, gamma):
    """Without the bias corrected, too. Gradients that grow by γ/β a step come closest."""
    rule = HyperAdam2Rule()
    i, k = rule.slow.index(beta), rule.gammas.index(gamma)
    state, steps = rule.init_state(torch.zeros(3, dtype=torch.float64)), 2000
    for t in range(steps):
        g = (beta / gamma) ** (steps - 1 - t) * torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
        state = rule.State(*rule.moments(g, state))
    bound = moment_bound(beta, gamma)
    assert state.m[i, 0].item() == pytest.approx(bound * math.sqrt(state.v[k, 0]), rel=1e-3)
    assert rule.state_fault(state, steps) is None
    beyond = state._replace(m=2.01 * state.m)
    assert rule.state_fault(beyond, steps) == ("m", "has an entry too large for its 'v'")


@settings(max_examples=50, deadline=None)
@given(grads=SPIKY, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_no_state_that_steps_leave_is_found_faulty(grads, dtype):
    rule = HyperAdam2Rule()
    grads = torch.tensor(grads, dtype=dtype).unsqueeze(1)
    state = rule.init_state(grads[0])
    assert rule.state_fault(state, 0) is None
    for t, x in enumerate(grads, start=1):
        state = rule.State(*rule.moments(x, state))
        assert rule.state_fault(state, t) is None
        if state.v.any():
            assert rule.state_fault(state, 0) == ("v", "has an entry too large for its 'step', 0")
            assert rule.state_fault(state._replace(v=-state.v), t) == ("v", "has a negative entry")


def test_the_tensor_cell_of_many_tensors_at_once():
    """As kernels have it: one memory a tensor and run, one row of facts a tensor."""
    rule, shapes = rule2(), [(30,), (4, 200), (3, 2, 5)]
    memory = torch.rand(3, 2, rule.memory)
    stages = [
        Stage(t, total, shape)
        for t, total, shape in zip((1, 7, 50), (0, 9, 40), shapes, strict=True)
    ]
    facts = torch.tensor([rule.facts(stage) for stage in stages])
    together = rule.steer(memory, facts.unsqueeze(1))
    assert together.rho.shape == (3, 2, 8)
    for i, stage in enumerate(stages):
        for run in range(2):
            alone = rule.control(memory[i, run], stage)
            torch.testing.assert_close(together.size[i, run], alone.size)
            torch.testing.assert_close(together.rho[i, run], alone.rho)
            torch.testing.assert_close(together.beta_hat[i, 0], alone.beta_hat)
            torch.testing.assert_close(together.gamma_hat[i, 0], alone.gamma_hat)
