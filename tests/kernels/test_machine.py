"""A busy machine gets one thread: those that wait for each other would all have to get their turn."""

import os

import pytest
import torch

from hyperadam.kernels import machine
from hyperadam.kernels.native.library import threads


@pytest.fixture
def load(monkeypatch):
    def set_load(value):
        monkeypatch.setattr(machine, "_seen", (0.0, False))
        monkeypatch.setattr(os, "getloadavg", lambda: (value, 0.0, 0.0))
        monkeypatch.setattr(machine, "cores", lambda: 4)

    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield set_load
    torch.set_num_threads(before)


def test_threads_by_work_and_load(load):
    load(0.0)
    assert [threads(n, 1000) for n in (0, 10, 2500, 10**6)] == [1, 1, 2, 4]
    load(4.0)  # this process itself, on every core
    assert threads(10**6, 1000) == 4
    load(7.0)
    assert threads(10**6, 1000) == 1


def test_spare_cores(load):
    for value, expected in ((0.0, 4), (1.2, 3), (4.0, 1), (40.0, 1)):
        load(value)
        assert machine.spare_cores() == expected


def test_a_system_that_does_not_tell(load, monkeypatch):
    load(100.0)
    monkeypatch.delattr(os, "getloadavg")
    assert machine.spare_cores() == 4
    assert not machine.is_busy()
