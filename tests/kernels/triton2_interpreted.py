"""HyperAdam2's Triton kernel in Triton's interpreter, against the rule. Run by test_triton2.py, in a
process where TRITON_INTERPRET is set: a tenth of a second a program, so that sizes are small."""

import pytest
import torch

import hyperadam
from hyperadam.kernels import Motion, choice, make_kernel
from hyperadam.kernels.triton import TritonTensorKernel, hyperadam2
from hyperadam.rules import DMRule, HyperAdam2Rule
from hyperadam.rules.hyperadam2 import Stage
from tests.kernels.test_agreement import error, tame_gradients, twice
from tests.kernels.test_tensors import move, part_of
from tests.rules.test_hyperadam2 import rule2, train

#: The first has more coordinates than a program takes at a time.
SHAPES = [(23, 29), (1,), (0,), (3, 2, 2, 2)]


@pytest.mark.parametrize("total", [0, 4])
@pytest.mark.parametrize("units", [8, 3])
def test_steps_equal_the_rule(total, units):
    rule = rule2(units=units).requires_grad_(False)
    kernel, steps = TritonTensorKernel(rule), 5
    start = [0.2 * torch.randn(shape) for shape in SHAPES]
    moved = [w.clone() for w in start]
    parts = [part_of(rule, w) for w in moved]
    batch = kernel.admit(parts)
    grads = [tame_gradients(steps, *shape) for shape in SHAPES]
    for t in range(steps):
        motions = [Motion(0.01, 0.1, 0, t + 1, total)] * len(parts)
        move(kernel, batch, [g[t] for g in grads], motions)
    for w, part, g, before in zip(moved, parts, grads, start, strict=True):
        if not w.numel():
            assert not part.memory[:, 1:].any()
            continue
        with torch.no_grad():
            exact = train(twice(rule), before.double(), g.double(), total, decay=0.1)
        expected, state, memory = exact
        # what is left of w when its start is taken off has few digits
        assert error(w - before, expected - before) < 1e-4
        assert error(w, expected) < 1e-6
        for mine, value in zip(part.state, state, strict=True):
            assert error(mine.view_as(value), value) < 1e-6
        torch.testing.assert_close(part.memory[0].double(), memory, rtol=1e-5, atol=0)


def test_few_programs_share_many_coordinates(monkeypatch):
    monkeypatch.setattr(hyperadam2, "SHARES", 2)
    monkeypatch.setattr(hyperadam2, "BLOCK", 64)
    monkeypatch.setattr(hyperadam2, "CHUNK", 1)  # a sum of several chunks
    rule, g = rule2().requires_grad_(False), tame_gradients(1, 333)[0]
    kernel, w = TritonTensorKernel(rule), torch.randn(333)
    batch = kernel.admit([part := part_of(rule, w)])
    kernel.take(batch, [g])
    totals = kernel.move(batch, [Motion(0.01)])
    assert totals.dtype == torch.float64
    exact = rule.State(*(x[0].double() for x in part.state))
    sums = [w.double().square().sum().view(1), rule.column_sums(g, exact, ())]
    torch.testing.assert_close(totals[0, 0], torch.cat(sums), rtol=1e-6, atol=0)


def test_runs_with_weights_of_their_own():
    rules, joint = [rule2(seed) for seed in range(2)], HyperAdam2Rule()
    for name, _ in list(joint.named_parameters()):
        values = torch.stack([getattr(rule, name).detach() for rule in rules])
        setattr(joint, name, torch.nn.Parameter(values, requires_grad=False))
    start, grads = 0.1 * torch.randn(2, 7, 5), tame_gradients(3, 2, 7, 5)
    together, kernel = start.clone(), TritonTensorKernel(joint)
    batch = kernel.admit([part_of(joint, together, runs=2)], runs=2)
    for t, g in enumerate(grads, start=1):
        move(kernel, batch, [g], [Motion(0.01, step=t, total=10)])
    for run, rule in enumerate(rules):
        kernel, alone = TritonTensorKernel(rule.requires_grad_(False)), start[run].clone()
        batch = kernel.admit([part_of(rule, alone)])
        for t, g in enumerate(grads, start=1):
            move(kernel, batch, [g[run].contiguous()], [Motion(0.01, step=t, total=10)])
        torch.testing.assert_close(together[run], alone)
    three = torch.zeros(3, 5)
    kernel = TritonTensorKernel(joint)
    batch = kernel.admit([part_of(joint, three, runs=3)], runs=3)
    with pytest.raises(ValueError, match="weights for 2 runs, expected 3"):
        move(kernel, batch, [three], [Motion(0.01)])


def test_runs_that_share_their_weights():
    rule = rule2().requires_grad_(False)
    start, g = 0.1 * torch.randn(2, 30), tame_gradients(1, 2, 30)[0]
    moved = []
    for kernel in (TritonTensorKernel(rule), make_kernel(rule, "torch")):
        moved.append(start.clone())
        batch = kernel.admit([part_of(rule, moved[-1], runs=2)], runs=2)
        move(kernel, batch, [g], [Motion(0.01)])
    torch.testing.assert_close(*moved)


def test_pieces_with_shared_sums_are_the_whole():
    rule, grads = rule2(orthogonal=False).requires_grad_(False), tame_gradients(3, 8, 9)
    start = 0.3 * torch.randn(8, 9)
    kernel, whole = TritonTensorKernel(rule), start.clone()
    batch = kernel.admit([part_of(rule, whole)])
    pieces = [start[:5].clone(), start[5:].clone()]
    memory = part_of(rule, start).memory
    parts = [part_of(rule, piece)._replace(shape=(8, 9), memory=memory.clone()) for piece in pieces]
    batches = [kernel.admit([part]) for part in parts]
    for t, g in enumerate(grads, start=1):
        motions = [Motion(0.01, step=t, total=9)]
        move(kernel, batch, [g], motions)
        totals = []
        for own, piece in zip(batches, (g[:5].contiguous(), g[5:].contiguous()), strict=True):
            kernel.take(own, [piece])
            totals.append(kernel.move(own, motions))
        for own in batches:
            kernel.remember(own, sum(totals))
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-5, atol=1e-7)


def test_zero_and_huge_gradients_stay_finite():
    rule = rule2().requires_grad_(False)
    kernel, w = TritonTensorKernel(rule), torch.ones(100)
    batch = kernel.admit([part := part_of(rule, w)])
    for t in range(1, 7):
        g = torch.zeros(100)
        if t > 2:
            g[:50] = 1.8e19 * torch.randn(50).sign() if t % 2 else 1e-25
        move(kernel, batch, [g], [Motion(0.01, step=t)])
        assert all(x.isfinite().all() for x in (w, part.memory, *part.state))
    assert torch.equal(w[50:], torch.ones(50))
    # each square fits float32, their sum does not
    kernel.take(batch, [torch.full((100,), 1.8e19)])
    totals = kernel.move(batch, [Motion(0.01, step=7)])
    torch.testing.assert_close(totals[0, 0, 1].item(), 100 * 1.8e19**2, rtol=1e-6, atol=0)


def one_step(rule, state, seed):
    """The state after a step from ``state``, which is left as it was."""
    n = state.m.shape[-1]
    part = part_of(rule, torch.zeros(n))._replace(state=rule.State(*(x.clone() for x in state)))
    kernel = TritonTensorKernel(rule, state.m.dtype)
    move(kernel, kernel.admit([part]), [tame_gradients(1, n)[0]], [Motion(0.01, seed=seed)])
    return part.state


def test_bfloat16_state_is_rounded_by_chance():
    rule, n = rule2().requires_grad_(False), 1750
    start = part_of(rule, torch.zeros(n), dtype=torch.bfloat16).state
    start = one_step(rule, start, seed=4)
    full = one_step(rule, rule.State(*(x.float() for x in start)), seed=5)
    state, again, other = (one_step(rule, start, seed) for seed in (5, 5, 6))
    every = []
    for field, exact, x, y, z in zip(state._fields, full, state, again, other, strict=True):
        assert x.dtype == torch.bfloat16
        assert torch.equal(x, y), field
        off = (x.double() - exact.double()) / exact.double().abs()
        assert off.abs().max() < 2**-7, field
        for row, again_by_chance in zip(x[0], z[0], strict=True):
            assert not torch.equal(row, again_by_chance), field
        # one deviates by 2^-8 at most, the mean of 1750 by a 40th of that
        assert (off.mean(-1).abs() < 4 * 2**-8 / 40).all(), field
        every.append(off[0])
    # rows and fields go their own ways
    together = torch.corrcoef(torch.cat(every))
    assert (together - torch.eye(5)).abs().max() < 0.15


def test_dtypes_of_params_and_gradients():
    rule, (g,) = rule2().requires_grad_(False), tame_gradients(1, 20)
    kernel, start = TritonTensorKernel(rule), torch.arange(20.0) / 4
    g = g.bfloat16().half().float()  # which all three hold
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    params = [start.to(dtype) for dtype in dtypes]
    parts = [part_of(rule, p) for p in params]
    batch = kernel.admit(parts)
    move(kernel, batch, [g.to(dtype) for dtype in dtypes], [Motion(0.01, 0.5)] * 3)
    full, brain, half = params
    assert torch.equal(half, full.half())
    # the interpreter cuts off where a GPU rounds to nearest
    assert torch.equal(brain, (full.view(torch.int32) & -65536).view(torch.float32).bfloat16())
    for part in parts[1:]:
        for x, y in zip(part.state, parts[0].state, strict=True):
            assert torch.equal(x, y)
    # what is remembered is what was stored
    sizes = [part.memory[0, 1].item() for part in parts]
    assert sizes[1:] == pytest.approx([p.double().square().mean().item() for p in params[1:]])


def test_many_parts_take_few_launches():
    rule = rule2().requires_grad_(False)
    kernel, n = TritonTensorKernel(rule), 1025
    batch = kernel.admit([part_of(rule, torch.zeros(n))] * 300)
    batch.grads = [torch.zeros(1, n)] * 300
    first, second = kernel._launches(batch, [Motion(0.01)] * 300, batch.rounds[0])
    assert (first.parts, second.parts) == (256, 44)
    assert (first.programs, second.programs) == (3 * 256, 3 * 44)
    # the second one's parts are the batch's last
    assert second.table[3, :44].tolist() == list(range(256, 300))


def test_a_kernel_follows_its_rule():
    rule, (g,) = rule2().requires_grad_(False), tame_gradients(1, 20)
    kernel, moved = TritonTensorKernel(rule), []
    for _ in range(3):
        w = torch.zeros(20)
        moved.append(w)
        batch = kernel.admit([part := part_of(rule, w)])
        control = rule.control(part.memory[0], Stage(1, 0, (20,)))
        expected, _ = rule(g, rule.init_state(g), control)
        move(kernel, batch, [g], [Motion(0.01)])
        assert error(w, -0.01 * control.size * expected) < 3e-6
        # the weight field's own meta-parameters, then the TensorCell's
        (rule.b_3 if len(moved) == 1 else rule.rho).add_(1)
    assert error(moved[1], moved[0]) > 1e-2
    assert error(moved[2], moved[1]) > 1e-2


def test_the_optimizer_on_this_backend(monkeypatch):
    """All of a step behind ``opt.step()``, as on a GPU, two groups and a checkpoint in between."""
    rule = rule2().requires_grad_(False)
    start = [0.2 * torch.randn(shape) for shape in ((4, 6), (6,))]
    grads = [[tame_gradients(1, *w.shape, seed=t)[0] for w in start] for t in range(4)]

    def trained(backend):
        monkeypatch.setattr(choice, "_choose", lambda *_: backend)

        def made():
            groups = [
                {"params": [w], "weight_decay": decay}
                for w, decay in zip(params, (0.1, 0.0), strict=True)
            ]
            return hyperadam.HyperAdam2(groups, weights=rule, total_steps=4)

        params = [w.clone().requires_grad_() for w in start]
        opt = made()
        for t, now in enumerate(grads):
            if t == 2:
                saved, opt = opt.state_dict(), made()
                opt.load_state_dict(saved)
            for p, g in zip(params, now, strict=True):
                p.grad = g
            opt.step()
        assert backend in repr(opt)
        return [*params, *(opt.state[p]["memory"] for p in params)]

    for mine, expected in zip(trained("triton"), trained("torch"), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-7)


def test_what_it_cannot_do_is_refused():
    rule = rule2().requires_grad_(False)
    kernel, g = TritonTensorKernel(rule), torch.zeros(4)
    with pytest.raises(ValueError, match="rule must be a HyperAdam2Rule, got DMRule"):
        TritonTensorKernel(DMRule())
    for options in ({"betas": (0.0, 0.9)}, {"betas": (0.1, 0.5, 0.9, 0.95)}, {"gammas": (0.99,)}):
        with pytest.raises(ValueError, match="rule must have betas of 0 and 3 others and 2 gammas"):
            TritonTensorKernel(HyperAdam2Rule(**options))
        assert not choice._fits("triton", "cuda", torch.float32, HyperAdam2Rule(**options))
    assert choice._fits("triton", "cuda", torch.float32, HyperAdam2Rule(units=5, hidden=3))
    assert not choice._fits("triton", "cpu", torch.float32, rule)
    with pytest.raises(
        ValueError, match=r"state_dtype must be float32 or bfloat16, got torch.float64"
    ):
        TritonTensorKernel(rule, torch.float64)
    good = part_of(rule, g.clone())
    with pytest.raises(
        ValueError, match=r"param has dtype torch.float64, which backend 'triton' does not take"
    ):
        kernel.admit([good._replace(param=g.double())])
    with pytest.raises(ValueError, match=r"gradient has dtype torch.float64"):
        kernel.take(kernel.admit([good]), [g.double()])
