"""Whether two optimizers differ: tests that hold for few runs, pairs by seed, divergence counted."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from hyperadam.report import contrast, summarize
from hyperadam.report.statistics import (
    CHANCE,
    Contrast,
    by_chance,
    compare,
    fisher_test,
    in_words,
    sign_test,
    t_tail,
    t_test,
    welch_test,
)

from ..experiments.tiny import result


@pytest.mark.parametrize(
    ("freedom", "critical"),
    # the two-sided 95 % points of Student's t, from any table
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (9, 2.26216), (10, 2.22814), (99, 1.98422)],
)
def test_students_t(freedom: int, critical: float) -> None:
    assert t_tail(critical, freedom) == pytest.approx(0.05, abs=2e-6)
    assert t_tail(0.0, freedom) == 1.0
    assert t_tail(1e9, freedom) == pytest.approx(0, abs=1e-8)


def test_the_tests_by_hand() -> None:
    assert t_test([1.0, 2.0, 3.0]) == pytest.approx(t_tail(2 * math.sqrt(3), 2))
    assert t_test([0.5, 0.5]) == 0.0
    assert t_test([0.0, 0.0]) == 1.0
    assert sign_test(5, 0) == 2 / 32
    assert sign_test(0, 6) == 2 / 64
    assert sign_test(3, 3) == 1.0
    assert sign_test(0, 0) == 1.0
    # Fisher's tea: 3 of 4 and 1 of 4
    assert fisher_test(3, 4, 1, 4) == pytest.approx(34 / 70)
    assert fisher_test(0, 3, 3, 3) == pytest.approx(2 / 20)
    assert welch_test([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]) == pytest.approx(t_tail(math.sqrt(1.5), 4))


@pytest.mark.parametrize("runs", [2, 3, 5, 10])
def test_chance_alone_looks_clear_in_five_of_a_hundred(runs: int) -> None:
    """Whatever the number of runs: two standard errors, the old rule, are 18 % with three."""
    generator = torch.Generator().manual_seed(runs)
    times, wrong, by_two_errors = 4000, 0, 0
    for values in torch.randn(times, runs, generator=generator, dtype=torch.float64):
        wrong += t_test(values.tolist()) <= CHANCE
        by_two_errors += bool(abs(values.mean()) > 2 * values.std() / math.sqrt(runs))
    assert wrong / times == pytest.approx(0.05, abs=0.012)
    if runs == 3:
        assert by_two_errors / times == pytest.approx(0.18, abs=0.02)


def test_three_runs_need_a_large_difference() -> None:
    base = result([1.0, 1.1, 1.2])
    # four standard errors, and not enough
    unclear = contrast(result([1.1, 1.3, 1.3]), base)
    assert unclear.p == pytest.approx(0.057, abs=0.001)
    assert not unclear.clear
    assert contrast(result([1.3, 1.4, 1.51]), base).clear
    one = contrast(result([0.1]), result([5.0]))
    assert not one.tested
    assert not one.clear


def test_runs_of_the_same_seeds_are_compared_pair_by_pair() -> None:
    base = [1.0, 5.0, 9.0]
    a, b = result([x - 0.1 for x in base], "hyperadam"), result(base)
    pairs = contrast(a, b)
    assert pairs.difference == pytest.approx(-0.1, abs=1e-6)
    assert pairs.relative == pytest.approx(-0.02, abs=1e-6)
    assert pairs.clear
    apart = contrast(result(base, seeds=[7, 8, 9]), result(base))
    assert (apart.p, apart.pairs) == (1.0, 3)


def test_runs_are_paired_by_seed_where_one_side_has_fewer() -> None:
    many = result([1.0, 5.0, 9.0, 100.0], seeds=[3, 1, 2, 0])
    few = result([4.9, 8.9, 0.9], "hyperadam", seeds=[1, 2, 3])
    for found in (contrast(few, many), contrast(few, many)):
        assert found.pairs == 3
        assert found.difference == pytest.approx(-0.1, abs=1e-5)
        assert found.clear
    assert contrast(many, few).direction == 1
    # one seed in common is no pair to test: all runs are compared
    apart = contrast(result([1.0, 2.0], seeds=[0, 1]), result([1.0, 2.0, 3.0], seeds=[1, 2, 3]))
    assert apart.tested
    assert apart.p == pytest.approx(welch_test([1.0, 2.0], [1.0, 2.0, 3.0]))


def test_divergences_are_counted_as_what_they_are() -> None:
    one, hundred = [math.inf] + [0.5] * 99, [math.inf] * 100
    found = contrast(result(one), result(hundred))
    assert (found.diverged, found.other_diverged, found.direction) == (1, 100, -1)
    assert found.clear
    assert not contrast(result(hundred), result(hundred)).clear
    three = contrast(result([math.inf] * 3), result([0.5] * 3))
    assert three.p == 0.25, "three runs cannot show it"
    assert three.direction == 1
    unpaired = contrast(result(hundred), result(one, seeds=range(200, 300)))
    assert unpaired.clear
    assert unpaired.direction == 1
    assert summarize(result(one)).mean == math.inf


def test_higher_may_be_better() -> None:
    top1 = torch.tensor([0.9] * 8)
    lost = torch.tensor([-math.inf] * 8)
    found = compare(top1, lost, range(8), range(8), 0.005, lower=False)
    assert found.clear
    assert found.direction == 1
    assert compare(lost, top1, range(8), range(8), 0.005, lower=False).direction == -1


def test_a_difference_must_matter() -> None:
    near = contrast(result([2.302, 2.3021, 2.3019]), result([2.304, 2.3041, 2.3039]))
    assert near.significant
    assert near.level
    assert not near.clear


def test_how_many_would_look_clear_by_chance() -> None:
    one, two = contrast(result([0.1]), result([0.2])), contrast(result([1, 2.0]), result([2, 1.0]))
    assert by_chance([one, *itertools.repeat(two, 40)]) == pytest.approx(2)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Contrast(-0.05, -0.175, 20, 1e-9, -1), "17.5 % lower (p < .001)"),
        (Contrast(0.05, 0.02, 20, 0.0234, 1), "2.0 % higher (p = .023)"),
        (Contrast(-0.01, -0.1, 3, 0.184, -1), "no clear difference (p = .18)"),
        (Contrast(2.3, 215.3, 3, 0.01, 1), "215 times higher (p = .01)"),
        (Contrast(-0.01, -0.1, 1, math.nan, -1), "10.0 % lower (one run)"),
        (Contrast(0.0, 0.0, 3, 1.0, 0), "the same"),
        (
            Contrast(-0.001, -0.001, 9, 0.01, -1, smallest=0.01),
            "too little to matter: 0.1 % lower (p = .01)",
        ),
        (
            Contrast(math.nan, math.nan, 3, 0.25, 1, 3, 0),
            "diverged in 3 of 3, the other in 0 (p = .25)",
        ),
        (Contrast(math.nan, math.nan, 1, math.nan, 0, 0, 1), "diverged in 0 of 1, the other in 1"),
    ],
)
def test_words(found: Contrast, text: str) -> None:
    assert in_words(found) == text
