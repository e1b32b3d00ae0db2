"""Weight files: what is saved comes back, and whatever is wrong with a file is said in one clear error."""

from __future__ import annotations

import json
import math
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
    HyperAdam2Rule,
    HyperAdamRule,
    RNNpropRule,
    UpdateRule,
    WeightsError,
    list_weights,
    load_rule,
)
from hyperadam.data.catalog import MNIST
from hyperadam.meta import preset
from tests.files.faults import no_room

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
    ours = ["", "-horizon", "-paper", "-published", "2"]
    assert list_weights() == ["adam-init", "dm", *(f"hyperadam{name}" for name in ours), "rnnprop"]
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


MADE = ["dm", *(f"hyperadam{name}" for name in ("", "-horizon", "-paper", "-published")), "rnnprop"]


@pytest.mark.parametrize("name", MADE)
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
    ({"config": {"candidates": 0}}, "candidates must be a whole number, at least 1"),
    ({"config": {"candidates": "three"}}, "HyperAdamRule does not take"),
    ({"config": {"candidates": 2.5}}, "candidates must be a whole number"),
    ({"config": {"candidates": True}}, "candidates must be a whole number"),
    ({"config": {"candidates": 10**400}}, "candidates must be a whole number"),
    ({"config": {"candidates": [3]}}, "candidates must be a whole number"),
    ({"config": {"decay_bound": 2}}, "decay_bound, if not None, must be a number"),
    ({"config": {"decay_bound": 1e-300}}, "decay_bound, if not None, must be a number"),
    ({"config": {"decay_bound": "0.9"}}, "decay_bound, if not None, must be a number"),
    ({"config": {"normalize_state": math.inf}}, "normalize_state must be True or False, got inf"),
    ({"config": {"lstm": 1}}, "lstm must be True or False, got 1"),
    ({"config": {"preprocess": None}}, "preprocess must be True or False"),
    ({"config": {"warmup": math.inf}}, "warmup must be a whole number"),
    ({"config": {"warmup": 2**40}}, "warmup must be a whole number"),
    ({"config": {"self": 1}}, "HyperAdamRule does not take"),
    ({"rule": []}, r"unknown kind \[\]"),
    ({"rule": {}}, r"unknown kind {}"),
    ({"rule": None}, "unknown kind None"),
    ({"rule": "x" * 10**6}, "unknown kind 'xxx"),
    ({"format": [[]] * 10**5}, r"its format is \[\["),
    ({"provenance": "mine"}, "provenance must be an object, got 'mine'"),
    ({"rule": "rnnprop", "config": {"beta": 1}}, "beta must be a number"),
    ({"rule": "rnnprop", "config": {"beta": math.nan}}, "beta must be a number"),
    ({"rule": "rnnprop", "config": {"epsilon": -1}}, "epsilon must be a number"),
    ({"rule": "dm", "config": {"k": 0}}, "k must be a number"),
    ({"rule": "dm", "config": {"k": 1e4}}, "k must be a number"),
    ({"rule": "dm", "config": {"units": "5"}}, "units must be a whole number"),
    ({"rule": "hyperadam2", "config": {"betas": 0.5}}, "betas must be numbers that rise"),
    ({"rule": "hyperadam2", "config": {"betas": [0.0, 0.0]}}, "betas must be numbers that rise"),
    ({"rule": "hyperadam2", "config": {"gammas": [0.5] * 99}}, "gammas must be numbers that rise"),
    ({"config": [3]}, "HyperAdamRule does not take"),
    ({"config": "{"}, "HyperAdamRule does not take"),
    ({"config": {"candidates": 4}}, r"has shape \(\d+, \d+\), expected"),
    ({"config": {"candidates": 1000}}, "has shape"),
    ({"config": {"candidates": 10**6}}, "candidates must be a whole number.*at most 4,096"),
    ({"config": {"candidates": 3, "lstm": False}}, r"has weights \['lstm.b'"),
    ({"rule": "dm", "config": {}}, "lacks weights"),
]


@pytest.mark.parametrize(("metadata", "match"), BAD_METADATA, ids=lambda x: str(x)[:40])
def test_bad_metadata(path: Path, metadata: dict[str, Any], match: str) -> None:
    edit(path, metadata)
    with pytest.raises(WeightsError, match=match):
        load_rule(path)


NO_METADATA = ["{", "1" * 5000, '{"format": ' + "9" * 5000 + "}", "[" * 10**5, '{"a":' * 10**5]


@pytest.mark.parametrize("text", NO_METADATA, ids=lambda text: text[:12])
def test_metadata_that_is_no_json(path: Path, text: str) -> None:
    save_file({"x": torch.ones(3)}, path, {"hyperadam": text})
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
    ({"b_u": torch.full((3, 1), 1e9)}, "'b_u' has an entry of 1e.09, expected at most 1e.06"),
    ({"b_u": torch.full((3, 1), 1e300, dtype=torch.float64)}, "weight 'b_u' is not finite"),
]


@pytest.mark.parametrize(("tensors", "match"), BAD_TENSORS, ids=lambda x: str(x)[:40])
def test_bad_tensors(path: Path, tensors: dict[str, Any], match: str) -> None:
    edit(path, tensors=tensors)
    with pytest.raises(WeightsError, match=rf"weights.safetensors.*{match}"):
        load_rule(path)


def test_a_log_step_that_overflows_is_refused(path: Path) -> None:
    rule = HyperAdam2Rule()
    with torch.no_grad():
        rule.log_step += 100
    rule.save(path)
    with pytest.raises(WeightsError, match="'log_step' has an entry of 100, expected at most 20"):
        load_rule(path)
    with pytest.raises(WeightsError, match="the rule given as weights: weight 'log_step'"):
        hyperadam.HyperAdam2([torch.ones(3, requires_grad=True)], weights=rule)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F4", "F6_E2M3", "BOOL", "C64", "U64", "X9"])
def test_other_types_are_refused_or_read(path: Path, dtype: str) -> None:
    HyperAdamRule(candidates=3).save(path)
    path.write_bytes(path.read_bytes().replace(b'"F32"', f'"{dtype}"'.encode(), 1))
    with pytest.raises(WeightsError, match=r"weights.safetensors"):
        load_rule(path)


def test_where_there_is_no_room_the_old_weights_stay(path: Path) -> None:
    HyperAdamRule(candidates=3).save(path)
    before = path.read_bytes()
    with no_room(4096), pytest.raises(OSError, match="File too large") as caught:
        HyperAdamRule().save(path)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == before


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
