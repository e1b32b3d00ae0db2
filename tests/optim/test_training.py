"""What a user sees: networks train, the default is close to Adam, and the degenerate rule is Adam."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hyperadam
from hyperadam import HyperAdam, HyperAdam2, HyperAdam2Rule, HyperAdamRule
from hyperadam.rules.hyperadam2 import Stage

from .cases import SHAPES, Case, fields, flat, lively, run, set_grads, tensors

BACKENDS = hyperadam.kernels.available()


def adam_rule(beta: float, gamma: float) -> HyperAdamRule:
    """One candidate with constant decay rates and weight one: Adam."""
    rule = HyperAdamRule(candidates=1)
    with torch.no_grad():
        for weight in rule.parameters():
            weight.zero_()
        rule.b_u.fill_(torch.logit(torch.tensor(beta, dtype=torch.float64)))
        rule.b_r.fill_(torch.logit(torch.tensor(gamma, dtype=torch.float64)))
        rule.b_q.fill_(1.0)
    return rule


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_degenerate_rule_is_adam(backend: str, weight_decay: float) -> None:
    ours, theirs = tensors(*SHAPES), tensors(*SHAPES)
    opt = HyperAdam(
        ours, 0.01, weights=adam_rule(0.9, 0.99), weight_decay=weight_decay, backend=backend
    )
    adam = torch.optim.AdamW(theirs, 0.01, betas=(0.9, 0.99), eps=1e-12, weight_decay=weight_decay)
    for t in range(30):
        set_grads(ours, t)
        set_grads(theirs, t)
        opt.step()
        adam.step()
    torch.testing.assert_close(flat(ours), flat(theirs), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_candidate_of_hyperadam2_is_adam(backend: str) -> None:
    """By itself, with a weight of one, and at a rate for each tensor that fits its size and shape."""
    ours, theirs = tensors(*SHAPES), tensors(*SHAPES)
    rule = HyperAdam2Rule(orthogonal=False).start_from({(0.9, 0.999): 1.0})
    opt = HyperAdam2(ours, 0.001, weights=rule, weight_decay=0.1, backend=backend)
    groups = []
    for p in theirs:
        memory = rule.init_memory(p.detach().square().mean().sqrt())
        size = rule.control(memory, Stage(1, 0, p.shape)).size.item()
        groups.append({"params": [p], "lr": 0.001 * size, "weight_decay": 0.1 / size})
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-12)
    for t in range(30):
        set_grads(ours, t)
        set_grads(theirs, t)
        opt.step()
        adam.step()
    torch.testing.assert_close(flat(ours), flat(theirs), rtol=1e-4, atol=1e-6)


#: HyperAdam2 as it started out, and as it is shipped.
WEIGHTS2: dict[str, Any] = {
    "mixture": HyperAdam2Rule().start_from({(0.9, 0.99): 1.5, (0.98, 0.99): -0.5}),
    "hyperadam2": None,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", WEIGHTS2)
def test_a_network_trains_with_hyperadam2(
    weights: str, backend: str, state_dtype: torch.dtype
) -> None:
    """To a known end, about as far as with Adam."""
    model, x, y = problem()
    twin = copy.deepcopy(model)
    options = {"weights": WEIGHTS2[weights], "backend": backend, "state_dtype": state_dtype}
    ours = train(model, HyperAdam2(model.parameters(), total_steps=150, **options), x, y, 150)
    adam = train(twin, torch.optim.Adam(twin.parameters(), 0.01), x, y, 150)
    assert ours[0] == adam[0]
    assert ours[-1] < 0.5 * ours[0]
    assert abs(ours[-1] - adam[-1]) < 0.2 * adam[0]


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
    x = torch.randn(128, 8)
    y = (x[:, :3] * x[:, 3:6]).argmax(1)
    return model, x, y


def train(model: nn.Module, opt: Any, x: Tensor, y: Tensor, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
def test_a_network_trains_as_with_adam(backend: str, state_dtype: torch.dtype) -> None:
    model, x, y = problem()
    twin = copy.deepcopy(model)
    ours = train(
        model,
        HyperAdam(model.parameters(), 0.01, backend=backend, state_dtype=state_dtype),
        x,
        y,
        150,
    )
    adam = train(twin, torch.optim.Adam(twin.parameters(), 0.01), x, y, 150)
    assert ours[0] == adam[0]
    assert ours[-1] < 0.5 * ours[0]
    assert abs(ours[-1] - adam[-1]) < 0.2 * adam[0]


@pytest.mark.parametrize("kind", ["hyperadam", "hyperadam2"])
def test_a_bfloat16_network_trains(kind: str) -> None:
    model, x, y = problem()
    model.bfloat16()
    opt = (
        HyperAdam(model.parameters(), 0.01)
        if kind == "hyperadam"
        else HyperAdam2(model.parameters())
    )
    losses = train(model, opt, x.bfloat16(), y, 100)
    assert losses[-1] < 0.7 * losses[0]


def test_with_clipping_and_a_gradient_scaler() -> None:
    model, x, y = problem()
    opt = HyperAdam(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=10**6)
    losses = []
    for _ in range(60):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_bfloat16_state_moves_slow_averages() -> None:
    """Rounding to nearest would stall β̂ and γ̂: 0.999 γ̂ + 0.001 is γ̂ in bfloat16. Stochastic rounding is right on average."""
    for backend in BACKENDS:
        (p,) = tensors((20_000,))
        opt2 = HyperAdam2(
            [p], 0.0, weights=HyperAdam2Rule(), state_dtype=torch.bfloat16, backend=backend
        )
        p.grad = torch.full((20_000,), 0.5)
        for _ in range(400):
            opt2.step()
        for v, gamma in zip(opt2.state[p]["v"].float(), (0.99, 0.999), strict=True):
            assert v.mean().item() == pytest.approx(0.25 * (1 - gamma**400), rel=0.01)
            assert v.std() > 0

        opt = HyperAdam(
            [p], 0.0, weights=adam_rule(0.9, 0.999), state_dtype=torch.bfloat16, backend=backend
        )
        p.grad = torch.full((20_000,), 0.5)
        for _ in range(400):
            opt.step()
        expected = 1 - 0.999**400
        gamma_hat = opt.state[p]["gamma_hat"].float()
        assert gamma_hat.mean().item() == pytest.approx(expected, rel=0.01)
        assert gamma_hat.std() > 0
        assert opt.state[p]["v"].float().mean().item() == pytest.approx(0.25 * expected, rel=0.01)


def test_tensors_and_steps_round_differently(case: Case) -> None:
    params = tensors((500,), (500,))
    opt = case.make(params, state_dtype=torch.bfloat16)
    with torch.no_grad():
        params[1].copy_(params[0])
    for p in params:
        p.grad = torch.linspace(-1, 1, 500)
    opt.step()
    a, b = ([opt.state[p][name].clone() for name in case.rule.state_rows()] for p in params)
    assert any(not torch.equal(x, y) for x, y in zip(a, b, strict=True))
    again = tensors((500,), (500,))
    opt2 = case.make(again, state_dtype=torch.bfloat16)
    with torch.no_grad():  # what is kept of a tensor depends on its values
        again[1].copy_(again[0])
    for p in again:
        p.grad = torch.linspace(-1, 1, 500)
    opt2.step()
    assert all(
        torch.equal(opt.state[p][k], opt2.state[q][k])
        for p, q in zip(params, again, strict=True)
        for k in opt.state[p]
    )


def test_coordinates_round_differently(case: Case) -> None:
    (p,) = tensors((128,))
    p.grad = torch.linspace(-1, 1, 64).repeat(2)
    opt = case.make([p], state_dtype=torch.bfloat16)
    opt.step()
    assert any(not torch.equal(x[:, :64], x[:, 64:]) for x in fields(opt.state[p]).values())


def test_updates_forget_the_scale_of_the_gradient() -> None:
    """HyperAdam's whole vector is scale invariant, and each of HyperAdam2's tensors, so the optimizers must be."""
    rule2 = lively(HyperAdam2Rule())
    for kind, backend in product((HyperAdam, HyperAdam2), BACKENDS):
        results = []
        for scale in (1e-4, 1.0, 1e4):
            params = tensors(*SHAPES)
            weights = rule2 if kind is HyperAdam2 else None
            opt = kind(params, 0.01, weights=weights, backend=backend)
            for t in range(4):
                set_grads(params, t)
                for p in params:
                    assert p.grad is not None
                    p.grad *= scale
                opt.step()
            results.append(flat(params))
        torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(results[2], results[1], rtol=1e-4, atol=1e-5)


def test_every_optimizer_runs_a_network(case: Case) -> None:
    model, x, y = problem()
    before = flat(list(model.parameters()))
    opt = case.make(model.named_parameters(), lr=1e-4)
    losses = train(model, opt, x, y, 3)
    assert all(map(torch.isfinite, torch.tensor(losses)))
    assert not torch.equal(before, flat(list(model.parameters())))
    run(opt, list(model.parameters()), range(1))
