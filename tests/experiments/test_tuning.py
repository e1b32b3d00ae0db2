"""Cells that are computed once, and learning rates found on a grid, stored and found again."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hyperadam import tasks
from hyperadam.experiments import (
    Cell,
    Store,
    cells,
    find,
    grid,
    run_cells,
    score,
    train,
    tune,
    tuned_lr,
)
from hyperadam.experiments.rates import PUBLISHED_ADAM, default_rate, starting_rate
from hyperadam.experiments.results import Result
from hyperadam.experiments.tuning import LIMIT
from hyperadam.tasks import registry

from .tiny import Quadratic, result

pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every cell that is really computed, as task and label."""
    computed: list[str] = []

    def counting(task: str, optimizer: object, *rest: object, **options: object) -> Result:
        computed.append(f"{task} {optimizer.label}")  # type: ignore[attr-defined]
        return train(task, optimizer, *rest, **options)  # type: ignore[arg-type]

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
    run_cells(grid(["noisy-bowl"], ["adam", "sgd@0.1"], range(4), 4), store)
    assert len(trained) == 6, "other seeds are another cell"
    run_cells(plan, store, fresh=True)
    assert len(trained) == 10
    assert not list(tmp_path.glob("*.checkpoint"))


def test_a_cell_keeps_the_name_it_is_asked_for_by(trained: list[str], tmp_path: Path) -> None:
    store = Store(tmp_path)
    plain = find("sgd", "bowl", 4)
    named = find(f"sgd@{plain.lr}", "bowl", 4)
    a, b = (store.run(Cell("bowl", spec, (0, 1), 4)) for spec in (plain, named))
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
        store.run(cell, stop)
    assert store.find(cell) is None
    rest: list[float] = []
    assert torch.equal(
        store.run(cell, rest.append).losses, train("noisy-bowl", "adam@0.1", range(3), 10).losses
    )
    assert len(rest) == 1 + 10 - 5
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".json", ".npz"]


@pytest.mark.parametrize("name", ["sgd", "adam", "hyperadam"])
def test_a_cell_goes_to_another_process(name: str, tmp_path: Path) -> None:
    cell = Cell("noisy-bowl", find(name), (0, 1), 3)
    there = pickle.loads(pickle.dumps(cell))
    assert Store(tmp_path).path(there) == Store(tmp_path).path(cell)
    assert torch.equal(
        Store(tmp_path / "a").run(there).losses, Store(tmp_path / "b").run(cell).losses
    )


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
    record = json.loads(path.read_text())
    assert record["lr"] == found.lr == 4.0
    assert record["settings"]["seeds"] == [100, 101, 102]
    assert "lr" not in record["settings"]
    assert [point["lr"] for point in record["grid"]] == [r.lr for r in found.results]
    assert record["start"] == {"lr": 0.5, "source": "untuned"}

    assert tuned_lr("sgd", "bowl", 4, tmp_path) == (4.0, "tuned")
    assert tuned_lr("sgd", "bowl", 40, tmp_path) == (4.0, "tuned for 4 steps")
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
        record = {"format": "hyperadam-tuning/1", "lr": lr, "settings": {"steps": steps}}
        (tmp_path / f"bowl.adam.{steps}.json").write_text(json.dumps(record))
    assert tuned_lr("adam", "bowl", 300, tmp_path) == (0.1, "tuned for 100 steps")
    assert tuned_lr("adam", "bowl", 5000, tmp_path) == (0.001, "tuned for 10,000 steps")
    for damage in ("{", "[]", '{"format": "x"}', '{"format": "hyperadam-tuning/1", "lr": null}'):
        (tmp_path / "bowl.adam.100.json").write_text(damage)
        with pytest.raises(ValueError, match=r"bowl\.adam\.100\.json is not a result of tuning"):
            tuned_lr("adam", "bowl", 300, tmp_path)


def test_published_rates(tmp_path: Path) -> None:
    assert starting_rate("adam", "mnist-mlp", 100, 1.0) == (0.03125, "published")
    assert starting_rate("adam", "mnist-cnn2", 100, 1.0) == (0.0055, "published for 2,000 steps")
    assert starting_rate("adam", "cifar10-cnn1-bn", 100, 1.0) == (
        0.0113,
        "published for cifar10-cnn1",
    )
    assert starting_rate("sgd", "mnist-mlp", 100, 1.0) == (1.0, "untuned")
    assert default_rate("adam", "no-such-task", 100, 0.5, tmp_path) == (0.5, "untuned")
    for name in PUBLISHED_ADAM:
        tasks.get(name)


def test_scores() -> None:
    assert score(result([1.0, 2.0, 3.0])) == 2.0
    assert score(result([1.0, math.inf])) == math.inf
