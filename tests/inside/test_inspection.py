"""Looks at an optimizer: what is kept of them, and what is drawn."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import hyperadam
from hyperadam import HyperAdam, HyperAdam2, HyperAdam2Rule, LearnedOptimizer
from hyperadam.inside import Inspection
from hyperadam.inside import figures as drawn
from hyperadam.inside.inspection import memory

KINDS = {
    "HyperAdam": ["steps", "moment-field", "weight-field"],
    "HyperAdam2": ["steps", "moment-field", "weight-field"],
    "RNNprop": ["steps"],
    "DMOptimizer": ["steps"],
}


def looked(kind: type[LearnedOptimizer], steps: int = 6, layers: int = 2, **options) -> Inspection:
    """A small training with a look at every other step."""
    torch.manual_seed(0)
    parts = [nn.Linear(6, 5), *(nn.Linear(5, 5) for _ in range(layers - 2)), nn.Linear(5, 1)]
    model = nn.Sequential(*parts)
    opt = kind(model.named_parameters(), **options)
    inside = hyperadam.inspect(opt)
    x = torch.randn(32, 6)
    for step in range(steps):
        opt.zero_grad()
        loss = (model(x) - x[:, :1].sin()).square().mean()
        loss.backward()
        if step % 2 == 0:
            inside.look(loss)
        opt.step()
    return inside


def test_looks_are_what_the_optimizer_tells() -> None:
    inside = looked(HyperAdam)
    assert [look.step for look in inside.looks] == [1, 3, 5]
    assert all(look.loss is not None and look.loss > 0 for look in inside.looks)
    assert list(inside.last.tensors) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    told = inside.optimizer.diagnostics()
    inside.look()
    assert inside.last.tensors == told
    assert inside.last.loss is None
    kept = json.loads(inside.as_json())
    assert [look["step"] for look in kept] == [1, 3, 5, 7]
    assert kept[-1]["tensors"]["0.weight"]["beta"] == pytest.approx(told["0.weight"]["beta"])


def test_the_table() -> None:
    inside = looked(HyperAdam)
    header, rows = inside.table()
    assert header[:5] == ["tensor", "size", "gradient norm", "weights", "effective step"]
    assert header[5:] == ["memory of m, steps", "of v", "sum of ρ"]
    assert [row[:2] for row in rows] == [
        ["0.weight", "30"],
        ["0.bias", "5"],
        ["1.weight", "5"],
        ["1.bias", "1"],
    ]
    numbers = inside.last.tensors["0.weight"]
    assert rows[0][4] == f"{100 * numbers['effective_step']:.2g} %"
    assert rows[0][7] == f"{sum(numbers['rho']):.2f}"
    text = str(inside).splitlines()
    assert text[0] == "Inside HyperAdam, step 5"
    assert len(text) == 6
    assert looked(HyperAdam2).table()[0][5:] == ["sum of ρ", "step factor"]


def test_before_the_first_look(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    inside = hyperadam.inspect(HyperAdam2(model.parameters()))
    assert str(inside) == "Inside HyperAdam2: nothing has been seen yet"
    for ask in (inside.table, lambda: inside.write(tmp_path / "x")):
        with pytest.raises(RuntimeError, match="nothing has been seen yet: call look"):
            ask()
    with pytest.raises(RuntimeError, match="no parameter has a gradient"):
        inside.look()
    assert not (tmp_path / "x").exists()
    with pytest.raises(TypeError, match="must be a LearnedOptimizer, such as HyperAdam, got Adam"):
        hyperadam.inspect(torch.optim.Adam(model.parameters()))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 6])
def test_what_is_written(kind: str, steps: int, tmp_path: Path) -> None:
    inside = looked(getattr(hyperadam, kind), steps)
    made = inside.write(tmp_path / "inside", about="A <small> network.")
    names = [f"{figure}.{suffix}" for figure in KINDS[kind] for suffix in ("svg", "png")]
    assert [path.name for path in made] == ["index.html", "looks.json", *names]
    assert all(path.stat().st_size > 0 for path in made)
    page = made[0].read_text()
    assert page.count("data:image/svg+xml;base64,") == len(KINDS[kind])
    assert "A &lt;small&gt; network." in page
    assert f"<h2>Every tensor at step {inside.last.step}</h2>" in page
    assert page.count("<tr>") == 5
    svg = (tmp_path / "inside" / "steps.svg").read_text()
    for text in ("training loss", "effective step, % of the weights", "gradient norm", "0.weight"):
        assert f">{text}<" in svg


def texts(path: Path) -> str:
    return path.with_suffix(".svg").read_text()


def test_figures_show_candidates(tmp_path: Path) -> None:
    looked(HyperAdam).write(tmp_path / "one")
    svg = texts(tmp_path / "one" / "moment-field")
    for title in ("memory of m in steps, 1/(1−β)", "memory of v in steps, 1/(1−γ)"):
        assert f">{title}<" in svg
    assert ">by tensor, at step 5<" in svg
    looked(HyperAdam2).write(tmp_path / "two")
    svg = texts(tmp_path / "two" / "moment-field")
    assert ">β 0.98, γ 0.999<" in svg, "fixed decay rates are named"
    assert "memory of m" not in svg, "and not drawn"
    assert ">signal-to-noise ratio, m̂²/v̂<" in svg


def test_many_tensors_are_rows_of_colours(tmp_path: Path) -> None:
    looked(HyperAdam2, layers=12).write(tmp_path)
    svg = texts(tmp_path / "steps")
    assert svg.count(">tensor<") == 3
    assert ">0.weight<" not in svg, "no legend of so many"


def test_a_weight_field_that_is_the_same_everywhere_has_no_spread(tmp_path: Path) -> None:
    fixed = HyperAdam2Rule().start_from({(0.9, 0.999): 1.0})
    looked(HyperAdam2, weights=fixed).write(tmp_path)
    assert "how ρ differs" not in texts(tmp_path / "weight-field")


def test_pooled_numbers_are_of_all_coordinates() -> None:
    look = looked(HyperAdam).last
    field = drawn.Field("", "beta")
    sizes = [30, 5, 5, 1]
    betas = [numbers["beta"][3] for numbers in look.tensors.values()]
    expected = sum(n * b for n, b in zip(sizes, betas, strict=True)) / 41
    assert drawn._pooled(look, field)[3] == pytest.approx(expected)


def test_without_losses_the_pace_is_drawn(tmp_path: Path) -> None:
    inside = looked(HyperAdam, total_steps=10)
    inside.looks = [look._replace(loss=None) for look in inside.looks]
    inside.write(tmp_path)
    assert ">pace, the share of lr that is taken<" in texts(tmp_path / "steps")


def test_weights_of_zero(tmp_path: Path) -> None:
    """The first step of a tensor of zeros is no share of it: it is told in words, and not drawn."""
    p = nn.Parameter(torch.zeros(4))
    opt = HyperAdam([p])
    p.grad = torch.ones(4)
    inside = hyperadam.inspect(opt).look()
    assert inside.table()[1][0][4] == "from zero"
    assert json.loads(inside.as_json())[0]["tensors"]["0"]["effective_step"] is None
    assert (tmp_path / "index.html") in inside.write(tmp_path)


def test_memory() -> None:
    assert memory(0.9) == pytest.approx(10)
    assert math.isfinite(memory(1.0))
