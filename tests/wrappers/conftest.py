"""Every optimizer, one thread, and no trace of one library in the next one's test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from .problem import OPTIMIZERS


@pytest.fixture(params=OPTIMIZERS)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """The optimizer's class, called as a user calls it."""
    return OPTIMIZERS[request.param]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def fresh_accelerate() -> Iterator[None]:
    """Accelerate, and so the Trainer, keep one state a process: a test's must end with it."""
    state = pytest.importorskip("accelerate.state")
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()
    yield
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()
