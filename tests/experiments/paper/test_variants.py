"""Variants of HyperAdam: meta-trained once for each seed, resumed, and evaluated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hyperadam import HyperAdamRule
from hyperadam.experiments import find
from hyperadam.experiments.jobs import Setup, run_jobs
from hyperadam.experiments.paper import variants
from hyperadam.experiments.paper.runner import Place, cell_jobs, load, variant_jobs
from hyperadam.experiments.paper.variant_jobs import VariantJob
from hyperadam.experiments.paper.variants import Variant
from hyperadam.meta import Settings

from ..tiny import quiet
from .small import experiment


@pytest.fixture
def variant(monkeypatch: pytest.MonkeyPatch) -> Variant:
    """A variant that is meta-trained in no time."""
    settings = Settings(
        tasks=("noisy-bowl",), updates=6, rollouts=1, lengths=(4,), period=2, config={"candidates": 2}, validate_every=3,
        validation_runs=2, validation_steps=3,
    )  # fmt: skip
    made = Variant("full", settings)
    monkeypatch.setitem(variants.VARIANTS, "full", made)
    return made


def test_a_variant_is_meta_trained_once_and_evaluated(here: Path, variant: Variant) -> None:
    place, spec = (
        Place(here / "results"),
        experiment(optimizers=("full",), tasks=("bowl",), steps=(4,), meta_seeds=(0,)),
    )
    (job,) = variant_jobs([spec], place)
    assert not cell_jobs([spec], place)
    assert not run_jobs([job], Setup(place.folder), quiet)
    assert [path.name for path in place.variants.iterdir()] == ["full.safetensors"]
    assert not variant_jobs([spec], place)
    assert not run_jobs(cell_jobs([spec], place), Setup(place.folder), quiet)
    (found,) = load(spec, place.store).results
    assert (found.label, found.settings["config"]["candidates"]) == ("full", 2)
    other = variant._replace(settings=replace(variant.settings, seed=1))
    assert not VariantJob(other, place.variants).done, "other settings, other weights"


def test_a_variant_is_meta_trained_from_several_seeds(here: Path, variant: Variant) -> None:
    """Each with a file of its own; a number is of a meta-seed, the mean over its runs."""
    place = Place(here / "results")
    spec = experiment(
        optimizers=("full", "adam-init"),
        tasks=("bowl",),
        steps=(4,),
        quick_steps=(2,),
        figures=(),
        published={},
    )
    jobs = variant_jobs([spec], place)
    assert [job.label for job in jobs] == [
        "meta-train full",
        "meta-train full-1",
        "meta-train full-2",
    ]
    assert [job.variant.settings.seed for job in jobs] == [0, 1, 2]
    assert not run_jobs(jobs[:1], Setup(place.folder), quiet)
    first = cell_jobs([spec], place)
    assert [job.label for job in first] == ["bowl  full  4 steps", "bowl  adam-init  4 steps"]
    assert not run_jobs(first, Setup(place.folder), quiet)
    one, untrained = load(spec, place.store).results
    assert (one.seeds, one.one, one.pooled) == ((0,), "meta-seed", 3)
    assert (untrained.seeds, untrained.one, untrained.pooled) == ((0, 1, 2), "run", 0)

    assert [job.label for job in variant_jobs([spec], place)] == [
        "meta-train full-1",
        "meta-train full-2",
    ]
    assert not run_jobs(variant_jobs([spec], place), Setup(place.folder), quiet)
    rest = cell_jobs([spec], place)
    assert [job.label for job in rest] == ["bowl  full-1  4 steps", "bowl  full-2  4 steps"]
    assert not run_jobs(rest, Setup(place.folder), quiet)
    all_of_them, _ = load(spec, place.store).results
    assert all_of_them.seeds == (0, 1, 2)
    assert all_of_them.final_loss[0] == one.final_loss[0]
    assert len(set(all_of_them.final_loss.tolist())) == 3
    assert len(set(all_of_them.settings["weights"].split())) == 3
    assert not cell_jobs([spec], place)
    assert variant_jobs([spec], Place(here / "results", quick=True))[1:] == []  # one, coarsely


def test_an_interrupted_variant_goes_on(here: Path, variant: Variant) -> None:
    place = Place(here / "results")
    job, seen = VariantJob(variant, place.variants), []

    def stop(share: float) -> None:
        seen.append(share)
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.compute(place.folder, stop)
    rest: list[float] = []
    resumed = job.compute(place.folder, rest.append)
    assert rest == [5 / 6, 1.0]
    straight = job.compute(here / "elsewhere", lambda share: None)
    weights = []
    for name, content in (("a", resumed), ("b", straight)):
        (here / f"{name}.safetensors").write_bytes(content)
        weights.append(find(str(here / f"{name}.safetensors")).settings()["weights"])
    assert weights[0] == weights[1]


def test_the_variants_of_the_paper() -> None:
    made = variants.VARIANTS
    assert made["j20"] is made["full"]
    assert len({v.file for v in made.values()}) == 13
    assert len({json.dumps(v.settings.as_dict(), sort_keys=True) for v in made.values()}) == 13
    assert len({(v.settings.updates, v.settings.rollouts) for v in made.values()}) == 1, (
        "the same budget for all"
    )
    for v in made.values():
        v.settings.make_rule()
    rule = made["no-lstm-no-preprocessing"].settings.make_rule()
    assert isinstance(rule, HyperAdamRule)
    assert (rule.lstm, rule.preprocess) == (None, False)
