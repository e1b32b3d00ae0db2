"""``torch.compile`` around a step: a plain loop's numbers, no compiling from step to step."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ExponentialLR

from .problem import (
    assert_close,
    assert_same_bits,
    assert_same_state,
    backward,
    make_batches,
    make_model,
    train,
)

Make = Callable[..., Any]

#: More than the first step takes, less than what makes a user think that it hangs.
FIRST_STEP_SECONDS = 30

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")),
    reason="inductor compiles C++",
)
BACKENDS = ["eager", pytest.param("inductor", marks=needs_compiler)]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def no_recompiling() -> Iterator[None]:
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.usefixtures("no_recompiling")
def test_a_compiled_step(make: Make, backend: str) -> None:
    model, twin = make_model(), make_model()
    opt, by_hand = (make(x.parameters(), weight_decay=0.1) for x in (model, twin))

    @torch.compile(backend=backend)
    def step() -> None:
        opt.step()

    for t, batch in enumerate(make_batches(6)):
        opt.zero_grad()
        backward(model, batch)
        start = time.perf_counter()
        step()
        assert t or time.perf_counter() - start < FIRST_STEP_SECONDS
        train(twin, by_hand, [batch])
        assert_close(model, twin)
    counts = [float(fields["step"]) for fields in opt.state_dict()["state"].values()]
    assert counts == [6.0] * 4
    # the state, too, is that of a plain loop: outside of the compiler it goes on alike
    train(model, opt, make_batches(9)[6:])
    train(twin, by_hand, make_batches(9)[6:])
    assert_close(model, twin)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.usefixtures("no_recompiling")
def test_a_compiled_training_step(make: Make, backend: str) -> None:
    """Forward, backward and step in one function."""
    model, twin = make_model(), make_model()
    opt, by_hand = make(model.parameters()), make(twin.parameters())

    @torch.compile(backend=backend)
    def training_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    losses = [training_step(x, y).item() for x, y in make_batches(6)]
    assert losses == pytest.approx(train(twin, by_hand, make_batches(6)), abs=1e-5)
    # gradients of a compiled network are rounded otherwise
    assert_close(model, twin, atol=1e-6 if backend == "eager" else 1e-5)


def test_a_compiled_step_under_a_scheduler(make: Make) -> None:
    """A rate that changes may be compiled anew, but it must be the one that is used."""
    model, twin = make_model(), make_model()
    opt, by_hand = make(model.parameters()), make(twin.parameters())
    scheduler, theirs = (ExponentialLR(x, 0.7) for x in (opt, by_hand))
    step = torch.compile(opt.step, backend="eager")
    for batch in make_batches(6):
        opt.zero_grad()
        backward(model, batch)
        step()
        scheduler.step()
        train(twin, by_hand, [batch], theirs)
    assert_close(model, twin)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_model_with_a_plain_step(make: Make, backend: str) -> None:
    model, twin = make_model(), make_model()
    compiled = torch.compile(model, backend=backend)
    opt, by_hand = make(compiled.parameters()), make(twin.parameters())
    losses = train(compiled, opt, make_batches(6))
    assert losses == pytest.approx(train(twin, by_hand, make_batches(6)), abs=1e-5)
    if backend == "eager":
        assert_same_bits(model, twin)
        assert_same_state(opt, by_hand)
    else:
        assert_close(model, twin, atol=1e-5)
