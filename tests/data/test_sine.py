"""Sine sequences: noisy inputs, a clean target, and the ranges of the paper."""

from __future__ import annotations

import math

import pytest
import torch

from hyperadam.data import sine_sequences


def test_sequences_are_sines_with_a_clean_continuation() -> None:
    inputs, targets = sine_sequences(range(20), 3, count=64, noise=0.0)
    assert inputs.shape == (20, 10, 64)
    assert targets.shape == (20, 64)
    f = torch.cat([inputs, targets.unsqueeze(1)], dim=1)
    # a sampled sine obeys f(x+1) + f(x-1) = 2 cos(ω) f(x) with one ω in (0, π/2) for the whole sequence
    cosine = ((f[:, 2:] + f[:, :-2]) * f[:, 1:-1]).sum(1) / (2 * f[:, 1:-1].square().sum(1))
    assert ((cosine > 0) & (cosine < 1)).all()
    torch.testing.assert_close(
        f[:, 2:] + f[:, :-2], 2 * cosine.unsqueeze(1) * f[:, 1:-1], rtol=0, atol=1e-9
    )
    # f(0) = A sin φ with A ~ U(0, 10): mean square 100/6, in ±10
    assert f[:, 0].abs().max() < 10
    assert f[:, 0].square().mean().item() == pytest.approx(100 / 6, rel=0.15)
    assert math.acos(cosine.mean()) > 0.5


@pytest.mark.parametrize("noise", [0.1, 0.01])
def test_noise_is_on_the_inputs_alone(noise: float) -> None:
    clean, target = sine_sequences([1, 2], 7, noise=0.0)
    noisy, same = sine_sequences([1, 2], 7, noise=noise)
    assert torch.equal(target, same)
    assert (noisy - clean).std().item() == pytest.approx(noise, rel=0.06)


def test_every_step_and_seed_is_fresh() -> None:
    a, _ = sine_sequences([1, 2], 0)
    b, _ = sine_sequences([1, 2], 1)
    c, _ = sine_sequences([2, 1], [1, 0])
    assert not torch.equal(a[0], a[1])
    assert not torch.equal(a, b)
    assert torch.equal(c[0], b[1])
    assert torch.equal(c[1], a[0])
