"""The Triton kernel in Triton's interpreter, against the rule. Run by test_triton.py, in a process
where TRITON_INTERPRET is set: a few hundredths of a second a program, so that sizes are small."""

import pytest
import torch
import triton
import triton.language as tl

from hyperadam.kernels import Motion, Part
from hyperadam.kernels.triton import TritonKernel, device, hyperadam, launch
from hyperadam.rules import DMRule, HyperAdamState
from tests.kernels.stepping import move
from tests.rules.cases import HYPERADAM_OPTIONS
from tests.rules.cases import hyperadam as make_rule

RUNS, SIZES = 2, (37, 0, 6)
STEP, DECAY = 0.01, (0.1, 0.0, 0.3)


def gradients(steps, runs, n, seed=0):
    """Away from zero: there the rule itself is too steep for float32 to agree on."""
    g = torch.randn(steps, runs, n, generator=torch.Generator().manual_seed(seed))
    return g + 0.3 * g.sign()


def error(actual, expected):
    """The largest difference beside the largest number."""
    if not expected.numel():
        return 0.0
    difference = (actual.double() - expected.double()).abs().max()
    return (difference / expected.double().abs().max().clamp(min=1e-30)).item()


def twin(rule, dtype):
    copy = type(rule)(**rule.config).to(dtype)
    copy.load_state_dict(rule.state_dict())
    return copy


def totals(kernel, grad, state, param):
    batch = kernel.admit([Part(param, state)], len(grad))
    kernel.take(batch, [grad])
    return kernel.rule.total_sums(lambda earlier: kernel.sums(batch, earlier))


def step(kernel, grad, state, param, motion):
    """One step of one part; ``state`` and ``param`` are overwritten."""
    move(kernel, kernel.admit([Part(param, state)], len(grad)), [grad], [motion])


def zeros(rule, runs, n, dtype=torch.float32):
    return rule.init_state(torch.zeros(runs, n, dtype=dtype))


@pytest.mark.parametrize("name", HYPERADAM_OPTIONS)
def test_steps_in_parts_equal_the_rule_on_one_vector(name):
    rule, n = make_rule(HYPERADAM_OPTIONS[name]), sum(SIZES)
    kernel, grads = TritonKernel(rule), gradients(3, RUNS, n)
    start = 0.01 * gradients(1, RUNS, n, seed=1)[0]
    params = [x.contiguous() for x in start.split(SIZES, -1)]
    states = [zeros(rule, RUNS, size) for size in SIZES]
    for g in grads:
        shares = [x.contiguous() for x in g.split(SIZES, -1)]
        batch = kernel.admit([Part(*x) for x in zip(params, states, strict=True)], RUNS)
        move(kernel, batch, shares, [Motion(STEP, decay) for decay in DECAY])

    for dtype in (torch.float64, torch.float32):
        reference, w = twin(rule, dtype), start.to(dtype)
        state = zeros(reference, RUNS, n, dtype)
        decay = torch.tensor(DECAY, dtype=dtype).repeat_interleave(torch.tensor(SIZES))
        with torch.no_grad():
            for g in grads.to(dtype):
                d, state = reference(g, state)
                w = w - STEP * (d + decay * w)
        # a sum of J terms of either sign
        assert error(torch.cat(params, -1), w) < 3e-6
        for field, *values, expected in zip(HyperAdamState._fields, *states, state, strict=True):
            assert error(torch.cat(values, -1), expected) < 1e-6, (field, dtype)


def test_relative_steps_have_a_scale_for_each_part_and_run():
    options = {"candidates": 7, "decay_bound": 0.97}
    plain, relative = make_rule(options), make_rule({**options, "relative": True})
    n, shapes = sum(SIZES), [(1, 37), (0,), (6,)]
    grads, start = gradients(3, RUNS, n), 0.01 * gradients(1, RUNS, n, seed=1)[0]
    sizes = torch.tensor([[[0.2], [0.1]], [[0.1], [0.1]], [[0.05], [3.0]]])
    ends = {}
    for name, rule, memories in (
        ("plain", plain, [None] * 3),
        ("ones", relative, [torch.full((RUNS, 1), 0.1)] * 3),
        ("scaled", relative, list(sizes)),
    ):
        kernel = TritonKernel(rule)
        params = [x.contiguous() for x in start.split(SIZES, -1)]
        states = [zeros(rule, RUNS, size) for size in SIZES]
        parts = [Part(*x) for x in zip(params, states, shapes, memories, strict=True)]
        batch = kernel.admit(parts, RUNS)
        for g in grads:
            shares = [x.contiguous() for x in g.split(SIZES, -1)]
            move(kernel, batch, shares, [Motion(STEP, decay) for decay in DECAY])
        ends[name] = torch.cat(params, -1)
    assert torch.equal(ends["plain"], ends["ones"])

    reference, w = twin(plain, torch.float64), start.double()
    state = zeros(reference, RUNS, n, torch.float64)
    decay = torch.tensor(DECAY, dtype=torch.float64).repeat_interleave(torch.tensor(SIZES))
    # a vector counts by half
    scale = torch.tensor([[2.0, 1.0, 1.0], [1.0, 1.0, 30.0**0.5]], dtype=torch.float64)
    scale = scale.repeat_interleave(torch.tensor(SIZES), dim=1)
    with torch.no_grad():
        for g in grads.double():
            d, state = reference(g, state)
            w = w - STEP * (scale * d + decay * w)
    assert error(ends["scaled"], w) < 3e-6
    assert error(ends["plain"], w) > 1e-2


def test_sums_beyond_float32_are_right():
    """Each square fits float32, their sum does not; and the step that follows is the rule's."""
    rule = make_rule({"candidates": 3, "decay_bound": 0.97})
    kernel, n = TritonKernel(rule), 4096
    grad = torch.full((1, n), 3e18)
    state = zeros(rule, 1, n)
    state.m.fill_(2e18)
    (total,) = totals(kernel, grad, state, torch.zeros(1, n))
    expected = torch.tensor([[3e18**2 * n, *[2e18**2 * n] * 3]], dtype=torch.float64)
    torch.testing.assert_close(total, expected, rtol=1e-6, atol=0)

    here = HyperAdamState(*(x[..., :40].contiguous() for x in state))
    reference = twin(rule, torch.float64)
    with torch.no_grad():
        exact = HyperAdamState(*(x.double() for x in here))
        d, new = reference(grad[:, :40].double(), exact, (total,))
    param = torch.zeros(1, 40)
    batch = kernel.admit([Part(param, here)])
    kernel.take(batch, [grad[:, :40].contiguous()])
    kernel.step_(batch, (total,), [Motion(1.0)])
    assert error(param, -d) < 3e-6
    for value, expected in zip(here, new, strict=True):
        assert error(value, expected) < 1e-6


def test_few_programs_share_many_coordinates(monkeypatch):
    monkeypatch.setattr(hyperadam, "SHARES", 2)
    rule = make_rule({"candidates": 7, "normalize_state": True})
    kernel, (g, m) = TritonKernel(rule), gradients(2, 1, 333)
    state = zeros(rule, 1, 333)
    state.m.copy_(m * torch.arange(1, 8)[:, None])
    reference = twin(rule, torch.float64)
    with torch.no_grad():
        exact = HyperAdamState(*(x.double() for x in state))
        expected = reference.total_sums(lambda sums: reference.column_sums(g.double(), exact, sums))
    for actual, total in zip(totals(kernel, g, state, m), expected, strict=True):
        assert actual.dtype == torch.float64
        torch.testing.assert_close(actual, total, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["paper", "bounded", "neither-normalized"])
def test_zero_gradients_leave_all_finite_and_the_param_alone(name):
    rule = make_rule(HYPERADAM_OPTIONS[name])
    kernel, state, param = TritonKernel(rule), zeros(rule, 1, 20), torch.ones(1, 20)
    for _ in range(2):
        step(kernel, torch.zeros(1, 20), state, param, Motion(STEP))
    assert torch.equal(param, torch.ones(1, 20))
    assert all(x.isfinite().all() for x in state)


def test_saturated_gates_and_decay_rates_match_the_rule():
    rule = make_rule({}, seed=3)
    with torch.no_grad():
        for value in rule.parameters():
            value *= 20
    kernel, reference, grads = TritonKernel(rule), twin(rule, torch.float64), gradients(10, 1, 32)
    state, expected = zeros(rule, 1, 32), zeros(rule, 1, 32, torch.float64)
    param, w = torch.zeros(1, 32), torch.zeros(1, 32, dtype=torch.float64)
    for g in grads:
        step(kernel, g, state, param, Motion(1.0))
        with torch.no_grad():
            d, expected = reference(g.double(), expected)
        w -= d
    assert error(param, w) < 1e-4


def test_a_kernel_follows_its_rule():
    rule, (g,) = make_rule({"candidates": 3}), gradients(1, 1, 20)
    kernel, moved = TritonKernel(rule), []
    for _ in range(2):
        moved.append(torch.zeros(1, 20))
        step(kernel, g, zeros(rule, 1, 20), moved[-1], Motion(1.0))
        with torch.no_grad():
            expected, _ = rule(g, zeros(rule, 1, 20))
            rule.b_q += 1
        assert error(moved[-1], -expected) < 3e-6
    assert error(*moved) > 1e-2


def one_step(rule, state, seed):
    g = gradients(1, 1, state.m.shape[-1])[0]
    step(TritonKernel(rule, state.m.dtype), g, state, torch.zeros_like(g), Motion(STEP, seed=seed))
    return state


def test_bfloat16_state_is_rounded_by_chance():
    rule, n = make_rule({"candidates": 14, "decay_bound": 0.97}), 125
    start = one_step(rule, zeros(rule, 1, n, torch.bfloat16), seed=4)
    full = one_step(rule, HyperAdamState(*(x.float() for x in start)), seed=5)
    state, again, other = (
        # each from a copy
        one_step(rule, HyperAdamState(*(x.clone() for x in start)), seed)
        for seed in (5, 5, 6)
    )
    every = []
    for field, exact, x, y, z in zip(state._fields, full, state, again, other, strict=True):
        assert x.dtype == torch.bfloat16
        assert torch.equal(x, y), field
        assert not torch.equal(x, z), field
        off = (x.double() - exact.double()) / exact.double().abs()
        assert off.abs().max() < 2**-7, field
        # one deviates by 2^-8 at most, the mean of 1750 by a 40th of that
        assert off.mean().abs() < 4 * 2**-8 / 40, field
        every.append(off[0])
    # rows and fields go their own ways: variances add up
    off = torch.cat(every)
    assert 0.5 < off.sum(0).var() / off.var(1).sum() < 1.5


@triton.jit
def rounded_up(x, y, BLOCK: tl.constexpr):
    """``y = x`` with the largest noise there is."""
    at = tl.arange(0, BLOCK)[None, :]
    device.store(y, tl.load(x + at), at * 0 + 0xFFFF, 0, 1, 0, at, BLOCK)


def test_infinite_and_undefined_numbers_survive_rounding():
    x, y = torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0]), torch.zeros(4).bfloat16()
    x.view(torch.int32)[2] = 2**31 - 1  # all bits, as NVIDIA's GPUs have it: noise would carry over
    rounded_up[(1,)](x, y, BLOCK=4)
    torch.testing.assert_close(y.float(), x, rtol=0, atol=0, equal_nan=True)


def test_params_of_several_dtypes_move_alike():
    rule, (g,) = make_rule({"candidates": 3, "decay_bound": 0.97}), gradients(1, 1, 20)
    kernel, start = TritonKernel(rule), torch.arange(20.0)[None] / 4
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    parts = [Part(start.to(dtype), zeros(rule, 1, 20)) for dtype in dtypes]
    move(kernel, kernel.admit(parts), [g] * 3, [Motion(STEP, 0.5)] * 3)
    full, brain, half = (part.param for part in parts)
    assert torch.equal(half, full.half())
    # the interpreter cuts off where a GPU rounds to nearest
    assert torch.equal(brain, (full.view(torch.int32) & -65536).view(torch.float32).bfloat16())


def test_many_parts_take_few_launches():
    rule, n = make_rule({"candidates": 3}), 100
    part = Part(torch.zeros(1, n), zeros(rule, 1, n))
    entries = 300 * [launch.Entry(torch.zeros(1, n), part, Motion(STEP))]
    first, second = launch.launches(entries, block=32)
    assert (first.programs, second.programs) == (4 * 256, 4 * 44)
    (limited,) = launch.launches(entries[:2], block=32, limit=3)
    assert limited.programs == 6


def test_what_it_cannot_do_is_refused():
    rule = make_rule({"candidates": 3})
    kernel, g = TritonKernel(rule), torch.zeros(1, 4)
    with pytest.raises(ValueError, match="rule must be a HyperAdamRule, got DMRule"):
        TritonKernel(DMRule())
    with pytest.raises(
        ValueError, match=r"state_dtype must be float32 or bfloat16, got torch.float64"
    ):
        TritonKernel(rule, torch.float64)
    good = Part(g.clone(), zeros(rule, 1, 4))
    with pytest.raises(ValueError, match=r"m has dtype torch.float64, expected torch.float32"):
        kernel.admit([good._replace(state=zeros(rule, 1, 4, torch.float64))])
    with pytest.raises(
        ValueError, match=r"param has dtype torch.float64, which backend 'triton' does not take"
    ):
        kernel.admit([good._replace(param=g.double())])
    with pytest.raises(ValueError, match=r"gradient has dtype torch.float64"):
        kernel.take(kernel.admit([good]), [g.double()])
