"""The paper's page: every number from results, the missing and the diverged shown, nothing to load, small, the same again."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hyperadam.experiments.training import rates
from hyperadam.experiments.training.rates import GridPoint, TunedRate
from hyperadam.report import curves
from hyperadam.report.comparison import loss
from hyperadam.report.experiment import markdown
from hyperadam.report.paper import document
from hyperadam.report.render import ON_DARK, SIGNS, page
from hyperadam.report.section import Entry
from hyperadam.report.statistics import summarize
from hyperadam.results import Store

from .synthetic import ACTIVATIONS, OPTIMIZERS, bare, loaded, make, results
from .test_pages import Checker

FOUND = results(
    ACTIVATIONS, missing=[("mnist-mlp-tanh", "dm")], diverged={("mnist-mlp-elu", "dm"): 7}
)


def parts(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    return checker


def test_the_page_has_every_number() -> None:
    text = parts(page(document([(ACTIVATIONS, loaded(FOUND))]))).text
    for result in FOUND:
        if not result.diverged:
            assert loss(summarize(result)) in text, (result.task, result.label)
    assert "diverged in 7 of 20" in text
    assert 'title="not measured"' in page(document([(ACTIVATIONS, loaded(FOUND))]))
    assert "Measured so far: 43 of 44 cells." in text
    assert "paper 0.35" in text
    assert "hyperadam reproduce activations" in text
    for result in FOUND:
        assert result.settings.get("weights", "") in text
    assert "What becomes of the paper's 2 claims" in text


def test_cells_with_fewer_runs_are_told() -> None:
    fewer = [
        make(r.task, r.label, r.steps, 5) if r.label == "adam" else r for r in results(ACTIVATIONS)
    ]
    (part,) = document([(ACTIVATIONS, loaded(fewer))]).sections
    assert "computed: 44 of 44 cells, 4 of them with fewer than the 20 runs planned." in markdown(
        part
    )
    assert (
        "Measured so far: 44 of 44 cells, 4 of them with fewer than the 20 runs planned."
        in page(document([(ACTIVATIONS, loaded(fewer))]))
    )
    assert "so far" not in page(document([(ACTIVATIONS, loaded(results(ACTIVATIONS)))]))


def test_cells_that_have_more_runs_are_held_to_theirs() -> None:
    more = replace(ACTIVATIONS, more_runs={("mnist-mlp", "adam", 100): 25})
    (part,) = document([(more, loaded(results(ACTIVATIONS)))]).sections
    assert part.extent == "44 of 44 cells, 1 of them with fewer than the 20 or 25 runs planned"
    assert "(planned: 20, 25)" in page(document([(more, loaded(results(ACTIVATIONS)))]))


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = page(document([(ACTIVATIONS, loaded(FOUND))]))
    checker = parts(text)
    assert all(load.startswith(("#", "data:,")) for load in checker.loads)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\((?!#)", text)
    assert checker.tags.count("h1") == 1
    assert "{{" not in text


def test_every_link_has_an_end() -> None:
    text = page(document([(ACTIVATIONS, loaded(FOUND))]))
    ends = re.findall(r'\bid="([^"]+)"', text)
    assert len(ends) == len(set(ends))
    assert {load[1:] for load in parts(text).loads if load.startswith("#")} <= set(ends)


def test_the_same_results_give_the_same_page(tmp_path: Path) -> None:
    store, stored = Store(tmp_path), []
    for result in FOUND:
        store.add(result)
        again = store.find(result.settings, result.seeds)
        assert again is not None
        stored.append(replace(again, label=result.label, lr_source=result.lr_source))
    assert page(document([(ACTIVATIONS, loaded(stored))])) == page(
        document([(ACTIVATIONS, loaded(FOUND))])
    )


def test_winner_ties_and_divergence_are_marked() -> None:
    found = [
        replace(make("t", label, 10, 3), final_loss=torch.tensor(final))
        for label, final in {
            "adam": [1.0, 1.1, 1.2],
            "sgd": [0.8, 1.4, 1.2],
            "dm": [2.0, 2.1, 2.3],
        }.items()
    ]
    small = bare(
        tasks=("t",),
        optimizers=("adam", "sgd", "dm", "rnnprop"),
        steps=(10,),
    )
    (part,) = document([(small, loaded(found))]).sections
    entries = {row.optimizer: row.entries[0] for row in part.tables[0].rows}
    assert [entries[label].best for label in small.optimizers] == [True, False, False, False]
    assert [entries[label].tied for label in small.optimizers] == [False, True, False, False]
    assert entries["rnnprop"] == Entry()
    assert entries["rnnprop"].missing


def test_an_optimizer_that_diverged_never_wins() -> None:
    found = [make("t", "adam", 10, 3), make("t", "hyperadam", 10, 3, diverged=1)]
    small = bare(tasks=("t",), optimizers=("adam", "hyperadam"), steps=(10,))
    (part,) = document([(small, loaded(found))]).sections
    entries = {row.optimizer: row.entries[0] for row in part.tables[0].rows}
    assert entries["adam"].best
    assert not entries["hyperadam"].best
    assert entries["hyperadam"].diverged == 1
    assert "±" in entries["hyperadam"].rest


def test_test_metrics_have_tables_of_their_own() -> None:
    small = bare(
        name="learners",
        tasks=("t",),
        optimizers=("adam", "hyperadam"),
        steps=(10,),
        runs=3,
        test=True,
        published={("t", "adam", 10, "test_top1"): 0.985},
    )
    (part,) = document([(small, loaded(results(small)))]).sections
    assert [table.measure for table in part.tables] == ["test_loss", "test_top1", "test_top2"]
    accuracy = part.tables[1].rows[0].entries[0]
    assert accuracy.paper == "98.50 %"
    assert accuracy.text.endswith(" %")


def test_no_results_at_all() -> None:
    text = parts(page(document([(ACTIVATIONS, loaded([]))]))).text
    assert "Measured so far: 0 of 44 cells." in text
    assert text.count("not measured") > 40
    assert "There are no results yet" in parts(page(document([]))).text


def test_names_are_text() -> None:
    odd = bare(title="<b>&", tasks=("<i>",), optimizers=("</script>",))
    text = page(document([(odd, loaded([make("<i>", "</script>", 100, 3)]))]))
    assert "<b>&" not in text
    assert "<i>" not in text
    assert text.count("</script>") == 2


def test_tuned_rates_come_with_their_grid(tmp_path: Path) -> None:
    rates.store(
        tmp_path,
        TunedRate("t", "adam", 100, 0.03125, True, 3, 5, 100, 0.02, "untuned", "torch 2"),
        [
            GridPoint("t", "adam", 100, 0.03125, 0.297, 0),
            GridPoint("t", "adam", 100, 4.0, math.inf, 3),
        ],
    )
    small = bare(tasks=("t",), optimizers=("adam",))
    text = parts(page(document([(small, loaded(results(small)))], tmp_path))).text
    assert "0.0312 → 0.297  4 → 3 diverged" in text
    assert "at the edge of the grid" in text
    assert "5–7" in text


def test_a_coarse_page_says_so() -> None:
    assert "A coarse version" in page(document([(ACTIVATIONS, loaded(FOUND))], quick=True))
    assert "A coarse version" not in page(document([(ACTIVATIONS, loaded(FOUND))]))


@pytest.mark.parametrize(
    "numbers",
    [[2.3, 0.5, math.inf, 1e-6], [0.0, 3.0, -1.0], [math.inf] * 3, [0.7] * 4, [1e-30, 1e30]],
)
def test_curves_survive_sixteen_bits(numbers: list[float]) -> None:
    back = curves.decode(curves.encode(torch.tensor(numbers, dtype=torch.float64)))
    for before, after in zip(numbers, back.tolist(), strict=True):
        if math.isfinite(before):
            assert after == pytest.approx(before, rel=2e-3, abs=1e-4 if min(numbers) <= 0 else 0)
        else:
            assert math.isnan(after)


def test_a_mean_ends_where_a_run_diverges() -> None:
    found = curves.series(make("t", "adam", 1000, 20, diverged=1))
    mean = curves.decode(found["mean"])
    assert len(mean) <= curves.POINTS
    assert mean[:99].isfinite().all()
    assert mean[101:].isnan().all()
    assert curves.decode(found["high"]).isfinite().all(), "one of twenty is outside the band"


def test_sixty_panels_stay_small() -> None:
    big = bare(tasks=tuple(f"task-{n}" for n in range(60)), steps=(3000,), runs=2)
    assert len(page(document([(big, loaded(results(big)))])).encode()) < 3_000_000


def test_verdicts_and_colours_are_complete() -> None:
    made = document([(ACTIVATIONS, loaded(FOUND))])
    assert set(made.counts) == set(SIGNS)
    assert set(OPTIMIZERS) <= set(made.looks)
    dark = [ON_DARK.get(look.colour, look.colour) for look in made.looks.values()]
    assert "#000000" not in dark


def test_times_stand_apart_from_training() -> None:
    timed = replace(
        bare(name="time", tasks=("t",), optimizers=("adam", "hyperadam"), runs=3),
        published={
            ("u", "adam", 1, "seconds_per_step"): 0.0023,
            ("t", "adam", 100, "seconds_to_loss"): 28.97,
        },
    )
    trained = [
        replace(make("t", label, 100, 3), measures={"seconds_to_loss": torch.tensor([seconds])})
        for label, seconds in {"adam": 20.0, "hyperadam": math.inf}.items()
    ]
    alone = replace(
        make("u", "adam", 1, 15),
        losses=torch.empty(15, 0),
        measures={"seconds_per_step": torch.rand(15)},
    )
    made = document([(timed, loaded([*trained, alone]))])
    (part,) = made.sections
    assert part.runs == [3], "rounds of timing are no runs"
    assert [rate.task for rate in made.rates] == ["t"]
    text = parts(page(made)).text
    assert "over 15 rounds" in text
    assert "never there" in text
    assert "1 of 1" not in text
    assert "paper 28.97" in text
    assert "paper 0.0023" in text
    assert "## Seconds to reach Adam's lowest loss" in markdown(part)
