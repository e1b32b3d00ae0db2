"""DDP on two gloo ranks: both end alike, and as one process does on the joint batches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from .ddp_rank import STEPS
from .problem import OPTIMIZERS, Batch, assert_close, assert_same_bits, make_batches, make_model

#: A rank that waits for another one for ever must fail the test, not hang it.
SECONDS = 100

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs gloo",
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the two ranks ended with. One start serves all tests: imports take most of it."""
    folder = tmp_path_factory.mktemp("ddp")
    script = Path(__file__).with_name("ddp_rank.py")
    command = [sys.executable, str(script)]
    path = os.pathsep.join(filter(None, sys.path))  # the children see the package that we test
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen(
            [*command, str(rank), str(folder / "rendezvous"), str(folder)],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for child in children:
            _, errors = child.communicate(timeout=SECONDS)
            assert child.returncode == 0, errors
    finally:
        for child in children:
            child.kill()
            child.wait()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def loaded(end: dict[str, Any]) -> torch.nn.Module:
    model = make_model()
    model.load_state_dict(end["model"])
    return model


@pytest.mark.parametrize("kind", ["{}", "{} accumulated"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ranks_stay_together(ranks: list[dict[str, Any]], name: str, kind: str) -> None:
    """Parameters and state to the last bit: nobody sends them, every rank computes them."""
    a, b = (rank[kind.format(name)] for rank in ranks)
    assert_same_bits(loaded(a), loaded(b))
    assert a["opt"]["param_groups"] == b["opt"]["param_groups"]
    for fields, others in zip(a["opt"]["state"].values(), b["opt"]["state"].values(), strict=True):
        assert fields.keys() == others.keys()
        assert all(torch.equal(fields[k], others[k]) for k in fields)


def mean_gradient(model: torch.nn.Module, batches: list[Batch]) -> None:
    """Set the mean of the batches' gradients, added in the order of the ranks."""
    params = list(model.parameters())
    shares = [torch.autograd.grad(cross_entropy(model(x), y), params) for x, y in batches]
    for p, *grads in zip(params, *shares, strict=True):
        p.grad = sum(g / len(batches) for g in grads)


def joined(batches: list[Batch]) -> Batch:
    x, y = (torch.cat(z) for z in zip(*batches, strict=True))
    return x, y


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_process_on_the_joint_batch(ranks: list[dict[str, Any]], name: str) -> None:
    means, joint = make_model(), make_model()
    opt, whole = (OPTIMIZERS[name](x.parameters(), weight_decay=0.1) for x in (means, joint))
    batches = make_batches(2 * STEPS)
    for i in range(0, 2 * STEPS, 2):
        mean_gradient(means, batches[i : i + 2])
        opt.step()
        mean_gradient(joint, [joined(batches[i : i + 2])])
        whole.step()
    assert_same_bits(loaded(ranks[0][name]), means)
    assert_close(loaded(ranks[0][name]), joint, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_accumulation_without_sync(ranks: list[dict[str, Any]], name: str) -> None:
    model = make_model()
    opt = OPTIMIZERS[name](model.parameters())
    batches = make_batches(2 * STEPS)
    for i in range(0, 2 * STEPS, 4):
        mean_gradient(model, [joined(batches[i : i + 4])])
        opt.step()
    assert_close(loaded(ranks[0][f"{name} accumulated"]), model, atol=1e-5)
