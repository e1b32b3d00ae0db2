"""Draws depend on (seed, purpose, step) alone and follow their distributions."""

from __future__ import annotations

import math
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperadam.data import draws

KINDS = {
    "uniform": lambda keys: draws.uniform(keys, 7, 3),
    "integers": lambda keys: draws.integers(keys, 1000, 7, 3),
    "normal": lambda keys: draws.normal(keys, 7, 3),
    "coins": lambda keys: draws.coins(keys, 70, 3),
}


@pytest.mark.parametrize("kind", KINDS)
@given(
    seeds=st.lists(st.integers(-(2**63), 2**64), min_size=1, max_size=9), step=st.integers(0, 2**40)
)
def test_a_run_alone_draws_as_among_others(kind: str, seeds: list[int], step: int) -> None:
    together = KINDS[kind](draws.keys(seeds, "test", step))
    for k, seed in enumerate(seeds):
        assert torch.equal(together[k], KINDS[kind](draws.keys([seed], "test", step))[0])


def test_one_step_per_run() -> None:
    mixed = draws.keys([1, 2, 1], "test", [5, 6, 7])
    assert mixed.tolist() == [
        draws.keys([s], "test", t).item() for s, t in [(1, 5), (2, 6), (1, 7)]
    ]
    assert torch.equal(mixed, draws.keys(torch.tensor([1, 2, 1]), "test", torch.tensor([5, 6, 7])))
    for seeds in ([1], [1, 2, 3]):
        with pytest.raises(
            ValueError,
            match=f"step must be one number or one per run, got 2 for {len(seeds)} seeds",
        ):
            draws.keys(seeds, "test", [1, 2])


def test_seeds_steps_and_purposes_differ() -> None:
    found = {k.item() for p in "ab" for t in range(100) for k in draws.keys(range(-50, 50), p, t)}
    assert len(found) == 2 * 100 * 100


def splitmix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def test_splitmix_against_plain_integers() -> None:
    golden = 0x9E3779B97F4A7C15
    key = splitmix(zlib.crc32(b"batch") * golden % 2**64)
    key = splitmix((splitmix((key - 5) % 2**64) + 3) % 2**64)
    assert draws.keys([-5], "batch", 3).item() % 2**64 == key
    expected = [(splitmix((key + i * golden) % 2**64) >> 11) / 2**53 for i in (1, 2, 3)]
    assert draws.uniform(draws.keys([-5], "batch", 3), 3).tolist() == [expected]
    # the first output of SplitMix64 seeded with 0, as published
    assert splitmix(golden) == 0xE220A8397B1DCDAF


def test_what_a_seed_draws_never_changes() -> None:
    """Results files name seeds."""
    assert draws.integers(draws.keys([0, 1], "batch", 3), 60_000, 4).tolist() == [
        [57202, 38737, 55853, 16545],
        [54803, 36654, 48327, 13122],
    ]


def test_distributions() -> None:
    keys = draws.keys(range(100), "test")
    n = 1_000_000
    u = draws.uniform(keys, n // 100).flatten()
    assert u.min() >= 0
    assert u.max() < 1
    assert u.mean().item() == pytest.approx(0.5, abs=5 * math.sqrt(1 / 12 / n))
    z = draws.normal(keys, n // 100).flatten()
    assert z.isfinite().all()
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert z.pow(power).mean().item() == pytest.approx(moment, abs=5 * math.sqrt(variance / n))
    counts = torch.bincount(draws.integers(keys, 10, n // 100).flatten(), minlength=10)
    assert (counts - n / 10).square().sum().item() / (n / 10) < 35  # χ² with 9 degrees of freedom
    coins = draws.coins(keys, n // 100).double()
    assert set(coins.unique().tolist()) == {0, 1}
    assert coins.mean().item() == pytest.approx(0.5, abs=5 * math.sqrt(0.25 / n))


def test_neighbouring_runs_and_steps_are_uncorrelated() -> None:
    by_seed = draws.normal(draws.keys(range(2000), "test", 0), 500)
    by_step = draws.normal(draws.keys([0] * 2000, "test", range(2000)), 500)
    for z in (by_seed, by_step):
        assert abs((z[:-1] * z[1:]).mean().item()) < 5 / math.sqrt(z.numel())
        assert abs((z[:, :-1] * z[:, 1:]).mean().item()) < 5 / math.sqrt(z.numel())
