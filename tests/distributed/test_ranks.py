"""The harness: a rank that fails or hangs fails the test, and says how."""

from __future__ import annotations

import time

import pytest

from . import ranks


def fail(rank: int) -> None:
    if rank == 1:
        raise ValueError("the second rank has failed")


def hang(rank: int) -> None:
    if rank == 1:
        time.sleep(60)


def test_a_rank_that_fails_says_how() -> None:
    with pytest.raises(ranks.RankError, match=r"rank 1: (.|\n)*ValueError: the second rank"):
        ranks.run_ranks(2, fail)


def test_a_rank_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "LIMIT", 2)
    with pytest.raises(ranks.RankError, match="rank 1: did not end in time"):
        ranks.run_ranks(2, hang)
