"""The store: runs are found by settings and seeds, from whatever pieces they were added in."""

from __future__ import annotations

import itertools
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hyperadam.results import Result, Store
from hyperadam.results.result import merge

from ..experiments.tiny import result


def found(store: Store, like: Result, *seeds: int) -> Result:
    there = store.find(like.settings, seeds)
    assert there is not None
    return there


def test_a_file_has_all_runs_of_an_optimizer_on_a_task(tmp_path: Path) -> None:
    store, whole = Store(tmp_path), result([1.0, 2.0, 3.0, 4.0])
    store.add(whole.take([0, 1]))
    store.add(whole.take([3]))
    assert [path.name for path in (tmp_path / "bowl").iterdir()] == ["adam-5.npz"]
    assert store.missing(whole.settings, range(4)) == (2,)
    assert found(store, whole, 3, 0).final_loss.tolist() == [4.0, 1.0]
    assert found(store, whole, 2, 3).seeds == (3,), "those that are there"
    assert store.find(whole.settings, [2, 9]) is None
    store.add(whole.take([2]))
    assert torch.equal(found(store, whole, 0, 1, 2, 3).losses, whole.losses)


def test_the_order_in_which_runs_come_does_not_matter(tmp_path: Path) -> None:
    other = result([7.0, 8.0], label="adam")
    other = replace(other, settings=other.settings | {"lr": 0.2})
    pieces = [*(result([1.0, 2.0, 3.0]).take([n]) for n in range(3)), other]
    written = set()
    for number, order in enumerate(itertools.permutations(pieces)):
        store = Store(tmp_path / str(number))
        for piece in order:
            store.add(piece)
        written.add(store.path(other.settings).read_bytes())
    assert len(written) == 1


def test_other_settings_are_other_runs(tmp_path: Path) -> None:
    store, plain = Store(tmp_path), result([1.0, 2.0])
    faster = replace(plain, settings=plain.settings | {"lr": 0.2}, final_loss=plain.final_loss + 5)
    store.add(plain)
    assert store.find(faster.settings, [0]) is None
    store.add(faster)
    assert found(store, plain, 0, 1).final_loss.tolist() == [1.0, 2.0]
    assert found(store, faster, 0, 1).final_loss.tolist() == [6.0, 7.0]
    assert len(list(tmp_path.rglob("*.npz"))) == 1


def test_a_run_that_is_added_again_takes_the_place_of_the_former(tmp_path: Path) -> None:
    store, old = Store(tmp_path), result([1.0, 2.0])
    store.add(old)
    newer = replace(result([9.0]), made_with={"torch": "3"})
    store.add(newer)
    assert found(store, old, 0, 1).final_loss.tolist() == [9.0, 2.0]
    assert store.missing(old.settings, [0, 1, 2]) == (2,)


def test_names_of_anything_stay_in_the_folder(tmp_path: Path) -> None:
    store = Store(tmp_path / "cells")
    odd = result([1.0], optimizer="../../a b", task="/etc/x")
    store.add(odd)
    assert [p.relative_to(tmp_path).parts[0] for p in tmp_path.rglob("*.npz")] == ["cells"]
    alike = replace(odd, settings=odd.settings | {"optimizer": ".._.._a_b"}, final_loss=odd.losses)
    assert store.path(alike.settings) == store.path(odd.settings)
    assert store.find(alike.settings, [0]) is None, "one file, but not the same optimizer"
    assert found(store, odd, 0).final_loss.tolist() == [1.0]


def test_results_that_differ_in_more_than_seeds_are_not_merged() -> None:
    with pytest.raises(ValueError, match="seeds alone"):
        merge([result([1.0]), result([1.0], task="other")])


def _add(folder: Path, first: int) -> None:
    for seed in range(first, first + 10):
        Store(folder).add(result([float(seed)], seeds=[seed]))


def test_processes_that_add_to_one_file_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_add, args=(tmp_path, 10 * n)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    like = result([1.0])
    assert found(Store(tmp_path), like, *range(30)).final_loss.tolist() == list(range(30))
