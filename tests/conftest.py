"""One thread for all tests: the machine may have few cores, and the numbers do not depend on it."""

import os
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)
# on some processors torch's own products in bfloat16 end in "Illegal instruction"; for tests that
# start a process, too
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")


@pytest.fixture(autouse=True)
def subnormal_numbers() -> Iterator[None]:
    """Meta-training flushes them to zero for its whole process: not for the tests after it."""
    yield
    torch.set_flush_denormal(False)
