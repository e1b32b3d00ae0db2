"""RNNprop and DMoptimizer with LSTM layers in C++ against the rules themselves in float64."""

import math

import pytest
import torch

from hyperadam import kernels
from hyperadam.kernels import Tape, available, make_kernel, make_tape
from hyperadam.kernels.native import NativeLSTM
from hyperadam.rules import DMRule, RNNpropRule
from hyperadam.rules.layers import LSTM
from tests.kernels.stepping import clone, differentiate, step
from tests.kernels.test_agreement import error, tame_gradients, threads, twice  # noqa: F401
from tests.rules.cases import rollout, spread

NATIVE = [name for name in available() if name != "torch"]
RULES = {"rnnprop": RNNpropRule, "dm": DMRule}
SIZES = [1, 63, 64, 65, 1000]

pytestmark = pytest.mark.skipif(not NATIVE, reason="no C++ library was built")


def make_rule(kind, **options):
    torch.manual_seed(0)
    return spread(RULES[kind](**options))


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("p", [*SIZES, 9000])
@pytest.mark.parametrize("kind", RULES)
def test_in_place_step_equals_the_rule(kind, p, backend):
    rule, grads = make_rule(kind), tame_gradients(25, p)
    with torch.no_grad():
        expected_updates, expected_state = rollout(twice(rule), grads.double())
        _, eager_state = rollout(rule, grads)
    kernel = make_kernel(rule, backend)
    assert kernel.name == backend
    state = rule.init_state(grads[0])
    updates = torch.stack([step(kernel, g, state) for g in grads])
    assert error(updates, expected_updates) < 3e-6  # a sum of terms of either sign
    for field, value, eager, expected in zip(
        rule.State._fields, state, eager_state, expected_state, strict=True
    ):
        assert error(value, expected) < max(1e-6, 3 * error(eager, expected)), field


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("shape", [(p,) for p in SIZES] + [(3, 130), (2, 2, 65), (20, 70)], ids=str)
@pytest.mark.parametrize("kind", RULES)
def test_tape_equals_autograd_over_a_whole_period(kind, shape, backend):
    rule, grads, probes = (
        make_rule(kind),
        tame_gradients(20, *shape),
        tame_gradients(20, *shape, seed=1),
    )
    expected = differentiate(Tape(twice(rule)), grads, probes)
    for name, actual in differentiate(make_tape(rule, backend), grads, probes).items():
        assert expected[name].any(), name
        assert error(actual, expected[name]) < 1e-5, name


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize(("inputs", "units"), [(1, 1), (2, 20), (20, 20), (3, 7), (9, 2)])
def test_layer_equals_torch_in_every_size_and_layout(inputs, units, backend):
    torch.manual_seed(0)
    layer = spread(LSTM(inputs, units))
    exact = LSTM(inputs, units).double()
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(2, 75, inputs).mT.requires_grad_()  # coordinates not contiguous
    s, c = (torch.randn(units, 2, 75).transpose(0, 1).requires_grad_() for _ in range(2))
    probes = torch.randn(2, 2, units, 75)
    results = []
    for module, dtype in ((NativeLSTM(layer, backend), torch.float32), (exact, torch.float64)):
        out = module(x.to(dtype), s.to(dtype), c.to(dtype))
        total = sum((probe.to(dtype) * y).sum() for probe, y in zip(probes, out, strict=True))
        results.append([*out, *torch.autograd.grad(total, [x, s, c, *module.parameters()])])
    for actual, expected in zip(*results, strict=True):
        assert error(actual, expected) < 2e-6


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("inputs", [2, 20])
def test_one_and_two_threads_give_the_same_bits(inputs, backend, threads):  # noqa: F811
    torch.manual_seed(0)
    layer = spread(LSTM(inputs, 20))
    x, s, c = (torch.randn(2, rows, 20_001).requires_grad_() for rows in (inputs, 20, 20))
    results = []
    for count in (1, 2):
        threads(count)
        out = NativeLSTM(layer, backend)(x, s, c)
        results.append(
            [
                *out,
                *torch.autograd.grad(out, [x, s, c, *layer.parameters()], [s.detach(), c.detach()]),
            ]
        )
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("kind", RULES)
def test_no_coordinates(kind, backend):
    rule, g = make_rule(kind), torch.empty(2, 0)
    tape = make_tape(rule, backend)
    tape.start(rule.init_state(g))
    assert tape.step(g).shape == tape.step_back(g).shape == (2, 0)
    assert not any(d.any() for d in tape.gradients())
    assert step(make_kernel(rule, backend), g[0], rule.init_state(g[0])).shape == (0,)


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("kind", RULES)
def test_a_kernel_follows_its_rule_and_leaves_it_alone(kind, backend):
    rule, (first, g) = make_rule(kind), tame_gradients(2, 70)
    kernel = make_kernel(rule, backend)
    assert isinstance(rule.lstm1, LSTM)
    _, state = rule(first, rule.init_state(g))
    before = step(kernel, g, clone(state))
    with torch.no_grad():
        rule.lstm2.theta_x += 0.5
    after = step(kernel, g, clone(state))
    assert error(after, rule(g, state)[0].detach()) < 1e-5
    assert error(after, before) > 1e-2


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("kind", RULES)
def test_what_is_not_a_number_stays_so_and_stays_alone(kind, backend):
    rule, grads = make_rule(kind), tame_gradients(4, 70)
    grads[1, 5] = math.nan
    kernel, state = make_kernel(rule, backend), rule.init_state(grads[0])
    for g in grads:
        update = step(kernel, g, state)
    assert update.isnan().nonzero().tolist() == [[5]]


@pytest.mark.parametrize("backend", NATIVE)
def test_saturated_gates_match_torch(backend):
    """Beyond where the exponential is cut off nothing shows."""
    torch.manual_seed(0)
    layer = LSTM(2, 20)
    exact = LSTM(2, 20).double()
    exact.load_state_dict(layer.state_dict())
    x, s, c = 300 * torch.randn(2, 200), torch.randn(20, 200), 50 * torch.randn(20, 200)
    for actual, expected in zip(
        NativeLSTM(layer, backend)(x, s, c), exact(x.double(), s.double(), c.double()), strict=True
    ):
        assert error(actual, expected) < 1e-5  # sums of hundreds, rounded


@pytest.mark.parametrize("kind", RULES)
def test_float64_goes_through_torch(kind):
    rule, grads = make_rule(kind).double(), tame_gradients(3, 2, 9).double()
    tape, exact = make_tape(rule), Tape(rule)
    for t in (tape, exact):
        t.start(rule.init_state(grads[0]))
    for g in grads:
        assert torch.equal(tape.step(g), exact.step(g))
    for g in grads:
        assert torch.equal(tape.step_back(g), exact.step_back(g))
    kernel, state = make_kernel(rule), rule.init_state(grads[0, 0])
    updates = torch.stack([step(kernel, g, state) for g in grads[:, 0]])
    torch.testing.assert_close(
        updates, rollout(rule, grads[:, 0])[0].detach(), rtol=1e-12, atol=1e-12
    )


def test_backends_are_chosen_by_name_argument_and_environment(monkeypatch):
    rule = make_rule("dm")
    monkeypatch.delenv("HYPERADAM_BACKEND", raising=False)
    assert make_kernel(rule).name == NATIVE[0]
    assert make_kernel(rule, "torch").name == "torch"
    monkeypatch.setenv("HYPERADAM_BACKEND", "torch")
    assert make_kernel(rule).name == "torch"
    assert make_kernel(rule, NATIVE[0]).name == NATIVE[0]
    with pytest.raises(ValueError, match="cuda9"):
        make_tape(rule, "cuda9")
    monkeypatch.delenv("HYPERADAM_BACKEND")
    monkeypatch.setattr(kernels.native, "available", lambda: ())
    assert make_kernel(rule).name == "torch"
    assert isinstance(make_tape(rule), Tape)
