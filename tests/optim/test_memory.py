"""A step's own memory: at most 64 MB beyond parameters, gradients and state at four million coordinates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 64e6

# Linux keeps the peak of a process's resident memory and lets it be set back to what is resident now: the difference after a
# step is what the step had in use at once, native code included.
MEASURE = """
import torch
from hyperadam import HyperAdam, HyperAdam2, HyperAdam2Rule, HyperAdamRule

def resident(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))

def used(shape, param_dtype, state_dtype, candidates, memory_format=torch.contiguous_format):
    p = torch.zeros(shape, dtype=param_dtype).to(memory_format=memory_format).requires_grad_()
    p.grad = torch.full_like(p, 0.5)
    if candidates is None:
        kind, rule = HyperAdam2, HyperAdam2Rule()
    else:
        kind, rule = HyperAdam, HyperAdamRule(candidates=candidates, decay_bound=0.97).start_near_adam()
    opt = kind([p], weights=rule, state_dtype=state_dtype, weight_decay=0.1, maximize=True, nonfinite="skip")
    opt.step()
    before = resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    opt.step()
    assert opt.skipped_steps == 0 and p.abs().min() > 0
    return resident("VmHWM") - before

torch.set_num_threads(1)
N = 4 * 2**20
print(used((N,), torch.float32, torch.float32, 20))
print(used((N,), torch.bfloat16, torch.float32, 1))
print(used((N,), torch.float32, torch.float64, 1))
print(used((N // 64, 16, 2, 2), torch.float32, torch.bfloat16, 1, torch.channels_last))
print(used((N,), torch.float32, torch.float32, None))
print(used((N,), torch.bfloat16, torch.bfloat16, None))
print(used((N,), torch.float32, torch.float64, None))
"""


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs the peak memory that Linux keeps"
)
def test_a_step_needs_little_memory_of_its_own() -> None:
    # blocks of 64 KB and more are given back at once, not kept for the next step to use unseen
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    child = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, timeout=300, env=env
    )
    assert child.returncode == 0, child.stderr
    used = [int(line) for line in child.stdout.split()]
    assert len(used) == 7
    assert max(used) <= LIMIT, f"bytes of the step's own: {used}"
    assert max(used) > 16e6, f"the measure should at least see a gradient turned round, got {used}"
