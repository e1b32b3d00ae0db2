"""The suite's scores on numbers made up for the purpose, each worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hyperadam.experiments.suite import runs, scores
from hyperadam.experiments.suite.scores import Results

from .small import cell, run


def loss(entry: scores.Entry) -> float:
    return entry.loss


def two() -> Results:
    return Results(
        [
            cell("a", 100, {"adam-linear": [1, 1, 1], "x": [0.5, 0.5, 0.5], "y": [1.005] * 3}),
            cell("a", 1_000, {"adam-linear": [0.5] * 3, "x": [0.4, 0.5, 0.6], "y": [1.0, 1, 9]}),
            cell("b", 100, {"adam-linear": [1.0] * 3, "x": [1.0, 1.0, math.inf]}),
            cell("c", 100, {"adam-linear": [1.0, 1.0]}),  # one seed is still to come
        ]
    )


def test_pairs_that_are_complete() -> None:
    results = two()
    assert results.pairs("adam-linear") == [("a", 100), ("a", 1_000), ("b", 100)]
    assert results.pairs("adam-linear", "y") == [("a", 100), ("a", 1_000)]
    assert set(results.optimizers()) == {"adam-linear", "x", "y"}


def test_ratios_and_counts() -> None:
    results = two()
    x = scores.ratios(results, "x", loss)
    assert x == {("a", 100): 0.5, ("a", 1_000): pytest.approx(1.0), ("b", 100): math.inf}
    assert scores.count_level(x.values()) == 2
    y = scores.ratios(results, "y", loss)
    assert scores.count_level(y.values()) == 1, "half a per cent more is level"
    assert results.at(("a", 1_000), "x").standard_error == pytest.approx(0.1 / math.sqrt(3))


def test_failures_count() -> None:
    results = two()
    assert results.at(("b", 100), "x").diverged == 0 + (math.inf > 2.0)
    assert results.at(("a", 1_000), "y").diverged == 1, "9 is above the 2 that it began with"
    assert results.at(("a", 100), "x").diverged == 0


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1, 2, 3, 4], 2.5),
        ([9, 1, 2, 3, 4, 5, 6, -50], 3.5),
        ([1, 2, 3], (0.25 * 1 + 1 * 2 + 0.25 * 3) / 1.5),
        ([7], 7),
        ([1, 2, 3, math.inf], 2.5),
        ([1, math.inf, math.inf, math.inf], math.inf),
    ],
)
def test_interquartile_mean(numbers: list[float], expected: float) -> None:
    assert scores.interquartile_mean(numbers) == pytest.approx(expected)


def test_interquartile_mean_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    numbers = np.random.default_rng(0).normal(size=40)
    assert scores.interquartile_mean(numbers) == pytest.approx(stats.trim_mean(numbers, 0.25))


def test_the_middle_and_its_interval() -> None:
    found = {(f"task {k}", 100): 0.5 + 0.1 * k for k in range(9)}
    value, low, high = scores.middle(found)
    assert 0.5 < low < value < high < 1.3
    assert scores.middle(found) == (value, low, high), "the same numbers, whenever it is asked"
    assert value == pytest.approx(0.9, abs=0.03)
    # the horizons of one task are drawn together: the same number ten times is no more certain
    same = {(task, n): ratio for (task, _), ratio in found.items() for n in range(10)}
    _, narrow, wide = scores.middle(same)
    assert wide - narrow > 0.7 * (high - low)
    assert math.isnan(scores.middle({("a", 1): 0.5, ("b", 1): 2.0}).low), "two tasks are too few"
    worst = scores.middle({(f"task {k}", 100): math.inf for k in range(4)})
    assert worst == (math.inf, math.inf, math.inf)


def test_smoothing_looks_back() -> None:
    curve = np.arange(40.0)
    smooth = scores.smooth(curve)
    assert np.isnan(smooth[0])
    assert smooth[1] == 0.5
    assert smooth[-1] == 38.5
    assert len(smooth) == 40


def test_steps_and_seconds_to_the_reference() -> None:
    results = Results(
        [
            cell("a", 100, {"adam-linear": [1.0] * 3, "x": [0.0] * 3, "slow": [1.5] * 3}),
        ]
    )
    # of 20 points from 2 down: linear Adam is at 1 at its last, x falls twice as fast
    steps = scores.steps_to_reference(results, "x")
    assert steps[("a", 100)] == pytest.approx(11 / 20)
    assert scores.steps_to_reference(results, "adam-linear") == {("a", 100): 1.0}
    assert scores.steps_to_reference(results, "slow") == {("a", 100): math.inf}
    dear = scores.steps_to_reference(
        results, "x", lambda entry: 10.0 if entry.optimizer == "x" else 1.0
    )
    assert dear[("a", 100)] == pytest.approx(5.5)


def test_velodromes_speed_up() -> None:
    name = "ImageMLP_FashionMnist8_Relu32"
    points = scores.envelopes()[name]
    step, lowest = points[10]
    assert scores.speed_up(name, 1_000, lowest) == (step / 1_000, True)
    assert scores.speed_up(name, 1_000, lowest + 1e-9) == (step / 1_000, True)
    assert scores.speed_up(name, 1_000, 0.0) == (points[-1][0] / 1_000, False)
    results = Results(
        [
            cell("a", 1_000, {"x": [lowest] * 3, "gone": [math.inf] * 3}, envelope=name),
            cell("a", 100, {"x": [lowest] * 3}, envelope=name),
            cell("b", 1_000, {"x": [1.0] * 3}),
        ]
    )
    assert scores.speed_ups(results, "x", 1_000) == {"a": (step / 1_000, True)}
    assert scores.speed_ups(results, "gone", 1_000) == {"a": (0.0, True)}


def test_envelopes_fall() -> None:
    for points in scores.envelopes().values():
        steps, losses = zip(*points, strict=True)
        assert list(steps) == sorted(set(steps))
        assert list(losses) == sorted(losses, reverse=True)


def test_the_rate_is_the_one_tuned() -> None:
    made = cell("a", 100, {})
    made.optimizers["adam"] = {"first_rates": [0.1, 0.2]}
    for lr, value in ((0.1, 3.0), (0.2, 2.0), (0.4, 1.0)):
        assert scores.rate(made, "adam") is None or lr == 0.4
        made.runs[("adam", lr, runs.VALIDATION)] = run("adam", value, lr, runs.VALIDATION)
    assert scores.rate(made, "adam") == 0.4
    for seed in runs.SEEDS:
        made.runs[("adam", 0.2, seed)] = run("adam", 1.0, 0.2, seed)
    assert not Results([made]).entries, "runs at another rate than the best are not reported"


def test_sensitivity() -> None:
    made = cell("a", 1_000, {"x": [1.0] * 3})
    for factor in (0.5, 4.0):
        for seed in runs.SEEDS:
            lr = 0.1 * factor
            made.runs[("x", lr, seed)] = run("x", factor, lr, seed)
    made.runs[("x", 0.2, 0)] = run("x", 5.0, 0.2, 0)  # one seed alone
    found = scores.sensitivity(Results([made]), "x", "a", 1_000)
    assert found == {0.5: 0.5, 1.0: 1.0, 4.0: 4.0}
    assert scores.sensitivity(Results([made]), "nobody", "a", 1_000) == {}
    assert scores.sensitivity(Results([made]), "x", "b", 1_000) == {}
