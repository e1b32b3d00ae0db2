"""Optimizers by name: the same numbers as torch's, TensorFlow's and our own optimizers, whatever the company of runs."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hyperadam
from hyperadam import DMRule, HyperAdamRule, RNNpropRule, UpdateRule
from hyperadam.experiments import BASELINES, OptimizerSpec, find, names, weights_sha256
from hyperadam.experiments.training.steppers import RuleStepper
from hyperadam.rules.base import Sums
from hyperadam.weights import list_weights

RUNS, P, STEPS = 5, 37, 6
RATES = {
    "sgd": 0.1,
    "momentum": 0.05,
    "adagrad": 0.1,
    "adadelta": 3.0,
    "rmsprop": 0.02,
    "adam": 0.03,
    "adamw": 0.03,
}


class NormState(NamedTuple):
    m: Tensor


class NormRule(UpdateRule[NormState]):
    """A rule with norms and without a kernel of its own: momentum over its norm."""

    kind, step_size, State, rounds = "norm", 0.1, NormState, 1

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(0.7))

    def state_rows(self) -> dict[str, int]:
        return {"m": 1}

    def column_sums(self, grad: Tensor, state: NormState, sums: Sums) -> Tensor:
        return (self.beta * state.m + grad.unsqueeze(-2)).double().square().sum(-1)

    def forward(
        self, grad: Tensor, state: NormState, sums: Sums | None = None
    ) -> tuple[Tensor, NormState]:
        if sums is None:
            sums = self.total_sums(lambda earlier: self.column_sums(grad, state, earlier))
        m = self.beta * state.m + grad.unsqueeze(-2)
        return (m * sums[0].rsqrt().to(m.dtype).unsqueeze(-1)).squeeze(-2), NormState(m)


def learned() -> dict[str, UpdateRule[Any]]:
    torch.manual_seed(0)
    return {
        "hyperadam": HyperAdamRule(decay_bound=0.97),
        "warm-up": HyperAdamRule(decay_bound=0.97, warmup=4),
        "normalize-state": HyperAdamRule(candidates=7, normalize_state=True),
        "rnnprop": RNNpropRule(),
        "dm": DMRule(units=6),
        "norm": NormRule(),
    }


LEARNED = learned()


def spec(name: str) -> OptimizerSpec:
    return find(LEARNED[name]) if name in LEARNED else find(f"{name}@{RATES[name]}")


def problem() -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    scale = torch.logspace(-3, 1, STEPS)
    return torch.randn(RUNS, P, generator=generator), [
        s * torch.randn(RUNS, P, generator=generator) for s in scale
    ]


def steps(optimizer: OptimizerSpec, start: Tensor, grads: list[Tensor]) -> Tensor:
    w = start.clone()
    stepper = optimizer.stepper(w)
    for grad in grads:
        stepper.step(grad.clone())
    return w


EVERY = [*RATES, *LEARNED]


@pytest.mark.parametrize("name", EVERY)
def test_a_run_has_the_same_bits_in_any_company(name: str) -> None:
    start, grads = problem()
    together = steps(spec(name), start, grads)
    assert not torch.equal(together, start)
    for run in range(RUNS):
        here = slice(run, run + 1)
        assert torch.equal(
            steps(spec(name), start[here], [grad[here] for grad in grads]), together[here]
        )


def tensorflow(name: str, lr: float, w: np.ndarray, grads: list[np.ndarray]) -> np.ndarray:
    """What TensorFlow 1.x documents for its optimizers at their defaults, in float64, but for what torch does better."""
    a = {"adagrad": 0.1}.get(name, 0.0) * np.ones_like(w)
    b = np.zeros_like(w)
    for t, g in enumerate(grads, start=1):
        if name == "sgd":
            w = w - lr * g
        elif name == "momentum":
            a = 0.9 * a + g
            w = w - lr * a
        elif name == "adagrad":
            a = a + g**2
            w = w - lr * g / np.sqrt(a)
        elif name == "adadelta":
            a = 0.95 * a + 0.05 * g**2
            update = np.sqrt(b + 1e-8) / np.sqrt(a + 1e-8) * g
            b = 0.95 * b + 0.05 * update**2
            w = w - lr * update
        elif name == "rmsprop":
            a = 0.9 * a + 0.1 * g**2
            w = w - lr * g / (
                np.sqrt(a) + 1e-10
            )  # TensorFlow: a starts at 1, and ε is under the root
        else:
            a, b = 0.9 * a + 0.1 * g, 0.999 * b + 0.001 * g**2
            # TensorFlow adds ε before the correction of bias, Adam's authors and torch after it
            w = w - lr * a / (1 - 0.9**t) / (np.sqrt(b / (1 - 0.999**t)) + 1e-8)
    return w


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_do_what_tensorflow_does(name: str) -> None:
    start, grads = problem()
    ours = steps(spec(name), start, grads)
    theirs = tensorflow(
        name, RATES[name], start.double().numpy(), [g.double().numpy() for g in grads]
    )
    torch.testing.assert_close(
        ours.double(),
        torch.from_numpy(theirs),
        rtol=0,
        atol=5e-5 * (ours - start).abs().max().item(),
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)],
)
def test_baselines_are_torchs(name: str, kind: Any) -> None:
    start, grads = problem()
    parameter = nn.Parameter(start[2].clone())
    optimizer = kind([parameter], lr=RATES[name])
    for grad in grads:
        parameter.grad = grad[2].clone()
        optimizer.step()
    torch.testing.assert_close(
        steps(spec(name), start, grads)[2], parameter.detach(), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hyperadam", hyperadam.HyperAdam),
        ("warm-up", hyperadam.HyperAdam),
        ("rnnprop", hyperadam.RNNprop),
        ("dm", hyperadam.DMOptimizer),
    ],
)
def test_learned_rules_step_as_their_optimizers(name: str, kind: Any) -> None:
    start, grads = problem()
    parameter = nn.Parameter(start[3].clone())
    optimizer = kind([parameter], weights=LEARNED[name])
    for grad in grads:
        parameter.grad = grad[3].clone()
        optimizer.step()
    assert torch.equal(steps(spec(name), start, grads)[3], parameter.detach())


@pytest.mark.parametrize("name", LEARNED)
def test_learned_rules_step_as_themselves(name: str) -> None:
    start, grads = problem()
    rule = LEARNED[name].double()
    w, state = start.double(), rule.init_state(start.double())
    with torch.no_grad():
        for t, grad in enumerate(grads, 1):
            update, state = rule(grad.double(), state)
            w = w - rule.step_size * (min(t / 4, 1) if name == "warm-up" else 1) * update
    LEARNED[name].float()
    torch.testing.assert_close(steps(spec(name), start, grads).double(), w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_state_goes_through_a_file(name: str) -> None:
    start, grads = problem()
    whole = steps(spec(name), start, grads)
    w = start.clone()
    stepper = spec(name).stepper(w)
    for grad in grads[:3]:
        stepper.step(grad.clone())
    file = io.BytesIO()
    torch.save(stepper.state_dict(), file)
    file.seek(0)
    again = w.clone()
    stepper = spec(name).stepper(again)
    stepper.load_state_dict(torch.load(file, weights_only=True))
    for grad in grads[3:]:
        stepper.step(grad.clone())
    assert torch.equal(again, whole)


@pytest.mark.parametrize("name", EVERY)
def test_state_bytes_are_what_is_kept(name: str) -> None:
    start, grads = problem()
    stepper = spec(name).stepper(start.clone())
    stepper.step(grads[0].clone())
    state = stepper.state_dict()
    fields = state["state"].get(0, {}) if "param_groups" in state else state
    kept = sum(x.numel() for x in fields.values() if isinstance(x, Tensor) and x.dim())
    assert spec(name).state_bytes * RUNS * P == 4 * kept


def test_a_rule_is_not_changed_and_not_shared() -> None:
    rule = LEARNED["hyperadam"]
    stepper = find(rule).stepper(torch.zeros(2, 5))
    assert isinstance(stepper, RuleStepper)
    assert all(x.requires_grad for x in rule.parameters())
    assert stepper.rule is not rule


def test_names_and_rates(tmp_path: Path) -> None:
    assert set(BASELINES) | {"hyperadam", "adam-init"} <= set(names())
    assert (find("hyperadam").lr, find("hyperadam").label) == (0.005, "hyperadam")
    adamw = find("adamw", "mnist-mlp", 100, tmp_path)
    assert (adamw.lr, adamw.lr_source) == (0.001, "untuned")
    assert adamw.settings()["hyperparameters"]["weight_decay"] == 0.01
    other = find("hyperadam@0.002")
    assert (other.name, other.label, other.lr, other.lr_source) == (
        "hyperadam",
        "hyperadam@0.002",
        0.002,
        "given",
    )
    assert find("adam", "mnist-mlp", 100, tmp_path).lr > 0
    path = tmp_path / "mine@home.safetensors"
    HyperAdamRule(candidates=3).save(path)
    assert (find(str(path)).name, find(str(path)).lr) == ("mine@home", 0.005)
    assert find(f"{path}@0.5").lr == 0.5
    assert find(other) is other


def test_options_behind_a_name(tmp_path: Path) -> None:
    plain, told = find("hyperadam"), find("hyperadam+horizon")
    assert (plain.horizon, told.horizon) == (False, True)
    assert told.name == told.label == "hyperadam+horizon"
    # one entry more where it is on, none where it is off: results from before keep their keys
    assert "horizon" not in plain.settings()
    assert told.settings() == plain.settings() | {"optimizer": told.name, "horizon": True}
    relative = find("hyperadam+relative")
    assert relative.rule is not None
    assert relative.rule.relative
    assert relative.settings()["config"] == plain.settings()["config"] | {"relative": True}
    assert relative.settings()["weights"] == plain.settings()["weights"]
    both = find("rnnprop+horizon+relative@0.02")
    assert (both.name, both.label, both.lr) == (
        "rnnprop+relative+horizon",
        "rnnprop+relative+horizon@0.02",
        0.02,
    )
    assert both.horizon
    assert both.at(0.5).horizon
    path = tmp_path / "mine+horizon.safetensors"
    HyperAdamRule(candidates=3).save(path)
    assert not find(str(path)).horizon
    assert find(f"{path}+horizon").horizon


def test_weights_that_knew_the_horizon_are_told_it(tmp_path: Path) -> None:
    """A file that says nothing of the kind, or nonsense, did not; of shipped ones one did."""
    assert [name for name in list_weights() if find(name).horizon] == ["hyperadam-horizon"]
    rule = HyperAdamRule(candidates=3)
    for settings, known in (({"horizon": True}, True), ({"horizon": 1}, False), ([], False)):
        rule.provenance = {"settings": settings}
        path = tmp_path / "mine.safetensors"
        rule.save(path)
        assert hyperadam.load_rule(path).knows_horizon is known
        assert find(rule).horizon is find(str(path)).horizon is known


def test_a_spec_tells_the_horizon_and_the_shapes() -> None:
    start, grads = problem()
    shapes = [(5, 5), (12,)]
    told = find("hyperadam+relative+horizon")
    w = start.clone()
    stepper = told.stepper(w, shapes, STEPS)
    for grad in grads:
        stepper.step(grad.clone())
    pieces = zip(start[2].split([25, 12]), shapes, strict=True)
    params = [nn.Parameter(x.view(shape).clone()) for x, shape in pieces]
    optimizer = hyperadam.HyperAdam(
        params, weights=hyperadam.load_rule("hyperadam", relative=True), total_steps=STEPS
    )
    for grad in grads:
        for p, g in zip(params, grad[2].split([25, 12]), strict=True):
            p.grad = g.view_as(p).clone()
        optimizer.step()
    assert torch.equal(w[2], torch.cat([p.detach().reshape(-1) for p in params]))
    with pytest.raises(ValueError, match=r"steps is None, expected .*hyperadam\+relative"):
        told.stepper(start.clone(), shapes)
    with pytest.raises(ValueError, match="shapes is None"):
        told.stepper(start.clone(), steps=STEPS)
    with pytest.raises(ValueError, match="adam is not learned: it cannot be told the horizon"):
        replace(find("adam@0.1"), horizon=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adam+horizon", r"\+horizon is for learned ones, not adam"),
        ("hyperdam+horizon", r"no optimizer is called 'hyperdam'; did you mean hyperadam"),
        ("hyperadam+fast", r"no optimizer is called 'hyperadam\+fast'; did you mean hyperadam"),
        ("adma", r"no optimizer is called 'adma'; did you mean adam"),
        ("hyperdam@0.1", r"no optimizer is called 'hyperdam'; did you mean hyperadam"),
        ("zzz", r"there are sgd, .*hyperadam.*\.safetensors"),
        ("adam@fast", r"expected a number after @"),
        ("adam@-1", r"learning rate of adam must be a number above 0 that float32 holds, got -1"),
        ("adam@inf", r"learning rate of adam must be"),
        ("adam@nan", r"learning rate of adam must be"),
        ("adam@1e39", r"learning rate of adam must be"),
    ],
)
def test_bad_names_say_what_is_meant(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find(name)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.safetensors"):
        find("nowhere.safetensors")


def test_settings_tell_rules_apart_by_what_they_do(tmp_path: Path) -> None:
    rule = HyperAdamRule(candidates=3)
    before = weights_sha256(rule)
    rule.provenance["note"] = "no matter"
    rule.save(tmp_path / "a.safetensors")
    assert (
        weights_sha256(rule)
        == before
        == weights_sha256(hyperadam.load_rule(tmp_path / "a.safetensors"))
    )
    with torch.no_grad():
        rule.b_q[0] += 1e-6
    assert weights_sha256(rule) != before
    assert find("adam@0.1").settings() != find("adam@0.2").settings()
    assert find(HyperAdamRule(candidates=3)).settings()["config"] == {"candidates": 3}


def test_a_new_option_at_its_default_changes_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    before = find(RNNpropRule(units=4))
    known = RNNpropRule.__init__

    def with_more(self: RNNpropRule, units: int = 20, new: float = 0.5, **rest: Any) -> None:
        known(self, units, **rest)
        self.config["new"] = new

    monkeypatch.setattr(RNNpropRule, "__init__", with_more)
    after = RNNpropRule(units=4)
    after.load_state_dict(before.rule.state_dict())  # type: ignore[union-attr]
    assert after.config["new"] == 0.5
    assert find(after).settings() == before.settings()
    after.config["new"] = 0.6
    assert find(after).settings() != before.settings()
    assert find("momentum").settings()["hyperparameters"] == {"momentum": 0.9}
