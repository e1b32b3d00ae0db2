"""Every backend this machine has against the rule itself in float64: states, updates, meta-gradients, adjoints."""

import pytest
import torch

from hyperadam import kernels
from hyperadam.kernels import FusedKernel, Tape, TiledKernel, available, make_kernel, make_tape
from hyperadam.kernels.base import padded_rows
from hyperadam.rules import DMRule, HyperAdamRule, HyperAdamState, RNNpropRule
from tests.rules.cases import HYPERADAM_OPTIONS, every_rule, hyperadam, rollout

SIZES = [1, 63, 64, 65, 1023, 4097]
BACKENDS = available()
STEPS = 25


def tame_gradients(steps, *shape, seed=0):
    """Gradients away from zero: there the rule itself has derivatives too steep for float32 to agree on."""
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(steps, *shape, generator=generator)
    return g + 0.3 * g.sign()


def error(actual, expected):
    """The largest difference beside the largest number."""
    if not expected.numel():
        return 0.0
    return ((actual.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-30)).item()


def twice(rule):
    """The rule in float64."""
    copy = type(rule)(**rule.config).double()
    copy.load_state_dict(rule.state_dict())
    return copy


def test_this_machine_has_torch_and_says_what_else():
    assert BACKENDS[-1] == "torch"
    assert set(BACKENDS) <= {"avx512", "avx2", "portable", "torch"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("name", HYPERADAM_OPTIONS)
def test_in_place_step_equals_the_rule(name, p, backend):
    rule, grads = hyperadam(HYPERADAM_OPTIONS[name]), tame_gradients(STEPS, p)
    with torch.no_grad():
        expected_updates, expected_state = rollout(twice(rule), grads.double())
    kernel = make_kernel(rule, backend)
    assert kernel.name == backend
    state = HyperAdamState(*padded_rows(grads[0], list(rule.state_rows().values())))
    updates = []
    for g in grads:
        sums = ()
        for _ in range(rule.rounds):
            sums += (kernel.column_sums(g, state, sums),)
        updates.append(kernel.step_(g, state, sums))
    assert error(torch.stack(updates), expected_updates) < 3e-6  # a sum of J terms of either sign
    for field, value, expected in zip(HyperAdamState._fields, state, expected_state, strict=True):
        assert error(value, expected) < 1e-6, field


def meta_gradients(step, rule, grads, probes):
    """Derivatives of a function of all updates and the last state by parameters, gradients and first state."""
    grads = [g.clone().requires_grad_() for g in grads]
    first = rule.init_state(grads[0].detach())
    first = HyperAdamState(*(x.detach().requires_grad_() for x in first))
    state, total = first, 0
    for g, probe in zip(grads, probes, strict=True):
        d, state = step(g, state)
        total = total + (d * probe).sum()
    for weight, x in enumerate(state):
        total = total + 0.01 * (weight + 1) * x.square().sum()
    return torch.autograd.grad(total, [*rule.parameters(), *grads, *first], allow_unused=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("name", HYPERADAM_OPTIONS)
def test_differentiable_step_equals_the_rule(name, p, backend):
    rule, grads = hyperadam(HYPERADAM_OPTIONS[name]), tame_gradients(5, 2, p)
    probes = tame_gradients(5, 2, p, seed=1)
    exact = twice(rule)
    expected = meta_gradients(exact, exact, list(grads.double()), list(probes.double()))
    actual = meta_gradients(make_kernel(rule, backend), rule, list(grads), list(probes))
    names = [n for n, _ in rule.named_parameters()] + [f"grad {t}" for t in range(5)] + list(HyperAdamState._fields)
    for n, a, e in zip(names, actual, expected, strict=True):
        if e is None:
            assert a is None or not a.any(), n
        else:
            assert error(a, e) < 1e-5, n


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", HYPERADAM_OPTIONS)
def test_tape_equals_autograd_over_a_whole_period(name, backend):
    rule, grads, probes = hyperadam(HYPERADAM_OPTIONS[name]), tame_gradients(20, 3, 130), tame_gradients(20, 3, 130, seed=1)
    tape, exact = make_tape(rule, backend), Tape(twice(rule))
    for _ in range(2):  # a second period on the same memory
        results = []
        for t, dtype in ((tape, torch.float32), (exact, torch.float64)):
            t.start(t.rule.init_state(grads[0].to(dtype)))
            updates = torch.stack([t.step(g.to(dtype)) for g in grads])
            state = [x.clone() for x in t.state]
            d_grads = torch.stack([t.step_back(probe.to(dtype)) for probe in probes.flip(0)])
            results.append([updates, *state, d_grads, *t.gradients()])
        for a, e in zip(*results, strict=True):
            assert error(a, e) < 1e-5


def test_tape_by_autograd_equals_one_graph():
    for rule in (RNNpropRule().double(), DMRule().double(), HyperAdamRule(candidates=3, lstm=False).double()):
        grads, probes = tame_gradients(6, 9).double(), tame_gradients(6, 9, seed=1).double()
        tape = make_tape(rule) if rule.kind != "hyperadam" else Tape(rule)
        tape.start(rule.init_state(grads[0]))
        for g in grads:
            tape.step(g)
        d_grads = torch.stack([tape.step_back(probe) for probe in probes.flip(0)]).flip(0)
        whole = grads.clone().requires_grad_()
        updates, _ = rollout(rule, whole)
        expected = torch.autograd.grad((updates * probes).sum(), [whole, *rule.parameters()])
        for a, e in zip([d_grads, *tape.gradients()], expected, strict=True):
            torch.testing.assert_close(a, e, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", HYPERADAM_OPTIONS)
def test_gradcheck_of_the_torch_backward(name):
    options = {**HYPERADAM_OPTIONS[name]}
    options.setdefault("candidates", 3)
    options["candidates"] = min(options["candidates"], 3)
    rule = hyperadam(options).double()
    kernel = TiledKernel(rule)
    g = (0.5 + torch.rand(2, 4, dtype=torch.float64)).requires_grad_()
    _, state = rule(g.detach().flip(-1), rule.init_state(g.detach()))
    inputs = (g, *(x.detach().clone().requires_grad_() for x in state))

    def step(g, *state):
        d, new = kernel(g, HyperAdamState(*state))
        return d, *(x for x in new if x.numel())

    assert torch.autograd.gradcheck(step, inputs)
    # and by the parameters, which the function takes from the rule
    value = rule.theta_u

    def by_parameter(theta):
        value.data.copy_(theta.detach())
        return kernel(g.detach(), HyperAdamState(*(x.detach() for x in state)))[0]

    point = value.detach().clone()
    analytic = torch.autograd.grad(by_parameter(point).sum(), value)[0]
    numeric = torch.zeros_like(point)
    for index in range(point.numel()):
        bump = torch.zeros_like(point)
        bump.view(-1)[index] = 1e-6
        numeric.view(-1)[index] = ((by_parameter(point + bump) - by_parameter(point - bump)).sum() / 2e-6).detach()
    assert numeric.abs().max() > 1e-4
    torch.testing.assert_close(analytic, numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("frozen", [True, False])
def test_a_kernel_follows_its_rule(backend, frozen):
    rule, (first, g) = hyperadam({"decay_bound": 0.97}).requires_grad_(not frozen), tame_gradients(2, 70)
    kernel = make_kernel(rule, backend)
    _, state = kernel(first, rule.init_state(g))
    before, _ = kernel(g, state)
    with torch.no_grad():
        rule.b_u += 1
    after, _ = kernel(g, state)
    assert error(after.detach(), rule(g, state)[0].detach()) < 1e-5
    assert error(after.detach(), before.detach()) > 1e-2


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "torch"])
@pytest.mark.parametrize("name", ["bounded", "seven-bounded-normalized"])
def test_one_and_two_threads_give_the_same_bits(name, backend, threads):
    rule, grads = hyperadam(HYPERADAM_OPTIONS[name]), tame_gradients(3, 2, 40_000)
    results = []
    for count in (1, 2):
        threads(count)
        results.append(meta_gradients(make_kernel(rule, backend), rule, list(grads), list(grads)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_zero_gradients_and_dead_coordinates_stay_finite(backend):
    rule = hyperadam({"decay_bound": 0.97})
    kernel, state = make_kernel(rule, backend), HyperAdamState(*padded_rows(torch.zeros(100), [20] * 6))
    for t in range(50):
        g = torch.zeros(100) if t < 5 else torch.cat([torch.randn(50) if t < 10 else torch.zeros(50), torch.zeros(50)])
        sums = (kernel.column_sums(g, state, ()),)
        update = kernel.step_(g, state, sums)
        assert update.isfinite().all()
        assert all(x.isfinite().all() for x in state)
        assert not update[50:].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_inputs_match_the_rule(backend):
    """Saturated gates and decay rates: beyond where the kernel's exponential is cut off, nothing shows.

    Torch takes 1 - beta in float32, where few digits are left of it; the C++ kernel does not."""
    rule = hyperadam({}, seed=3)
    with torch.no_grad():
        for value in rule.parameters():
            value *= 20
    grads = tame_gradients(STEPS, 64)
    expected, _ = rollout(twice(rule), grads.double())
    state, kernel, updates = rule.init_state(grads[0]), make_kernel(rule, backend), []
    with torch.no_grad():
        for g in grads:
            d, state = kernel(g, state)
            updates.append(d)
    assert error(torch.stack(updates), expected) < (0.05 if backend == "torch" else 1e-4)


@pytest.mark.parametrize("rule", ["hyperadam-bounded", "rnnprop", "dm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("backend", BACKENDS)
def test_other_state_dtypes_go_through_torch(rule, dtype, backend):
    rule = every_rule()[rule]
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    rule = rule.to(compute)
    p, rows = 5000, list(rule.state_rows().values())
    state = rule.State(*(torch.zeros(r, p, dtype=dtype) for r in rows))
    kernel = make_kernel(rule, backend if rule.kind == "hyperadam" else "torch")
    for g in tame_gradients(5, p).to(compute):
        sums = (kernel.column_sums(g, state, ()),) if rule.rounds else ()
        before = [x.clone() for x in state]
        expected, new = rule(g, rule.State(*(x.to(compute) for x in before)), tuple(x.to(compute) for x in sums))
        update = kernel.step_(g, state, sums, seed=7)
        torch.testing.assert_close(update, expected.detach(), rtol=1e-5, atol=1e-6)
        assert all(x.dtype == dtype for x in state)
        for x, y in zip(state, new, strict=True):
            torch.testing.assert_close(x.to(compute), y.detach(), rtol=2**-7 if dtype == torch.bfloat16 else 1e-12, atol=1e-8)


def test_stochastic_rounding_is_unbiased_and_repeats():
    from hyperadam.kernels.base import store

    value = torch.full((1, 100_000), 1 + 2**-9)  # a quarter of the way between two bfloat16 numbers
    target, again, other = (torch.empty(1, 100_000, dtype=torch.bfloat16) for _ in range(3))
    store(target, value, seed=1), store(again, value, seed=1), store(other, value, seed=2)
    assert torch.equal(target, again)
    assert not torch.equal(target, other)
    assert target.double().mean().item() == pytest.approx(value.double().mean().item(), abs=1e-4)


def test_backends_are_chosen_by_name_argument_and_environment(monkeypatch):
    rule = HyperAdamRule()
    monkeypatch.delenv("HYPERADAM_BACKEND", raising=False)
    assert make_kernel(rule).name == BACKENDS[0]
    monkeypatch.setenv("HYPERADAM_BACKEND", "torch")
    assert make_kernel(rule).name == "torch"
    assert make_kernel(rule, BACKENDS[0]).name == BACKENDS[0]
    with pytest.raises(ValueError, match=r"backend must be 'auto' or one of .*torch.*, got 'cuda9'"):
        make_kernel(rule, "cuda9")
    monkeypatch.setenv("HYPERADAM_BACKEND", "nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        make_kernel(rule)


def test_without_libraries_torch_serves(monkeypatch):
    monkeypatch.delenv("HYPERADAM_BACKEND", raising=False)
    monkeypatch.setattr(kernels.native, "available", lambda: ())
    assert available() == ("torch",)
    kernel = make_kernel(HyperAdamRule())
    assert isinstance(kernel, FusedKernel)
    assert kernel.name == "torch"
