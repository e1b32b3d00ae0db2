"""HyperAdam2's step on every backend against the rule itself in float64."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hyperadam.kernels import Motion, Part, TensorStepper, available, make_kernel, rounds
from hyperadam.kernels.tensors import TensorKernel
from hyperadam.rules import HyperAdam2Rule
from hyperadam.rules.hyperadam2 import Stage
from hyperadam.rules.pace import pace
from tests.kernels.test_agreement import error, tame_gradients, threads, twice  # noqa: F401
from tests.optim.toy_device import TOY, ToyDevice
from tests.rules.test_hyperadam2 import rule2, train

BACKENDS = available()
NATIVE = [name for name in BACKENDS if name not in ("triton", "torch")]
SHAPES = [(1,), (63,), (64,), (5, 13), (1023,), (17, 241), (8, 3, 3, 3), (0,), (9000,), (70, 90)]


def part_of(rule, w, runs=1, dtype=torch.float32):
    """A part for weights ``(runs, *shape)``, or ``(*shape)`` of one run."""
    shape = w.shape[1:] if runs > 1 else w.shape
    flat = w.reshape(runs, -1)
    state = rule.State(*(x.to(dtype) for x in rule.init_state(flat.float())))
    return Part(w, state, shape, rule.init_memory(flat.double().square().mean(1).sqrt()))


def move(kernel, batch, grads, motions):
    kernel.take(batch, grads)
    kernel.step_(batch, (), motions)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("total", [0, 20])
def test_steps_equal_the_rule(backend, total):
    rule = rule2().requires_grad_(False)
    kernel = make_kernel(rule, backend)
    assert kernel.name == backend
    start = [0.2 * torch.randn(shape) for shape in SHAPES]
    moved = [w.clone() for w in start]
    parts = [part_of(rule, w) for w in moved]
    batch = kernel.admit(parts)
    grads = [tame_gradients(25, *shape) for shape in SHAPES]
    for t in range(25):
        motions = [Motion(0.01, 0.1, 0, t + 1, total)] * len(parts)
        move(kernel, batch, [g[t] for g in grads], motions)
    for w, part, g, before in zip(moved, parts, grads, start, strict=True):
        if not w.numel():
            continue
        with torch.no_grad():
            expected, state, memory = train(
                twice(rule), before.double(), g.double(), total, decay=0.1
            )
        # what a step rounds goes into the next one's memory, and so grows a little
        assert error(w - before, expected - before) < 1e-4
        for mine, exact in zip(part.state, state, strict=True):
            assert error(mine.view_as(exact), exact) < 1e-6
        torch.testing.assert_close(part.memory[0].double(), memory, rtol=1e-4, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_runs_with_weights_of_their_own(backend):
    rules = [rule2(seed) for seed in range(3)]
    joint = HyperAdam2Rule()
    for name, _ in list(joint.named_parameters()):
        values = torch.stack([getattr(rule, name).detach() for rule in rules])
        setattr(joint, name, torch.nn.Parameter(values, requires_grad=False))
    start, grads = 0.1 * torch.randn(3, 7, 30), tame_gradients(10, 3, 7, 30)
    together = start.clone()
    kernel = make_kernel(joint, backend)
    batch = kernel.admit([part_of(joint, together, runs=3)], runs=3)
    for t, g in enumerate(grads, start=1):
        move(kernel, batch, [g], [Motion(0.01, step=t, total=10)])
    for run, rule in enumerate(rules):
        kernel, alone = make_kernel(rule.requires_grad_(False), backend), start[run].clone()
        batch = kernel.admit([part_of(rule, alone)])
        for t, g in enumerate(grads, start=1):
            move(kernel, batch, [g[run].contiguous()], [Motion(0.01, step=t, total=10)])
        if backend == "torch":  # products of matrices of another size round differently
            torch.testing.assert_close(together[run], alone)
        else:
            assert torch.equal(together[run], alone)
    if backend != "torch":
        kernel = make_kernel(joint, backend)
        right = kernel.admit([part_of(joint, together, runs=3)], runs=3)
        wrong = kernel.admit([part_of(joint, together[:2], runs=2)], runs=2)
        for _ in range(2):  # also where the weights are packed already
            with pytest.raises(ValueError, match="weights for 3 runs, expected 2"):
                move(kernel, wrong, [grads[0, :2]], [Motion(0.01)])
            move(kernel, right, [grads[0]], [Motion(0.01)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(67, 80), (67, 81), (130, 160), (300, 20)])
def test_a_run_in_company_is_the_run_alone(backend, shape):
    """Also where a matrix is cut into blocks, and the last of them is filled up."""
    rule = rule2().requires_grad_(False)
    start, grads = 0.2 * torch.randn(3, *shape), tame_gradients(4, 3, *shape)
    ends = []
    for runs in (slice(0, 3), slice(0, 1), slice(1, 2), slice(2, 3)):
        w = start[runs].clone()
        kernel, count = make_kernel(rule, backend), len(w)
        batch = kernel.admit([part_of(rule, w if count > 1 else w[0], count)], count)
        for t, g in enumerate(grads[:, runs]):
            given = g.contiguous() if count > 1 else g[0].contiguous()
            move(kernel, batch, [given], [Motion(0.01, step=t + 1, total=4)])
        ends.append(w)
    torch.testing.assert_close(ends[0], torch.cat(ends[1:]), rtol=1e-4, atol=1e-6)
    assert not torch.equal(ends[0][0], ends[0][1])


@pytest.mark.parametrize("backend", NATIVE)
def test_one_and_two_threads_give_the_same_bits(backend, threads):  # noqa: F811
    rule, g = rule2().requires_grad_(False), tame_gradients(1, 300_000)[0]
    results = []
    for count in (1, 2):
        threads(count)
        kernel, w = make_kernel(rule, backend), torch.ones(300_000)
        batch = kernel.admit([part := part_of(rule, w)])
        for t in range(1, 4):
            move(kernel, batch, [g], [Motion(0.01, step=t)])
        results.append([w, *part.state, part.memory])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_pieces_with_shared_sums_are_the_whole(backend):
    """A tensor cut in two, as by FSDP2: each piece steps, the sums are added, both remember them.
    What of it is turned is turned as a whole."""
    rule, grads = rule2().requires_grad_(False), tame_gradients(10, 20, 30)
    start = 0.3 * torch.randn(20, 30)
    kernel, whole = make_kernel(rule, backend), start.clone()
    batch = kernel.admit([part_of(rule, whole)])
    pieces = [start[:13].clone(), start[13:].clone()]
    memory = part_of(rule, start).memory
    parts = [
        part_of(rule, piece)._replace(shape=(20, 30), memory=memory.clone()) for piece in pieces
    ]
    batches = [kernel.admit([part]) for part in parts]
    for t, g in enumerate(grads, start=1):
        motions = [Motion(0.01, step=t, total=9)]
        move(kernel, batch, [g], motions)
        halves = g[:13].contiguous(), g[13:].contiguous()
        totals = in_step(kernel, batches, halves, motions)
        for own in batches:
            kernel.remember(own, sum(totals))
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-5, atol=1e-7)
    kernel.take(batches[0], [halves[0]])
    with pytest.raises(RuntimeError, match=r"a piece of a matrix of shape \(20, 30\)"):
        kernel.move(batches[0], motions)


def in_step(kernel, batches, grads, motions):
    """Move the pieces of a matrix (20, 30), each in a thread of its own, as ranks do."""
    meet, mixtures = threading.Barrier(len(batches)), [None] * len(batches)

    def gather(rank):
        def turned(number, mixture):
            mixtures[rank] = mixture
            meet.wait(timeout=60)
            whole = kernel.direction(torch.cat(mixtures, dim=1), (20, 30))
            meet.wait(timeout=60)  # nobody goes on while a mixture is read
            return whole.split([x.shape[1] for x in mixtures], dim=1)[rank].contiguous()

        return turned

    def one(rank):
        kernels[rank].take(batches[rank], [grads[rank]])
        return kernels[rank].move(batches[rank], motions, gather(rank))

    kernels = [kernel] * len(batches)
    with ThreadPoolExecutor(len(batches)) as pool:
        return list(pool.map(one, range(len(batches))))


@pytest.mark.parametrize("backend", BACKENDS)
def test_rounds_change_nothing(backend, monkeypatch):
    """However many matrices have room for their mixtures at a time."""
    rule = rule2().requires_grad_(False)
    shapes = [(5, 13), (7,), (17, 24), (5, 13), (1, 9), (17, 24)]
    start = [0.2 * torch.randn(shape) for shape in shapes]
    grads = [tame_gradients(3, *shape) for shape in shapes]
    moved = []
    for limit in (2**20, 500, 1):
        monkeypatch.setattr(rounds, "LIMIT", limit)
        here = [w.clone() for w in start]
        kernel = make_kernel(rule, backend)
        batch = kernel.admit([part_of(rule, w) for w in here])
        for t in range(3):
            move(kernel, batch, [g[t] for g in grads], [Motion(0.01, 0.1, step=t + 1)] * 6)
        moved.append((len(batch.rounds), torch.cat([w.view(-1) for w in here])))
    assert [count for count, _ in moved] == [1, 2, 4]
    for _, w in moved[1:]:
        torch.testing.assert_close(w, moved[0][1], rtol=0, atol=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_zero_and_huge_gradients_stay_finite(backend):
    rule = rule2().requires_grad_(False)
    kernel, w = make_kernel(rule, backend), torch.ones(200)
    batch = kernel.admit([part := part_of(rule, w)])
    for t in range(1, 40):
        g = torch.zeros(200)
        if t > 5:
            g[:100] = 1.8e19 * torch.randn(100).sign() if t % 2 else 1e-25
        move(kernel, batch, [g], [Motion(0.01, step=t)])
        assert all(x.isfinite().all() for x in (w, part.memory, *part.state))
    assert torch.equal(w[100:], torch.ones(100))


@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16_state_gradients_and_parameters(backend):
    rule = rule2().requires_grad_(False)
    kernel = make_kernel(rule, backend, torch.bfloat16)
    w = torch.randn(5000).bfloat16()
    batch = kernel.admit([part := part_of(rule, w, dtype=torch.bfloat16)])
    for t, g in enumerate(tame_gradients(6, 5000).bfloat16(), start=1):
        before, old = w.float(), rule.State(*(x[0].float() for x in part.state))
        control = rule.control(part.memory[0], Stage(t, 0, (5000,)))
        update, new = rule(g.float(), old, control)
        move(kernel, batch, [g], [Motion(0.05, seed=t, step=t)])
        exact = (before - 0.05 * control.size * update).bfloat16()
        torch.testing.assert_close(w, exact, rtol=2**-7, atol=1e-4)
        assert (w == exact).float().mean() > 0.99  # to the nearest
        for mine, expected in zip(part.state, new, strict=True):
            torch.testing.assert_close(mine[0].float(), expected, rtol=2**-7, atol=1e-6)
            off = (mine[0].double() - expected.double()) / expected.double().abs().clamp(min=1e-3)
            assert off.mean().abs() < 3e-4  # right on average; always down would be 2.8e-3


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_door_refuses_what_the_kernel_cannot_read(backend):
    rule = rule2().requires_grad_(False)
    kernel, part = make_kernel(rule, backend), part_of(rule, torch.ones(10))
    wrong = {
        "memory is None, expected": part._replace(memory=None),
        "memory must be contiguous torch.float32": part._replace(memory=part.memory.double()),
        "memory must be contiguous torch.float32 on cpu, got torch.float32 on meta": part._replace(
            memory=part.memory.to("meta")
        ),
        r"memory has shape \(1, 5\), expected \(1, 8\)": part._replace(
            memory=part.memory[:, :5].contiguous()
        ),
        "m has dtype torch.float64": part._replace(
            state=part.state._replace(m=part.state.m.double())
        ),
        r"shape \(7,\) has fewer entries than param, 10": part._replace(shape=(7,)),
    }
    for message, bad in wrong.items():
        with pytest.raises(ValueError, match=message):
            kernel.admit([part, bad])


class NothingComesBack(TorchDispatchMode):
    """Refuses what a host would have to wait for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        device = torch.device(kwargs.get("device") or TOY)
        if "_local_scalar_dense" in func.name() or ("copy" in func.name() and device != TOY):
            raise AssertionError(f"{func} reads back from the device")
        return func(*args, **kwargs)


def test_a_step_on_another_device_waits_for_nothing():
    rule, grads = rule2().requires_grad_(False), tame_gradients(3, 4, 5)
    start, moved = torch.randn(4, 5), []
    with ToyDevice():
        for device in (torch.device("cpu"), TOY):
            there, w = copy.deepcopy(rule), start.clone().to(device)
            for name, x in rule.named_parameters():
                setattr(there, name, torch.nn.Parameter(x.to(device), requires_grad=False))
            kernel = make_kernel(there, "torch")
            part = part_of(rule, start)
            state = rule.State(*(x.to(device) for x in part.state))
            part = part._replace(param=w, state=state, memory=part.memory.to(device))
            batch = kernel.admit([part])
            for t, g in enumerate(grads, start=1):
                kernel.take(batch, [g.to(device)])
                with NothingComesBack() if device == TOY else nullcontext():
                    kernel.step_(batch, (), [Motion(0.01, 0.1, step=t, total=3)])
            moved.append(torch.cat([w.view(-1).cpu(), part.memory.view(-1).cpu()]))
    assert torch.equal(*moved)


def test_autocast_changes_no_bit():
    rule, g = rule2().requires_grad_(False), tame_gradients(1, 50)[0]
    moved = []
    for on in (False, True):
        kernel, w = make_kernel(rule, "torch"), torch.ones(50)
        batch = kernel.admit([part_of(rule, w)])
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            for t in range(1, 4):
                move(kernel, batch, [g], [Motion(0.01, step=t, total=9)])
        moved.append(w)
    assert torch.equal(*moved)


def test_a_kernel_follows_its_rule():
    """Whose meta-parameters may change in place, under a kernel that has seen them."""
    rule, g = rule2().requires_grad_(False), tame_gradients(1, 50)[0]
    for backend in BACKENDS:
        kernel, moved = make_kernel(rule, backend), []
        for shift in (0.0, 0.5, -0.5):
            rule.rho += shift
            moved.append(torch.zeros(50))
            batch = kernel.admit([part := part_of(rule, moved[-1])])
            control = rule.control(part.memory[0], Stage(1, 0, (50,)))
            expected, _ = rule(g, rule.init_state(g), control)
            move(kernel, batch, [g], [Motion(0.01)])
            torch.testing.assert_close(moved[-1], -0.01 * control.size * expected)
        assert error(moved[1], moved[0]) > 0.1


def test_other_sizes_are_left_to_torch():
    rule = HyperAdam2Rule(betas=(0.5, 0.9)).requires_grad_(False)
    assert type(make_kernel(rule)) is TensorKernel
    assert make_kernel(rule2().double()).name == "torch"


def test_a_stepper_takes_the_steps_of_its_pace():
    rule = rule2().requires_grad_(False)
    start, grads = 0.1 * torch.randn(2, 6, 5), tame_gradients(12, 2, 6, 5)
    w = start.clone()
    stepper = TensorStepper([w], rule, lr=0.02, total=10)
    for g in grads:
        stepper.step([g])
    kernel, expected = make_kernel(rule), start.clone()
    batch = kernel.admit([part_of(rule, expected, runs=2)], runs=2)
    for t, g in enumerate(grads, start=1):
        move(kernel, batch, [g], [Motion(0.02 * pace(t, 10, 0), step=t, total=10)])
    assert torch.equal(w, expected)
