"""Weight files: what is saved comes back, and whatever is wrong with a file is said in one clear error."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import hyperadam
from hyperadam import (
    DMRule,
    HyperAdamRule,
    RNNpropRule,
    UpdateRule,
    WeightsError,
    list_weights,
    load_rule,
)
from hyperadam.data.catalog import MNIST
from hyperadam.meta import preset

RULES = [
    HyperAdamRule(),
    HyperAdamRule(
        candidates=3, lstm=False, preprocess=False, normalize_state=True, decay_bound=0.97
    ),
    RNNpropRule(units=5),
    DMRule(units=4, k=8.0),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.safetensors"


def edit(
    path: Path, about: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None
) -> None:
    """Save a good file again with some of what it says or holds replaced; ``None`` removes a tensor."""
    HyperAdamRule(candidates=3).save(path)
    with safe_open(path, framework="pt") as file:
        old = json.loads(file.metadata()["hyperadam"])
    values = load_file(path) | (tensors or {})
    metadata = {"hyperadam": json.dumps(old | (about or {}))}
    save_file({k: v for k, v in values.items() if v is not None}, path, metadata)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_round_trip(rule: UpdateRule[Any], path: Path) -> None:
    rule.provenance = {"made_by": "a test", "meta_steps": 3}
    rule.save(path)
    for given in (path, str(path)):
        loaded = load_rule(given)
        assert type(loaded) is type(rule)
        assert loaded.config == rule.config
        assert loaded.provenance == rule.provenance
        assert loaded.state_dict().keys() == rule.state_dict().keys()
        for name, value in loaded.state_dict().items():
            assert torch.equal(value, rule.state_dict()[name])
            assert value.dtype == torch.float32
            assert value.device.type == "cpu"
        assert all(
            weight.requires_grad for weight in loaded.parameters()
        )  # ready to be meta-trained further
    grad = torch.linspace(-1, 1, 7)
    assert torch.equal(
        loaded(grad, loaded.init_state(grad))[0], rule(grad, rule.init_state(grad))[0]
    )


def test_shipped_weights_load() -> None:
    names = ["adam-init", "dm", "hyperadam", "hyperadam-paper", "hyperadam2", "rnnprop"]
    assert list_weights() == names
    for name in list_weights():
        rule = load_rule(name)
        assert rule.provenance["made_by"]


@pytest.mark.parametrize("kind", [HyperAdamRule, RNNpropRule, DMRule])
def test_relative_is_read_written_and_overruled(kind: Any, path: Path) -> None:
    kind(relative=True).save(path)
    assert load_rule(path).config["relative"] is True
    assert load_rule(path).memory == 1
    plain = load_rule(path, relative=False)
    assert "relative" not in plain.config
    plain.save(path)
    assert load_rule(path).memory == 0
    assert load_rule(path, relative=True).config == plain.config | {"relative": True}


def test_relative_that_is_no_boolean_is_refused(path: Path) -> None:
    edit(path, {"config": {"candidates": 3, "relative": "yes"}})
    with pytest.raises(WeightsError, match=r"HyperAdamRule does not take: relative must be True"):
        load_rule(path)


@pytest.mark.parametrize("name", ["dm", "hyperadam", "hyperadam-paper", "rnnprop"])
def test_meta_trained_weights_say_how_to_make_them(name: str) -> None:
    rule = load_rule(name)
    about = rule.provenance
    assert about["preset"] == name
    assert about["settings"] == json.loads(
        json.dumps(replace(preset(name), seed=about["settings"]["seed"]).as_dict())
    )
    assert (rule.kind, rule.config) == (
        about["settings"]["rule"],
        rule.config | about["settings"]["config"],
    )
    assert about["data"] == {"mnist": MNIST.sha256}
    assert about["validation"][-1][0] == about["updates"]
    assert about["seconds"] > 0


def test_loading_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    load_rule("adam-init")
    assert torch.equal(torch.get_rng_state(), before)


def test_unknown_names() -> None:
    with pytest.raises(
        WeightsError, match=r"named 'adam-int': did you mean 'adam-init'\? shipped: .*'adam-init'"
    ):
        load_rule("adam-int")
    with pytest.raises(
        WeightsError, match=r"named 'zzz': shipped: .*'adam-init'.* path ends in .safetensors"
    ):
        load_rule("zzz")
    for name in ("", "..", "adam-init.pt"):
        with pytest.raises(WeightsError, match="no shipped weights"):
            load_rule(name)


def test_missing_files(tmp_path: Path) -> None:
    for given in (tmp_path / "no", "no.safetensors", "./adam-init", str(tmp_path), tmp_path):
        with pytest.raises(FileNotFoundError, match="there is no file"):
            load_rule(given)


def test_something_else_entirely() -> None:
    with pytest.raises(TypeError, match=r"name_or_path must be .* got int"):
        load_rule(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("keep", [0, 4, 100, -1, -1000])
def test_cut_short(path: Path, keep: int) -> None:
    HyperAdamRule().save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(
        WeightsError, match=r"weights.safetensors is not a readable .safetensors file"
    ):
        load_rule(path)


def test_a_pickle_is_never_loaded(path: Path) -> None:
    torch.save(HyperAdamRule().state_dict(), path)
    with pytest.raises(WeightsError, match="not a readable"):
        load_rule(path)


def test_tensors_of_somebody_else(path: Path) -> None:
    save_file({"x": torch.ones(3)}, path)
    with pytest.raises(
        WeightsError, match="does not hold a rule: its format is None, expected 'hyperadam-rule/1'"
    ):
        load_rule(path)


BAD_METADATA = [
    ({"format": "hyperadam-rule/99"}, "format is 'hyperadam-rule/99'"),
    (
        {"rule": "adam"},
        "unknown kind 'adam', expected one of 'hyperadam', 'hyperadam2', 'rnnprop', 'dm'",
    ),
    ({"config": {"candidates": 3, "colour": "red"}}, "HyperAdamRule does not take: .*colour"),
    ({"config": {"candidates": 0}}, "candidates must be at least 1"),
    ({"config": {"candidates": "three"}}, "HyperAdamRule does not take"),
    ({"config": {"candidates": 2.5}}, "HyperAdamRule does not take"),
    ({"config": {"decay_bound": 2}}, "decay_bound must be None or lie in"),
    ({"config": [3]}, "HyperAdamRule does not take"),
    ({"config": "{"}, "HyperAdamRule does not take"),
    ({"config": {"candidates": 4}}, r"has shape \(\d+, \d+\), expected"),
    ({"config": {"candidates": 10**6}}, "has shape"),
    ({"config": {"candidates": 3, "lstm": False}}, r"has weights \['lstm.b'"),
    ({"rule": "dm", "config": {}}, "lacks weights"),
]


@pytest.mark.parametrize(("metadata", "match"), BAD_METADATA, ids=lambda x: str(x)[:40])
def test_bad_metadata(path: Path, metadata: dict[str, Any], match: str) -> None:
    edit(path, metadata)
    with pytest.raises(WeightsError, match=match):
        load_rule(path)


def test_metadata_that_is_no_json(path: Path) -> None:
    save_file({"x": torch.ones(3)}, path, {"hyperadam": "{"})
    with pytest.raises(WeightsError, match="not a readable"):
        load_rule(path)


BAD_TENSORS = [
    ({"b_u": None}, r"lacks weights \['b_u'\]"),
    ({"extra": torch.ones(2)}, r"has weights \['extra'\]"),
    ({"b_u": torch.ones(3)}, r"'b_u' has shape \(3,\), expected \(3, 1\)"),
    (
        {"b_u": torch.ones(3, 1, dtype=torch.int64)},
        "'b_u' has type torch.int64, expected floating point",
    ),
    ({"b_u": torch.full((3, 1), torch.nan)}, "weight 'b_u' is not finite"),
    ({"theta_q": torch.full((3, 3), torch.inf)}, "weight 'theta_q' is not finite"),
    ({"b_u": torch.full((3, 1), 1e300, dtype=torch.float64)}, "weight 'b_u' is not finite"),
]


@pytest.mark.parametrize(("tensors", "match"), BAD_TENSORS, ids=lambda x: str(x)[:40])
def test_bad_tensors(path: Path, tensors: dict[str, Any], match: str) -> None:
    edit(path, tensors=tensors)
    with pytest.raises(WeightsError, match=rf"weights.safetensors.*{match}"):
        load_rule(path)


def test_other_floating_types_become_float32(path: Path) -> None:
    edit(
        path,
        tensors={
            "b_u": torch.ones(3, 1, dtype=torch.float64),
            "b_r": torch.ones(3, 1, dtype=torch.bfloat16),
        },
    )
    assert {value.dtype for value in load_rule(path).state_dict().values()} == {torch.float32}


def test_the_package_shows_its_doors() -> None:
    assert hyperadam.__version__ == "0.2.0"
    assert all(hasattr(hyperadam, name) for name in hyperadam.__all__)
