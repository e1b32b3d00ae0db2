"""Orthogonal directions against singular values, and what they promise."""

import numpy as np
import pytest
import torch

from hyperadam.rules.orthogonal import BLOCK, SIZE, is_matrix, orthogonal
from tests.rules.test_hyperadam2 import turned

SHAPES = [
    (2, 2),
    (3, 50),
    (50, 3),
    (32, 32),
    (33, 33),
    (65, 65),
    (32, 200),
    (200, 32),
    (200, 40),
    (130, 300),
    (8, 3, 3, 3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_what_singular_values_give(shape):
    d = torch.randn(3, int(np.prod(shape)), dtype=torch.float64)
    made = orthogonal(d, shape)
    for run, own in zip(d, made, strict=True):
        expected = turned(run.view(shape[0], -1).numpy())
        np.testing.assert_allclose(own.view(shape[0], -1).numpy(), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float32_is_close_to_float64(shape):
    d = torch.randn(1, int(np.prod(shape)))
    exact = orthogonal(d.double(), shape)
    assert ((orthogonal(d, shape) - exact).norm() / exact.norm()) < 1e-4


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_values_are_brought_together(shape):
    torch.manual_seed(0)
    r, n = min(shape[0], int(np.prod(shape[1:])), BLOCK), int(np.prod(shape))
    x = torch.randn(shape[0], n // shape[0]).double()
    x = x @ torch.diag(torch.logspace(0, -1, x.shape[1], dtype=torch.float64))
    made = orthogonal(x.view(1, -1), shape).view_as(x)
    assert made.square().mean().sqrt().item() == pytest.approx(SIZE)
    if min(shape[0], n // shape[0]) <= BLOCK:  # one block
        before, after = torch.linalg.svdvals(x)[:r], torch.linalg.svdvals(made)[:r]
        assert after.max() / after.median() < 2 or r == 2
        assert before.max() / before.min() > after.max() / after.min()


def test_size_and_sign_and_zeros():
    d = torch.randn(2, 12)
    for factor in (1e-9, 1e-6, 1e6, 1e10):
        made = orthogonal(factor * d, (3, 4))
        torch.testing.assert_close(made, orthogonal(d, (3, 4)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(orthogonal(-d, (3, 4)), -orthogonal(d, (3, 4)))
    assert not orthogonal(torch.zeros(2, 12), (3, 4)).any()
    d[0] = 0
    made = orthogonal(d, (3, 4))
    assert not made[0].any()
    assert made[1].any()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_run_has_the_bits_that_it_has_alone(shape):
    d = torch.randn(5, int(np.prod(shape)))
    together = orthogonal(d, shape)
    for run, made in zip(d, together, strict=True):
        assert torch.equal(orthogonal(run.clone().unsqueeze(0), shape)[0], made)


def test_what_counts_as_a_matrix():
    assert is_matrix((2, 2))
    assert is_matrix((8, 1, 3, 3))
    for shape in [(), (7,), (1, 7), (7, 1), (0, 5), (5, 0), (7, 1, 1)]:
        assert not is_matrix(shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_fades_never_explodes(shape):
    """As where a layer has had no gradient for thousands of steps."""
    d = torch.randn(1, int(np.prod(shape)))
    for power in range(0, 46, 3):
        made = orthogonal(10.0**-power * d, shape)
        assert made.square().mean().sqrt() <= SIZE * (1 + 1e-5)
