"""Scales on every backend that this machine has: each part's and run's own, and 1 changes no bit."""

import pytest
import torch

from hyperadam.kernels import Motion, Part, RuleStepper, available, make_kernel
from hyperadam.rules import DMRule, HyperAdamRule, RNNpropRule
from hyperadam.rules.pace import root_mean_square
from tests.kernels.stepping import clone, move
from tests.rules.cases import spread
from tests.rules.numpy_twins import narrow_twin, pace_twin, scale_twin

SHAPES = [(9, 7), (65,), (3, 2, 5), (4, 300)]
SIZES = [0.3, 0.02, 0.1, 0.06]
RUNS, STEPS, LR, DECAY = 3, 4, 0.03, 0.2
KINDS = {
    "hyperadam": lambda **options: HyperAdamRule(decay_bound=0.97, **options),
    "normalizing": lambda **options: HyperAdamRule(candidates=7, normalize_state=True, **options),
    "rnnprop": RNNpropRule,
    "dm": lambda **options: DMRule(units=6, **options),
}
pytestmark = pytest.mark.parametrize("backend", available())


def rules(name):
    """The same rule without and with relative steps."""
    torch.manual_seed(0)
    plain = spread(KINDS[name]()).requires_grad_(False)
    relative = KINDS[name](relative=True).requires_grad_(False)
    relative.load_state_dict(plain.state_dict())
    return plain, relative


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def starts(dtype=torch.float32):
    """Tensors ``(runs, n)``; each run a little larger than the one before."""
    runs = 1 + torch.arange(RUNS)[:, None] / 2
    sizes = [torch.Size(shape).numel() for shape in SHAPES]
    return [
        (size * runs * randn(RUNS, n, seed=n)).to(dtype)
        for n, size in zip(sizes, SIZES, strict=True)
    ]


def steps(rule, backend, params, memories, decay=DECAY, state_dtype=torch.float32):
    """Some steps of all parts together; returns the states."""
    kernel = make_kernel(rule, backend, state_dtype)
    assert kernel.name == backend
    states = [rule.State(*(x.to(state_dtype) for x in rule.init_state(w.float()))) for w in params]
    parts = [Part(*x) for x in zip(params, states, SHAPES, memories, strict=True)]
    batch = kernel.admit(parts, RUNS)
    for t in range(STEPS):
        grads = [randn(*w.shape, seed=100 * t + i) for i, w in enumerate(params)]
        move(kernel, batch, grads, [Motion(LR, decay, seed=t, step=t + 1)] * len(params))
    return states


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_scale_of_one_changes_no_bit(name, dtype, state_dtype, backend):
    plain, relative = rules(name)
    params, twins = starts(dtype), starts(dtype)
    ones = [torch.full((RUNS, 1), 0.1) for _ in SHAPES]
    expected = steps(plain, backend, params, [None] * len(SHAPES), state_dtype=state_dtype)
    actual = steps(relative, backend, twins, ones, state_dtype=state_dtype)
    assert all(torch.equal(a, b) for a, b in zip(params, twins, strict=True))
    for one, other in zip(expected, actual, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_every_part_and_run_has_its_own_scale(name, backend):
    """Each moves as one of a plain rule whose update was multiplied by hand, in float64."""
    plain, relative = rules(name)
    params = starts()
    sizes = [torch.stack([root_mean_square(run) for run in w]) for w in params]
    exact = type(plain)(**plain.config).double().requires_grad_(False)
    exact.load_state_dict(plain.state_dict())
    w = [x.double() for x in params]
    state = exact.init_state(torch.cat(w, -1))
    for t in range(STEPS):
        grads = [randn(*x.shape, seed=100 * t + i).double() for i, x in enumerate(w)]
        update, state = exact(torch.cat(grads, -1), state)
        for i, d in enumerate(update.split([x.shape[1] for x in w], -1)):
            scale = [[scale_twin(rms, SHAPES[i])] for rms in sizes[i].double().tolist()]
            w[i] = w[i] - LR * (torch.tensor(scale) * d + DECAY * w[i])
    steps(relative, backend, params, [relative.init_memory(rms) for rms in sizes])
    for actual, expected in zip(params, w, strict=True):
        assert (actual - expected).abs().max() < 2e-5 * expected.abs().max()
    scales = {round(scale_twin(x, SHAPES[i]), 3) for i in range(4) for x in sizes[i].tolist()}
    assert len(scales) > 6


def test_the_width_is_part_of_the_scale(backend):
    rule = HyperAdamRule(candidates=3, decay_bound=0.97, relative=True, width=True)
    params = starts()
    sizes = [torch.stack([root_mean_square(run) for run in w]) for w in params]
    states = [rule.init_state(w) for w in params]
    memories = [rule.init_memory(rms) for rms in sizes]
    parts = [Part(*x) for x in zip(params, states, SHAPES, memories, strict=True)]
    batch = make_kernel(rule, backend).admit(parts, RUNS)
    expected = [
        [narrow_twin(shape) * scale_twin(size, shape) for size in of_runs.double().tolist()]
        for shape, of_runs in zip(SHAPES, sizes, strict=True)
    ]
    torch.testing.assert_close(batch.scale, torch.tensor(expected, dtype=torch.float32))


def test_the_door_wants_memory_of_a_relative_rule(backend):
    _, rule = rules("hyperadam")
    kernel, w = make_kernel(rule, backend), torch.ones(2, 5)
    part = Part(w, rule.init_state(w), (5,), torch.ones(2, 1))
    kernel.admit([part], runs=2)
    wrong = {
        r"memory is None, expected \(2, 1\) numbers": None,
        r"memory has shape \(1, 1\), expected \(2, 1\)": torch.ones(1, 1),
        r"memory has shape \(2,\), expected \(2, 1\)": torch.ones(2),
        r"memory must be contiguous torch.float32 on cpu, got torch.float64": torch.ones(
            2, 1, dtype=torch.float64
        ),
        r"memory must be .* on meta": torch.ones(2, 1, device="meta"),
    }
    for message, memory in wrong.items():
        with pytest.raises(ValueError, match=message):
            kernel.admit([part, part._replace(memory=memory)], runs=2)


# The stepper ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def chosen(monkeypatch, backend):
    monkeypatch.setenv("HYPERADAM_BACKEND", backend)


def stepped(rule, start, count=STEPS, total=None, state_dtype=None, runs=slice(None)):
    params = start[runs].clone()
    stepper = RuleStepper(params, LR, rule, state_dtype, SHAPES, total)
    for t in range(count):
        stepper.step(randn(*start.shape, seed=t)[runs])
    return params, stepper


def flat_start():
    return torch.cat(starts(), dim=-1)


@pytest.mark.parametrize("name", KINDS)
def test_the_stepper_takes_tensors_apart(name, backend):
    plain, relative = rules(name)
    start, total = flat_start(), STEPS - 1  # one step beyond it
    exact = type(plain)(**plain.config).double().requires_grad_(False)
    exact.load_state_dict(plain.state_dict())
    sizes = [torch.Size(shape).numel() for shape in SHAPES]
    scale = torch.tensor(
        [
            [
                scale_twin(part.double().square().mean().sqrt().item(), shape)
                for part, shape in zip(run.split(sizes), SHAPES, strict=True)
                for _ in range(part.numel())
            ]
            for run in start
        ]
    )
    w, state = start.double(), exact.init_state(start.double())
    for t in range(STEPS):
        update, state = exact(randn(*start.shape, seed=t).double(), state)
        w = w - LR * pace_twin(t + 1, total, 0) * scale * update
    params, stepper = stepped(relative, start, total=total)
    assert stepper.backend == backend
    assert (params - w).abs().max() < 2e-5 * w.abs().max()


@pytest.mark.parametrize("name", KINDS)
def test_a_stepper_at_scale_one_is_that_of_the_plain_rule(name, backend):
    plain, relative = rules(name)
    small = 0.001 * flat_start()  # below every floor
    narrow = [(n,) for n in (70, 60, 1000, 228)]
    results = []
    for rule in (plain, relative):
        params = small.clone()
        stepper = RuleStepper(params, LR, rule, shapes=narrow, total=9)
        for t in range(STEPS):
            stepper.step(randn(*small.shape, seed=t))
        results.append(params)
    # norms are added up over other pieces, and matrices multiplied with others beside them
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_a_run_has_the_same_bits_in_any_company(name, backend):
    _, rule = rules(name)
    if backend == "torch" and rule.rounds:
        pytest.skip("its tiles are cut by the number of runs")
    together, _ = stepped(rule, flat_start(), total=8)
    for run in range(RUNS):
        here = slice(run, run + 1)
        alone, _ = stepped(rule, flat_start(), total=8, runs=here)
        assert torch.equal(alone, together[here])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("state_dtype", [None, torch.bfloat16], ids=str)
def test_a_stepper_goes_on_from_its_state(name, state_dtype, backend):
    _, rule = rules(name)
    whole, _ = stepped(rule, flat_start(), 2 * STEPS, 2 * STEPS, state_dtype)
    half, stepper = stepped(rule, flat_start(), STEPS, 2 * STEPS, state_dtype)
    saved = {k: clone_of(v) for k, v in stepper.state_dict().items()}
    # made from parameters of another size, which its state then sets right
    other = RuleStepper(params := 7 * half, LR, rule, state_dtype, SHAPES, 2 * STEPS)
    params.copy_(half)
    other.load_state_dict(saved)
    for t in range(STEPS, 2 * STEPS):
        other.step(randn(*params.shape, seed=t))
    assert torch.equal(params, whole)


def clone_of(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


def test_a_stepper_follows_parameters_that_were_set(backend):
    """A run that diverged is set to zeros between two steps."""
    _, rule = rules("hyperadam")
    params, stepper = stepped(rule, flat_start(), 1)
    params[1] = 0
    before = params.clone()
    stepper.step(torch.zeros_like(params))
    assert (params[1] - before[1]).abs().max() < LR * 100
    stepper.params[1] = 0
    assert torch.equal(stepper.params, params)


def test_what_a_stepper_refuses(backend):
    _, rule = rules("dm")
    w = torch.zeros(2, 12)
    with pytest.raises(ValueError, match=r"shapes is None, expected .* dm\(.*relative=True\)"):
        RuleStepper(w, LR, rule)
    with pytest.raises(ValueError, match=r"shapes \[\(3, 3\)\] have 9 entries, expected 12"):
        RuleStepper(w, LR, rule, shapes=[(3, 3)])
    with pytest.raises(ValueError, match="total must be None or at least 1 step, got 0"):
        RuleStepper(w, LR, rule, shapes=[(3, 4)], total=0)


def test_states_are_not_shared(backend):
    _, rule = rules("rnnprop")
    _, stepper = stepped(rule, flat_start())
    before = clone(stepper._parts[0].state)
    stepped(rule, flat_start())
    assert all(torch.equal(a, b) for a, b in zip(before, stepper._parts[0].state, strict=True))


def test_a_stepper_counts_matrices(backend):
    """Eight matrices and a vector: with ``depth`` every step is half as long."""
    ends = []
    for depth in (False, True):
        torch.manual_seed(0)
        rule = HyperAdamRule(candidates=3, decay_bound=0.97, relative=True, depth=depth)
        params = randn(RUNS, 37, seed=1)
        stepper = RuleStepper(params, LR, rule, shapes=[(2, 2)] * 8 + [(5,)], total=10)
        start = params.clone()
        stepper.step(randn(RUNS, 37, seed=2))
        ends.append(params - start)
    rounding = torch.finfo(torch.float32).eps * start.abs().max().item()  # of weights that move
    torch.testing.assert_close(ends[1], 0.5 * ends[0], rtol=1e-5, atol=rounding)
    assert ends[0].abs().max() > 1000 * rounding
