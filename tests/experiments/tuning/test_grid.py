"""Cells that are computed once, and learning rates found on a grid, stored and found again."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hyperadam import tasks
from hyperadam.experiments import (
    Cell,
    Store,
    find,
    find_result,
    grid,
    run_cell,
    run_cells,
    score,
    train,
    tune,
    tuned_lr,
)
from hyperadam.experiments.training import cells, rates
from hyperadam.experiments.training.rates import (
    PUBLISHED_ADAM,
    GridPoint,
    Kind,
    Rate,
    TunedRate,
    default_rate,
    starting_rate,
)
from hyperadam.experiments.tuning.grid import LIMIT
from hyperadam.results import Result
from hyperadam.tasks import registry

from ..tiny import Quadratic, result

pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every cell that is really computed, as task and label."""
    computed: list[str] = []

    def counting(task: str, optimizer: Any, seeds: Any, *rest: Any, **options: Any) -> Result:
        computed.append(f"{task} {optimizer.label} {len(seeds)}")
        return train(task, optimizer, seeds, *rest, **options)

    monkeypatch.setattr(cells, "train", counting)
    return computed


@pytest.fixture
def bowl(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Make ``bowl`` the quadratic whose best rate is given."""

    def make(best: float) -> None:
        monkeypatch.setitem(registry._REGISTERED, "bowl", lambda: Quadratic(1 / best))

    return make


def test_cells_are_computed_once(trained: list[str], tmp_path: Path) -> None:
    store = Store(tmp_path)
    plan = grid(["noisy-bowl", "bowl"], ["adam", "sgd@0.1"], range(3), 4)
    shares: list[float] = []
    first = run_cells(plan, store, lambda cell, share: shares.append(share))
    assert [(r.task, r.label) for r in first] == [(c.task, c.optimizer.label) for c in plan]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    assert len(trained) == 4
    again = run_cells(plan, store)
    assert len(trained) == 4
    assert all(torch.equal(a.losses, b.losses) for a, b in zip(first, again, strict=True))
    more = run_cells(grid(["noisy-bowl"], ["adam", "sgd@0.1"], range(4), 4), store)
    assert trained[4:] == ["noisy-bowl adam 1", "noisy-bowl sgd@0.1 1"], "the run that is missing"
    assert [r.seeds for r in more] == [(0, 1, 2, 3)] * 2
    assert torch.equal(more[0].losses[:3], first[0].losses)
    run_cells(plan, store, fresh=True)
    assert len(trained) == 10
    assert not list(tmp_path.rglob("*.checkpoint"))


def test_a_cell_keeps_the_name_it_is_asked_for_by(trained: list[str], tmp_path: Path) -> None:
    store = Store(tmp_path)
    plain = find("sgd", "bowl", 4)
    named = find(f"sgd@{plain.lr}", "bowl", 4)
    a, b = (run_cell(Cell("bowl", spec, (0, 1), 4), store) for spec in (plain, named))
    assert len(trained) == 1
    assert (a.label, a.lr_source, b.label, b.lr_source) == (
        "sgd",
        "untuned",
        f"sgd@{plain.lr:g}",
        "given",
    )


def test_an_interrupted_cell_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store, cell = Store(tmp_path), Cell("noisy-bowl", find("adam@0.1"), (0, 1, 2), 10)
    shares: list[float] = []

    def stop(share: float) -> None:
        shares.append(share)
        if len(shares) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(cells, "train", lambda *a, **k: train(*a, **k, interval=0))
    with pytest.raises(KeyboardInterrupt):
        run_cell(cell, store, stop)
    assert find_result(cell, store) is None
    rest: list[float] = []
    assert torch.equal(
        run_cell(cell, store, rest.append).losses,
        train("noisy-bowl", "adam@0.1", range(3), 10).losses,
    )
    assert len(rest) == 1 + 10 - 5
    assert [path.name for path in (tmp_path / "noisy-bowl").iterdir()] == ["adam-10.npz"]


@pytest.mark.parametrize("name", ["sgd", "adam", "hyperadam"])
def test_a_cell_goes_to_another_process(name: str, tmp_path: Path) -> None:
    cell = Cell("noisy-bowl", find(name), (0, 1), 3)
    there = pickle.loads(pickle.dumps(cell))
    assert there.settings() == cell.settings()
    a, b = run_cell(there, Store(tmp_path / "a")), run_cell(cell, Store(tmp_path / "b"))
    assert torch.equal(a.losses, b.losses)


def test_a_grid_refuses_nonsense_before_it_starts(trained: list[str]) -> None:
    for names, optimizers, message in (
        (["bowl", "bwol"], ["sgd"], "no task is called 'bwol'; did you mean bowl"),
        (["bowl"], ["sgd", "adma"], "no optimizer is called 'adma'"),
    ):
        with pytest.raises(ValueError, match=message):
            grid(names, optimizers, range(2), 3)
    with pytest.raises(ValueError, match="no test set"):
        grid(["bowl"], ["sgd"], range(2), 3, test=True)


@pytest.mark.parametrize(
    ("best", "lowest", "highest"),
    [
        (0.5, -3, 3),  # the starting point itself
        (0.5 * 2**0.5, -3, 3),  # between two points of the first grid
        (0.5 * 2**6, -3, 7),  # beyond its upper edge
        (0.5 / 2**6, -7, 3),  # beyond its lower edge
    ],
)
def test_the_best_rate_of_a_quadratic(
    bowl: Callable[[float], None], tmp_path: Path, best: float, lowest: int, highest: int
) -> None:
    bowl(best)
    found = tune("bowl", "sgd", range(3), 4, Store(tmp_path))
    assert found.lr == pytest.approx(best, rel=1e-5)
    assert not found.at_edge
    rates = [r.lr for r in found.results]
    assert rates == sorted(rates)
    assert math.log2(rates[0] / 0.5) == pytest.approx(lowest, abs=1e-4)
    assert math.log2(rates[-1] / 0.5) == pytest.approx(highest, abs=1e-4)
    assert len(rates) == 1 + (highest - lowest) + 2
    assert score(found.best) == min(map(score, found.results))


def test_a_grid_ends_somewhere(bowl: Callable[[float], None], tmp_path: Path) -> None:
    bowl(1e5)
    found = tune("bowl", "sgd", range(2), 3, Store(tmp_path))
    assert found.at_edge
    assert math.log2(found.lr / 0.5) == pytest.approx(LIMIT, abs=0.6)
    bowl(1e12)  # so flat that float32 sees no difference
    found = tune("bowl", "sgd", range(2), 3, Store(tmp_path / "other"))
    assert (found.lr, found.at_edge) == (0.5, False)


def test_a_grid_starts_where_it_is_told(bowl: Callable[[float], None], tmp_path: Path) -> None:
    bowl(3.0)
    found = tune("bowl", "sgd@3", range(2), 3, Store(tmp_path))
    assert (found.start, found.lr, len(found.results)) == (3.0, 3.0, 9)


def test_rates_that_diverge_are_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Cliff(Quadratic):
        """The lower the loss, the nearer the cliff: far below the start there is no loss."""

        def losses(self, params: torch.Tensor, batch: tuple[torch.Tensor]) -> torch.Tensor:
            loss = super().losses(params, batch)
            return loss.masked_fill(loss < 1e-5, math.nan)

    monkeypatch.setitem(registry._REGISTERED, "bowl", Cliff)
    found = tune("bowl", "sgd@0.125", range(3), 2, Store(tmp_path))
    assert any(r.diverged for r in found.results), "the best rate of all, 1, leads over the cliff"
    assert math.isfinite(score(found.best))
    assert found.best.diverged == 0
    assert found.lr != 1
    with pytest.raises(
        ValueError, match=r"sgd diverged on trap at every learning rate from 0\.00048\d* to 4"
    ):
        tune("trap", "sgd", range(3), 5, Store(tmp_path))


def test_tuning_is_stored_and_used(
    bowl: Callable[[float], None], trained: list[str], tmp_path: Path
) -> None:
    bowl(4.0)
    store = Store(tmp_path / "cells")
    found = tune("bowl", "sgd", range(100, 103), 4, store)
    path = found.save(tmp_path)
    (record,) = rates.read_rates(path)
    assert record.lr == found.lr == 4.0
    assert (record.first_seed, record.runs) == (100, 3)
    points = rates.read_grids(tmp_path / rates.GRIDS)
    assert [(p.lr, p.score) for p in points] == [(r.lr, score(r)) for r in found.results]
    assert (record.start, record.start_source) == (0.5, "untuned")
    found.save(tmp_path)
    assert rates.read_rates(path) == (record,), "in the place of the former"

    assert tuned_lr("sgd", "bowl", 4, tmp_path) == Rate(4.0, Kind.TUNED)
    assert tuned_lr("sgd", "bowl", 40, tmp_path) == Rate(4.0, Kind.TUNED, "4 steps")
    assert tuned_lr("adam", "bowl", 4, tmp_path) is None
    assert tuned_lr("sgd", "noisy-bowl", 4, tmp_path) is None
    spec = find("sgd", "bowl", 4, tmp_path)
    assert (spec.lr, spec.lr_source, spec.label) == (4.0, "tuned", "sgd")
    assert train("bowl", "sgd", range(2), 4, tuning=tmp_path).lr == 4.0
    assert train("bowl", "sgd", range(2), 4).lr == 0.5
    assert find("sgd@1", "bowl", 4, tmp_path).lr == 1

    computed = len(trained)
    assert tune("bowl", "sgd", range(100, 103), 4, store).lr == 4.0
    assert len(trained) == computed, "finished cells are used again"


def test_the_nearest_tuned_number_of_steps(tmp_path: Path) -> None:
    for steps, lr in ((100, 0.1), (10_000, 0.001)):
        rates.store(
            tmp_path, tuned("adam", steps, lr), [GridPoint("bowl", "adam", steps, lr, 1, 0)]
        )
    assert tuned_lr("adam", "bowl", 300, tmp_path) == Rate(0.1, Kind.TUNED, "100 steps")
    assert tuned_lr("adam", "bowl", 5000, tmp_path) == Rate(0.001, Kind.TUNED, "10,000 steps")
    assert tuned_lr("adam", "bowl", 5000, tmp_path).source == "tuned for 10,000 steps"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text.replace("task,", "tusk,"),
        lambda text: text.replace("0.1", "nan"),
        lambda text: text.replace("0.1", "-1"),
        lambda text: text.replace("0.1", "9" * 5000),
        lambda text: text.replace(",0.1", ""),
        lambda text: text + '"',
        lambda text: text + "\0",
    ],
)
def test_a_damaged_file_of_rates_is_named(damage: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / rates.RATES
    rates.store(tmp_path, tuned("adam", 100, 0.1), [])
    path.write_text(damage(path.read_text()))
    if not path.read_text():
        assert tuned_lr("adam", "bowl", 300, tmp_path) is None
        return
    with pytest.raises(ValueError, match=r"rates\.csv does not hold tuned rates \(line \d"):
        tuned_lr("adam", "bowl", 300, tmp_path)


def tuned(optimizer: str, steps: int, lr: float) -> TunedRate:
    return TunedRate("bowl", optimizer, steps, lr, False, 3, 0, steps, 0.5, "untuned", "torch 2")


def test_published_rates(tmp_path: Path) -> None:
    def found(task: str) -> tuple[float, str]:
        rate = starting_rate("adam", task, 100, 1.0)
        return rate.lr, rate.source

    assert found("mnist-mlp") == (0.03125, "published")
    assert found("mnist-cnn2") == (0.0055, "published for 2,000 steps")
    assert found("cifar10-cnn1-bn") == (0.0113, "published for cifar10-cnn1")
    assert starting_rate("sgd", "mnist-mlp", 100, 1.0) == Rate(1.0, Kind.UNTUNED)
    assert default_rate("adam", "no-such-task", 100, 0.5, tmp_path) == Rate(0.5, Kind.UNTUNED)
    for name in PUBLISHED_ADAM:
        tasks.get(name)


def test_scores() -> None:
    assert score(result([1.0, 2.0, 3.0])) == 2.0
    assert score(result([1.0, math.inf])) == math.inf
