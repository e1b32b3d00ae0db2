"""``adam-init``: the file in the package is the one that the module makes, and it is what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from hyperadam import HyperAdamRule, load_rule
from hyperadam.meta import preset
from hyperadam.weights.loader import SHIPPED
from hyperadam.weights.make_initial import initial_rule


def test_the_shipped_file_is_reproducible(tmp_path: Path) -> None:
    path = tmp_path / "again.safetensors"
    before = torch.get_rng_state()
    subprocess.run(
        [sys.executable, "-m", "hyperadam.weights.make_initial", str(path)],
        check=True,
        capture_output=True,
    )
    assert path.read_bytes() == (SHIPPED / "adam-init.safetensors").read_bytes()
    for other in (load_rule(path), initial_rule()):
        shipped = load_rule("adam-init")
        assert shipped.config == other.config
        assert shipped.provenance == other.provenance
        assert all(
            torch.equal(a, b) for a, b in zip(shipped.parameters(), other.parameters(), strict=True)
        )
    assert torch.equal(torch.get_rng_state(), before)


def test_it_behaves_like_adam() -> None:
    rule = load_rule("adam-init")
    assert isinstance(rule, HyperAdamRule)
    assert rule.candidates == 20
    assert (
        rule.config == load_rule("hyperadam").config == rule.config | preset("hyperadam").config
    ), "its own start"
    assert rule.provenance["meta_steps"] == 0
    grad = torch.linspace(-3, 2, 11)
    state = rule.init_state(grad)
    update, state = rule(grad, state)
    # Adam's first step is the sign of the gradient; weights that sum to one keep it
    torch.testing.assert_close(update, grad.sign(), rtol=1e-4, atol=1e-4)
    beta, gamma = 1 - state.beta_hat[:, 0], 1 - state.gamma_hat[:, 0]
    assert beta.min() > 0.45
    assert beta.max() < 0.96
    assert ((beta - 0.9).abs() < 1e-4).any()
    assert gamma.min() > 0.85
    assert ((gamma - 0.999).abs() < 1e-4).any()
    assert (beta.square() <= 0.97 * gamma + 1e-5).all()
