"""Several devices in one optimizer, and a state that follows its model to another device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from .cases import SHAPES, Case, flat, run, set_grads, tensors
from .toy_device import TOY, ToyDevice


@pytest.fixture
def device() -> Iterator[torch.device]:
    """A GPU if there is one, else the toy device."""
    if torch.cuda.is_available():
        yield torch.device("cuda", 0)
        return
    with ToyDevice():
        yield TOY


def on(device: torch.device, params: list[Tensor]) -> list[Tensor]:
    return [p.detach().clone().to(device).requires_grad_() for p in params]


def run_moved(opt: Any, params: list[Tensor], steps: range) -> None:
    """As ``run``, with the gradients of the same parameters on the CPU."""
    for t in steps:
        twin = [torch.empty(p.shape) for p in params]
        set_grads(twin, t)
        for p, q in zip(params, twin, strict=True):
            assert q.grad is not None
            p.grad = q.grad.to(p.device)
        opt.step()


def test_several_devices_in_one_optimizer(case: Case, device: torch.device) -> None:
    params = tensors(*SHAPES)
    spread = (
        on(torch.device("cpu"), params[:1])
        + on(device, params[1:3])
        + on(torch.device("cpu"), params[3:])
    )
    opt, opt_spread = (
        case.make(params, weight_decay=0.1),
        case.make(spread, weight_decay=0.1, backend="auto"),
    )
    run(opt, params, range(4))
    run_moved(opt_spread, spread, range(4))
    assert [p.device.type for p in spread] == ["cpu", device.type, device.type, "cpu", "cpu"]
    for p in spread:
        state = opt_spread.state[p]
        assert {x.device for k, x in state.items() if k != "step"} == {p.device}
        assert state["step"].device.type == "cpu"
    torch.testing.assert_close(flat([p.cpu() for p in spread]), flat(params), rtol=1e-5, atol=1e-5)


def test_a_backend_of_the_cpu_is_refused_elsewhere(case: Case, device: torch.device) -> None:
    if case.backend == "torch":
        case.make(on(device, tensors((3,))))
        return
    with pytest.raises(
        ValueError,
        match=rf"'{case.backend}' cannot step {case.rule.kind} in torch.float32 on {device}",
    ):
        case.make(on(device, tensors((3,))))
    assert "torch" in repr(case.make(on(device, tensors((3,))), backend="auto"))


def test_a_state_loads_into_a_model_on_another_device(case: Case, device: torch.device) -> None:
    params = tensors(*SHAPES)
    opt = case.make(params)
    run(opt, params, range(2))
    moved = on(device, params)
    opt_moved = case.make(moved, backend="auto")
    opt_moved.load_state_dict(opt.state_dict())
    for p, q in zip(params, moved, strict=True):
        for k, v in opt.state[p].items():
            there = opt_moved.state[q][k]
            assert there.device == (q.device if k != "step" else v.device)
            assert torch.equal(there.cpu(), v)
    run(opt, params, range(2, 4))
    run_moved(opt_moved, moved, range(2, 4))
    torch.testing.assert_close(flat([p.cpu() for p in moved]), flat(params), rtol=1e-5, atol=1e-5)


def test_bad_gradients_on_two_devices(case: Case, device: torch.device) -> None:
    params = [*on(torch.device("cpu"), tensors((3,))), *on(device, tensors((4,)))]
    opt = case.make(params, backend="auto")
    params[0].grad, params[1].grad = torch.ones(3), torch.full((4,), torch.nan, device=device)
    with pytest.raises(RuntimeError, match="parameter 1 of group 0"):
        opt.step()
    assert not opt.state
