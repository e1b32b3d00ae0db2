"""Rules that were meta-trained from several seeds: numbers, tests and words are about these."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hyperadam.experiments.paper.experiment import Claim
from hyperadam.report import measures
from hyperadam.report.claims import Verdict, judge
from hyperadam.report.experiment import CSV, markdown, numbers
from hyperadam.report.paper import weights
from hyperadam.report.render import caption
from hyperadam.report.section import section
from hyperadam.results import Result, pool

from ..experiments.tiny import result
from .synthetic import bare

CLAIM = Claim("a beats b.", "a", ("b",))


def made(label: str, *rows: list[float]) -> Result:
    """A rule with the final losses of its runs, a list for each meta-seed."""
    found = {}
    for seed, losses in enumerate(rows):
        one = result(losses, label)
        found[seed] = replace(one, settings=one.settings | {"weights": f"{label}{seed}"})
    return pool(found)


def test_a_row_is_the_mean_of_a_meta_seeds_runs() -> None:
    found = made("a", [1.0, 3.0], [2.0, 6.0])
    assert found.final_loss.tolist() == [2.0, 4.0]
    assert (found.seeds, found.pooled, found.one, found.runs) == ((0, 1), 2, "meta-seed", 2)
    assert found.losses.shape == (2, 5)
    assert [used.sha256 for used in weights([found])] == ["a0", "a1"]


def test_a_meta_seed_with_fewer_runs_waits() -> None:
    assert made("a", [1.0, 3.0], [2.0]).seeds == (0,)
    assert made("a", [1.0], [2.0, 3.0]).seeds == (1,)


def test_divergence_of_a_run_is_that_of_its_meta_seed() -> None:
    found = made("a", [1.0, math.inf], [2.0, 3.0])
    assert found.diverged == 1
    assert found.final_loss.tolist() == [math.inf, 2.5]
    judged = judge(CLAIM, keyed(found, made("b", [3.0, 3.0], [3.0, 3.0])), [("bowl", 5)])
    assert judged.diverged[0][1:] == (1, 2, "meta-seed")


def keyed(*found: Result) -> dict[tuple[str, str, int], Result]:
    return {(r.task, r.label, r.steps): r for r in found}


def verdict(*found: Result) -> Verdict:
    return judge(CLAIM, keyed(*found), [("bowl", 5)]).verdict


def test_tests_are_over_meta_seeds_however_many_runs_there_are() -> None:
    """A hundred runs of one meta-training say nothing of the next."""
    low, high = [1.0] * 100, [2.0] * 100
    assert verdict(made("a", low), made("b", high)) is Verdict.UNDECIDED
    near = made("b", [2.1] * 100, [1.9] * 100, [2.0] * 100)
    assert verdict(made("a", low, low, low), near) is Verdict.HOLDS
    mixed = made("b", high, [0.5] * 100, high)
    assert verdict(made("a", low, low, low), mixed) is Verdict.UNDECIDED
    pairs = measures.contrast(made("a", low, low, low), near, "final_loss")
    assert pairs is not None
    assert pairs.pairs == 3


def test_meta_seeds_are_not_compared_with_runs() -> None:
    assert measures.contrast(made("a", [1.0], [2.0]), result([1.0, 2.0], "b"), "final_loss") is None


@pytest.mark.parametrize("seeds", [1, 3])
def test_tables_say_how_many_there_are(seeds: int) -> None:
    spec = bare(tasks=("bowl",), optimizers=("a", "b", "c"), steps=(5,), runs=2, claims=(CLAIM,))
    rows = [[0.70, 0.72], [0.68, 0.70], [0.72, 0.74]][:seeds]
    worse = [[2 * x for x in row] for row in rows]
    found = [made("a", *rows), made("b", *worse), result([1.0, 1.1], "c")]
    part = section(spec, found)
    text = markdown(part)
    many = "1 meta-seed" if seeds == 1 else "3 meta-seeds"
    assert f"standard error over {many} or 2 runs;" in caption(part.tables[0])
    if seeds == 1:
        assert "**0.71 (1 meta-seed)**" in text
        assert "2 of them with fewer than the 2 runs of 3 meta-seeds planned" in text
        assert "**Undecided.**" in text
    else:
        assert "**0.710 ± 0.012 (3 meta-seeds, 0.69 to 0.73)**" in text
        assert part.complete
        assert "**Holds.**" in text
    assert [line[4::7] for line in (list(CSV), *numbers(spec, part))] == [
        ["runs", "of"],
        *[[seeds, "meta-seed"]] * 2,
        [2, "run"],
    ]


def test_curves_are_means_too() -> None:
    one, two = result([1.0, 3.0], "a"), result([2.0, 2.0], "a")
    found = pool({0: one, 1: two})
    assert torch.equal(found.losses[0], one.losses.double().mean(0))
