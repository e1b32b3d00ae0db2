"""Directions of matrices in C++ against the rule's in float64, and what a step makes of them."""

import pytest
import torch

from hyperadam.kernels import Motion, machine, make_kernel
from hyperadam.rules.orthogonal import SIZE, orthogonal
from tests.kernels.test_agreement import error, tame_gradients, threads, twice  # noqa: F401
from tests.kernels.test_tensors import NATIVE, move, part_of
from tests.rules.test_hyperadam2 import rule2, train

#: Wide and tall, in one block and in several, with rows that fill vectors and that do not.
SHAPES = [
    (2, 2),
    (3, 50),
    (50, 3),
    (20, 20),
    (17, 16),
    (32, 32),
    (33, 33),
    (32, 64),
    (64, 65),
    (31, 2100),
    (2100, 31),
    (65, 65),
    (200, 40),
    (97, 128),
    (1025, 40),
    (8, 3, 3, 3),
    (64, 3, 3, 3),
]


def made_by(backend):
    return make_kernel(rule2().requires_grad_(False), backend).direction


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_directions_are_the_rules(backend, shape):
    d = torch.randn(3, torch.Size(shape).numel())
    made, exact = made_by(backend)(d, shape), orthogonal(d.double(), shape)
    for mine, own in zip(made, exact, strict=True):
        assert error(mine, own) < 1e-4


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("shape", [(3, 4), (40, 70), (70, 9)], ids=str)
def test_size_and_sign_and_zeros_of_directions(backend, shape):
    direction, d = made_by(backend), torch.randn(2, shape[0] * shape[1])
    made = direction(d, shape)
    for factor in (1e-9, 1e-6, 1e6, 1e10):
        torch.testing.assert_close(direction(factor * d, shape), made, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(direction(-d, shape), -made)
    for power in range(0, 46, 3):
        assert direction(10.0**-power * d, shape).square().mean().sqrt() <= SIZE * (1 + 1e-5)
    d[0] = 0
    assert not direction(d, shape)[0].any()
    assert torch.equal(direction(d, shape)[1], made[1])


@pytest.mark.parametrize("backend", NATIVE)
def test_a_vector_is_its_own_direction(backend):
    for shape in [(7,), (1, 7), (7, 1)]:
        d = torch.randn(2, 7)
        assert torch.equal(made_by(backend)(d, shape), d)


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 13), (70, 90), (90, 20), (40, 64)], ids=str)
def test_a_matrix_moves_by_its_direction(backend, dtype, shape):
    """However its numbers are kept, and with its squares remembered."""
    rule = rule2().requires_grad_(False)
    kernel, w = make_kernel(rule, backend), (0.2 * torch.randn(shape)).to(dtype)
    g = tame_gradients(1, *shape)[0].to(dtype)
    with torch.no_grad():
        exact, _, memory = train(twice(rule), w.double(), g.double()[None], 9, decay=0.1)
    batch = kernel.admit([part := part_of(rule, w)])
    move(kernel, batch, [g], [Motion(0.01, 0.1, step=1, total=9)])
    if dtype == torch.float32:
        torch.testing.assert_close(w.double(), exact, rtol=1e-6, atol=1e-6)
    else:
        torch.testing.assert_close(w.double(), exact, rtol=2**-8, atol=1e-6)
        assert (w == exact.to(dtype)).float().mean() > 0.99  # to the nearest
    torch.testing.assert_close(part.memory[0].double(), memory, rtol=1e-4, atol=0)


@pytest.mark.parametrize("backend", NATIVE)
def test_threads_and_company_change_no_bit(backend, threads, monkeypatch):  # noqa: F811
    monkeypatch.setattr(machine, "is_busy", lambda: False)
    rule = rule2().requires_grad_(False)
    shapes = [(400, 300), (9, 20), (50,), (300, 400), (3000, 30)]
    start = [0.2 * torch.randn(2, *shape) for shape in shapes]
    grads = [tame_gradients(3, 2, *shape) for shape in shapes]
    ends = []
    for count, runs in ((1, [0, 1]), (2, [0, 1]), (1, [0]), (2, [1])):
        threads(count)
        moved = [w[runs].clone() for w in start]
        given = [w if len(runs) > 1 else w[0] for w in moved]
        kernel = make_kernel(rule, backend)
        batch = kernel.admit([part_of(rule, w, len(runs)) for w in given], len(runs))
        for t in range(3):
            motions = [Motion(0.01, 0.1, step=t + 1, total=3)] * len(shapes)
            move(kernel, batch, [g[t, runs].contiguous() for g in grads], motions)
        ends.append(torch.cat([w.view(len(runs), -1) for w in moved], dim=1))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], torch.cat(ends[2:]))


@pytest.mark.parametrize("backend", NATIVE)
def test_a_weight_field_of_zeros_is_one_too_small_to_count(backend):
    """It is left out where its last layer is zero."""
    ends = []
    for theta in (0.0, 1e-30):
        rule = rule2().requires_grad_(False)
        rule.theta_4.fill_(theta)
        w = [torch.ones(20, 30), torch.ones(1000)]
        kernel = make_kernel(rule, backend)
        batch = kernel.admit([part_of(rule, x) for x in w])
        for t in range(1, 5):
            torch.manual_seed(t)
            grads = [torch.randn_like(x) for x in w]
            move(kernel, batch, grads, [Motion(0.01, step=t, total=9)] * 2)
        ends.append(torch.cat([x.view(-1) for x in w]))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)
