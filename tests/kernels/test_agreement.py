"""Every backend this machine has against the rule itself in float64: states, updates, meta-gradients, adjoints."""

import pytest
import torch

from hyperadam import kernels
from hyperadam.kernels import Kernel, Motion, Part, Tape, available, make_kernel, make_tape
from hyperadam.rules import DMRule, HyperAdamRule, HyperAdamState, RNNpropRule
from tests.kernels.stepping import clone, differentiate, move, step
from tests.rules.cases import HYPERADAM_OPTIONS, every_rule, hyperadam, rollout

SIZES = [1, 63, 64, 65, 1023, 4097]
BACKENDS = available()
NATIVE = [name for name in BACKENDS if name not in ("triton", "torch")]
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
    return (
        (actual.double() - expected.double()).abs().max()
        / expected.double().abs().max().clamp(min=1e-30)
    ).item()


def twice(rule):
    """The rule in float64."""
    copy = type(rule)(**rule.config).double()
    copy.load_state_dict(rule.state_dict())
    return copy


def test_this_machine_has_torch_and_says_what_else():
    assert BACKENDS[-1] == "torch"
    assert set(BACKENDS) <= {"avx512", "avx2", "portable", "triton", "torch"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("name", HYPERADAM_OPTIONS)
def test_in_place_step_equals_the_rule(name, p, backend):
    rule, grads = hyperadam(HYPERADAM_OPTIONS[name]), tame_gradients(STEPS, p)
    with torch.no_grad():
        expected_updates, expected_state = rollout(twice(rule), grads.double())
    kernel = make_kernel(rule, backend)
    assert kernel.name == backend
    state = rule.init_state(grads[0])
    updates = [step(kernel, g, state) for g in grads]
    assert error(torch.stack(updates), expected_updates) < 3e-6  # a sum of J terms of either sign
    for field, value, expected in zip(HyperAdamState._fields, state, expected_state, strict=True):
        assert error(value, expected) < 1e-6, field


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("shape", [*((p,) for p in SIZES), (3, 130), (2, 2, 65), (20, 70)], ids=str)
@pytest.mark.parametrize("name", HYPERADAM_OPTIONS)
def test_tape_equals_autograd_over_a_whole_period(name, shape, backend):
    rule, grads, probes = (
        hyperadam(HYPERADAM_OPTIONS[name]),
        tame_gradients(6, *shape),
        tame_gradients(6, *shape, seed=1),
    )
    tape = make_tape(rule, backend)
    expected, eager = (differentiate(Tape(exact), grads, probes) for exact in (twice(rule), rule))
    for _ in range(2):  # a second period on the same memory
        actual = differentiate(tape, grads, probes)
        for what, e in expected.items():
            # where large terms cancel, float32 has fewer digits left; autograd's pairwise sums keep one more of them
            assert error(actual[what], e) < max(1e-5, 8 * error(eager[what], e)), what


def test_tape_by_autograd_equals_one_graph():
    for rule in (
        RNNpropRule().double(),
        DMRule().double(),
        HyperAdamRule(candidates=3, lstm=False).double(),
    ):
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("frozen", [True, False])
def test_a_kernel_follows_its_rule(backend, frozen):
    rule, (first, g) = (
        hyperadam({"decay_bound": 0.97}).requires_grad_(not frozen),
        tame_gradients(2, 70),
    )
    kernel, state = make_kernel(rule, backend), rule.init_state(g)
    step(kernel, first, state)
    before = step(kernel, g, clone(state))
    with torch.no_grad():
        rule.b_u += 1
    expected = rule(g, clone(state))[0].detach()
    after = step(kernel, g, state)
    assert error(after, expected) < 1e-5
    assert error(after, before) > 1e-2


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("name", ["bounded", "seven-bounded-normalized"])
def test_one_and_two_threads_give_the_same_bits(name, backend, threads):
    rule, grads = hyperadam(HYPERADAM_OPTIONS[name]), tame_gradients(3, 2, 40_000)
    results = []
    for count in (1, 2):
        threads(count)
        results.append(differentiate(make_tape(rule, backend), grads, grads).values())
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_zero_gradients_and_dead_coordinates_stay_finite(backend):
    rule = hyperadam({"decay_bound": 0.97})
    kernel, state = make_kernel(rule, backend), rule.init_state(torch.zeros(100))
    for t in range(50):
        g = (
            torch.zeros(100)
            if t < 5
            else torch.cat([torch.randn(50) if t < 10 else torch.zeros(50), torch.zeros(50)])
        )
        update = step(kernel, g, state)
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
    state, kernel = rule.init_state(grads[0]), make_kernel(rule, backend)
    updates = [step(kernel, g, state) for g in grads]
    assert error(torch.stack(updates), expected) < (0.05 if backend == "torch" else 1e-4)


@pytest.mark.parametrize(
    "rule", ["hyperadam-bounded", "hyperadam-normalized-state", "rnnprop", "dm"]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16_state_rounds_what_the_rule_gives(rule, backend):
    rule = every_rule()[rule].requires_grad_(False)
    p = 5000
    state = rule.State(
        *(torch.zeros(rows, p, dtype=torch.bfloat16) for rows in rule.state_rows().values())
    )
    kernel = make_kernel(rule, backend, torch.bfloat16)
    assert kernel.name == backend
    for seed, g in enumerate(tame_gradients(5, p)):
        expected, new = rule(g, rule.State(*(x.float() for x in state)))
        before = clone(state)
        update = step(kernel, g, state, seed)
        assert error(update, expected) < 1e-5
        for field, x, y in zip(rule.State._fields, state, new, strict=True):
            torch.testing.assert_close(
                x.float(),
                y,
                rtol=2**-7,
                atol=1e-6,
                msg=lambda text, field=field: f"{field}: {text}",
            )
            off = (x.double() - y.double()) / y.double().abs().clamp(min=1e-30)
            assert off.mean().abs() < 3e-4, field  # right on average; always down would be 2.8e-3
        again = clone(before)
        step(kernel, g, again, seed)
        assert all(torch.equal(a, b) for a, b in zip(again, state, strict=True))
        other = clone(before)
        step(kernel, g, other, seed + 1000)
        assert not any(torch.equal(a, b) for a, b in zip(other, state, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(70,), (3, 130)])
def test_bfloat16_gradients_and_parameters(backend, shape):
    rule = hyperadam({"decay_bound": 0.97}).requires_grad_(False)
    kernel, runs = make_kernel(rule, backend), torch.Size(shape[:-1]).numel()
    g, w = tame_gradients(2, *shape).bfloat16()
    state, moved = rule.init_state(g.float()), w.clone()
    expected, _ = rule(g.float(), state)
    move(kernel, kernel.admit([Part(moved, state)], runs), [g], [Motion(0.1, decay=0.5)])
    exact = w.float() - 0.1 * (expected + 0.5 * w.float())
    torch.testing.assert_close(moved.float(), exact.bfloat16().float(), rtol=2**-8, atol=1e-5)
    assert (
        moved == exact.bfloat16()
    ).float().mean() > 0.99  # to the nearest, but for ties of rounding before it


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["bounded", "seven-bounded-normalized"])
def test_parts_are_one_vector(name, backend):
    rule = hyperadam(HYPERADAM_OPTIONS[name]).requires_grad_(False)
    kernel, cuts = make_kernel(rule, backend), [64, 1, 700, 0, 5000, 35]
    whole, parts = (
        rule.init_state(torch.zeros(5800)),
        [rule.init_state(torch.zeros(n)) for n in cuts],
    )
    for t, g in enumerate(tame_gradients(4, 5800)):
        expected = step(kernel, g, whole)
        updates = [torch.zeros(n) for n in cuts]
        batch = kernel.admit([Part(*piece) for piece in zip(updates, parts, strict=True)])
        move(kernel, batch, g.split(cuts), [Motion(-1.0 - i) for i in range(len(cuts))])
        joined = torch.cat([u / (1 + i) for i, u in enumerate(updates)])
        assert error(joined, expected) < 1e-5, t


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [3e18, 1.8e19, 1e-25])
def test_norms_are_right_wherever_the_gradient_is_a_float(size, backend):
    """Squares that fit one by one, and whose sum does not: the update forgets the gradient's size all the same."""
    rule = hyperadam({"decay_bound": 0.97}).requires_grad_(False)
    g = tame_gradients(1, 5000)[0].sign() * (
        0.5 + 0.5 * torch.rand(5000, generator=torch.Generator().manual_seed(0))
    )
    kernel, state = make_kernel(rule, backend), rule.init_state(g)
    batch = kernel.admit([Part(torch.zeros(5000), state)])
    kernel.take(batch, [g * size])
    sums = kernel.sums(batch, ())
    expected = (g * size).double().square().sum().item()
    assert sums[0, 0].item() == pytest.approx(expected, rel=1e-6)
    if size > 1:
        exact = twice(rule)
        for _ in range(3):
            update = step(kernel, g * size, state)
        double = exact.init_state(g.double())
        for _ in range(3):
            expected, double = exact(g.double() * size, double)
        assert error(update, expected) < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_largest_number(backend):
    rule = hyperadam({}).requires_grad_(False)
    kernel = make_kernel(rule, backend)

    def largest(*grads):
        batch = kernel.admit(
            [Part(torch.zeros(g.numel()), rule.init_state(torch.zeros(g.numel()))) for g in grads]
        )
        kernel.take(batch, grads)
        return kernel.largest(batch)

    grads = (
        torch.tensor([1.0, -3.0]),
        torch.tensor([2e38]),
        torch.zeros(0),
        torch.zeros(70),
        torch.full((5,), -0.5).bfloat16(),
    )
    assert largest(*grads) == pytest.approx([3.0, 2e38, 0.0, 0.0, 0.5])
    for bad in (torch.nan, torch.inf, -torch.inf):
        for dtype in (torch.float32, torch.bfloat16):
            spoilt = torch.zeros(100, dtype=dtype)
            spoilt[77] = bad
            assert not largest(spoilt)[0] < torch.inf


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_door_refuses_what_the_kernel_cannot_read(backend):
    rule = hyperadam({}).requires_grad_(False)
    kernel, good = make_kernel(rule, backend), torch.ones(10)
    state = rule.init_state(good)
    part = Part(good, state)
    wrong = {
        "param has dtype torch.int64": part._replace(param=good.long()),
        "param is on meta": part._replace(param=good.to("meta")),
        "param must be contiguous": part._replace(param=torch.ones(10, 2)[:, 0]),
        r"m has shape \(20, 10\), expected 180 entries": part._replace(param=torch.ones(9)),
        "m has dtype torch.float64": part._replace(state=state._replace(m=state.m.double())),
        "v is on meta": part._replace(state=state._replace(v=state.v.to("meta"))),
        "s must be contiguous": part._replace(state=state._replace(s=torch.zeros(10, 20).T)),
        r"c has shape \(19, 10\), expected 200 entries": part._replace(
            state=state._replace(c=state.c[1:])
        ),
    }
    if backend != "torch":
        wrong["param has dtype torch.float64"] = part._replace(param=good.double())
    for message, bad in wrong.items():
        with pytest.raises(ValueError, match=message):
            kernel.admit([part, bad])
    with pytest.raises(
        ValueError, match="param has 10 entries, expected as many for each of 3 runs"
    ):
        kernel.admit([part], runs=3)

    batch = kernel.admit([part])
    wrong = {
        "gradient has dtype torch.int64": good.long(),
        "gradient is on meta": good.to("meta"),
        "gradient must be contiguous": torch.ones(10, 2)[:, 0],
        r"gradient has shape \(9,\), expected 10 entries": torch.ones(9),
    }
    for message, grad in wrong.items():
        with pytest.raises(ValueError, match=message):
            kernel.take(batch, [grad])


@pytest.mark.parametrize("backend", NATIVE)
def test_float64_never_reaches_the_float32_kernel(backend):
    rule = hyperadam({})
    tape = make_tape(rule, backend)
    tape.start(rule.init_state(torch.zeros(5, dtype=torch.float64)))
    with pytest.raises(ValueError, match=r"dtype torch.float64"):
        tape.step(torch.ones(5, dtype=torch.float64))
    with pytest.raises(
        ValueError,
        match=rf"backend '{backend}' cannot step hyperadam in torch.float64 on cpu, only torch",
    ):
        make_kernel(rule.double(), backend)
    assert make_kernel(rule).name == "torch"
    assert type(make_tape(rule)) is Tape


def test_a_rule_on_another_device_is_not_stepped_in_cpp():
    rule = HyperAdamRule().to("meta")
    assert make_kernel(rule).name == "torch"
    assert type(make_tape(rule)) is Tape


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
    with pytest.raises(
        ValueError, match=r"backend must be 'auto' or one of .*torch.*, got 'cuda9'"
    ):
        make_kernel(rule, "cuda9")
    monkeypatch.setenv("HYPERADAM_BACKEND", "nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        make_kernel(rule)


def test_without_libraries_torch_serves(monkeypatch):
    monkeypatch.delenv("HYPERADAM_BACKEND", raising=False)
    monkeypatch.setattr(kernels.native, "available", lambda: ())
    assert available() == ("torch",)
    kernel = make_kernel(HyperAdamRule())
    assert type(kernel) is Kernel
    assert kernel.name == "torch"
