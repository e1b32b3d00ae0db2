"""The suite runs over every optimizer on every backend that this machine has for it, on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .cases import KINDS, PLAIN, Case, lively


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest) -> Case:
    optimizer, rule, backend = KINDS[request.param]
    torch.manual_seed(1)
    return Case(optimizer, lively(rule()), backend)


@pytest.fixture(params=PLAIN)
def pair(request: pytest.FixtureRequest) -> tuple[Case, Case]:
    """The same rule without and with relative steps."""
    optimizer, rule, backend = PLAIN[request.param]
    torch.manual_seed(1)
    plain = lively(rule())
    relative = rule(relative=True)  # type: ignore[call-arg]
    relative.load_state_dict(plain.state_dict())
    return Case(optimizer, plain, backend), Case(optimizer, relative, backend)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
