"""Pace and scale against a twin in float64 NumPy that spells them out."""

import math

import numpy as np
import pytest
import torch

from hyperadam import HyperAdam, load_rule
from hyperadam.rules import DMRule, HyperAdamRule, RNNpropRule
from hyperadam.rules.pace import (
    count_matrices,
    fan_in,
    horizon_factor,
    narrow_factor,
    pace,
    root_mean_square,
    square_sum,
    tensor_scale,
)
from tests.rules.numpy_twins import narrow_twin, pace_twin, scale_twin

RULES = (HyperAdamRule, RNNpropRule, DMRule)


@pytest.mark.parametrize("total", [1, 2, 3, 19, 20, 21, 39, 40, 41, 100, 140, 1000, 99_999])
def test_pace_of_a_known_horizon_equals_the_twin(total):
    steps = [*range(1, min(total, 300) + 1), total // 2 + 1, total - 1, total, total + 1, 5 * total]
    for step in steps:
        if step >= 1:
            for warmup in (0, 7):  # of no consequence where the horizon is known
                expected = pace_twin(step, total, warmup)
                assert pace(step, total, warmup) == pytest.approx(expected, rel=1e-12)
            for share in (1, 3, 5):
                expected = pace_twin(step, total, 0, share)
                assert pace(step, total, 0, share) == pytest.approx(expected, rel=1e-12)


def test_pace_in_numbers():
    """40 steps: two of warm-up, then down to what would be zero at the 41st; and no further."""
    expected = [0.5, 1.0, 38 / 39, 37 / 39]
    assert [pace(t, 40, 0) for t in (1, 2, 3, 4)] == pytest.approx(expected)
    assert [pace(t, 40, 0) for t in (39, 40, 41, 1000)] == pytest.approx(
        [2 / 39, 1 / 39, 1 / 39, 1 / 39]
    )
    assert [pace(t, 1, 0) for t in (1, 2)] == [1, 1]
    # 0.05 · 140 is 7.000000000000001 in floats: eight steps of warm-up would be one too many
    assert pace(7, 140, 0) == 1


def test_without_a_horizon_there_is_the_rules_own_warmup():
    assert [pace(t, None, 0) for t in (1, 2, 100)] == [1, 1, 1]
    assert [pace(t, None, 4) for t in (1, 2, 4, 5, 100)] == [0.25, 0.5, 1, 1, 1]
    warm = HyperAdamRule(candidates=1, warmup=4)
    assert [warm.pace(t) for t in (1, 5)] == [0.25, 1]
    assert [warm.pace(t, 20) for t in (1, 20)] == pytest.approx([1, 1 / 20])


@pytest.mark.parametrize("total", [0, -3])
def test_a_horizon_has_at_least_one_step(total):
    with pytest.raises(ValueError, match=f"total must be None or at least 1 step, got {total}"):
        pace(1, total, 0)


SHAPES = [
    (),
    (1,),
    (5000,),
    (20, 784),
    (20, 64),
    (20, 65),
    (9, 256),
    (16, 3, 3, 3),
    (32, 32, 3, 3),
    (7, 0),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scale_equals_the_twin(shape):
    sizes = np.array([0.0, 1e-30, 0.01, 0.0285, 0.0999, 0.1, 0.1001, 1.0, 37.5])
    actual = tensor_scale(torch.from_numpy(sizes), shape)
    expected = [scale_twin(size, shape) for size in sizes]
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12)
    assert tensor_scale(torch.full((2, 3), 0.2), shape).shape == (2, 3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_factor_of_the_width_equals_the_twin(shape):
    assert narrow_factor(shape) == pytest.approx(narrow_twin(shape), rel=1e-12)


def test_width_multiplies_the_scale():
    sizes = torch.tensor([0.0, 0.1, 0.3])
    plain, narrow = HyperAdamRule(1), HyperAdamRule(1, width=True)
    for shape in ((20, 896), (5000,)):
        assert torch.equal(narrow.scale(sizes, shape), plain.scale(sizes, shape) / 2)
    torch.testing.assert_close(
        narrow.scale(sizes, (16, 14, 8, 8)), 0.2 * plain.scale(sizes, (16, 14, 8, 8))
    )
    for shape in ((20, 448), (20, 1)):
        assert torch.equal(narrow.scale(sizes, shape), plain.scale(sizes, shape))


def test_a_tempered_rule_takes_shorter_steps_in_long_trainings():
    plain, temper = HyperAdamRule(1, warmup=4), HyperAdamRule(1, warmup=4, temper=True)
    for step in (1, 7, 100):
        assert temper.pace(step, 100) == plain.pace(step, 100)
        assert temper.pace(step, 1000) == pytest.approx(10**-0.3 * plain.pace(step, 1000))
        assert temper.pace(step) == pytest.approx(10**-0.3 * plain.pace(step))  # the unknown


def test_a_deep_network_takes_shorter_steps():
    plain = HyperAdamRule(1, warmup=4, relative=True)
    deep = HyperAdamRule(1, warmup=4, relative=True, depth=True)
    for step, total in ((1, None), (7, 100)):
        for matrices, share in ((0, 1), (1, 1), (2, 1), (8, 0.5), (50, 0.2)):
            assert deep.pace(step, total, matrices) == pytest.approx(
                share * plain.pace(step, total)
            )
            assert plain.pace(step, total, matrices) == plain.pace(step, total)
    with pytest.raises(ValueError, match="depth=True needs relative=True"):
        HyperAdamRule(1, depth=True)


def test_what_counts_as_a_matrix():
    assert count_matrices([(3, 4), (5,), (), (2, 3, 3, 3), (4, 1)]) == 3
    assert count_matrices([]) == 0


def test_the_share_of_warm_up_is_an_option():
    rule = HyperAdamRule(1, warmup=3, warmup_share=5)
    assert [rule.pace(t, 100) for t in (1, 20, 21)] == pytest.approx([1 / 20, 1, 80 / 81])
    assert rule.pace(1) == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="warmup_share must be a whole number, at least 1"):
        HyperAdamRule(1, warmup_share=0)


def test_options_at_their_defaults_are_not_in_the_configuration():
    """Names and hashes of weights from before them stay."""
    later = {"warmup_share": 20, "width": False, "temper": False, "depth": False}
    assert HyperAdamRule(1, **later, step_size=0.005).config == HyperAdamRule(1).config
    changed = {"warmup_share": 5, "width": True, "temper": True, "depth": True, "relative": True}
    changed["step_size"] = 0.01
    assert HyperAdamRule(1, **changed).config == HyperAdamRule(1).config | changed
    for name in ("width", "temper", "depth"):
        with pytest.raises(ValueError, match=f"{name} must be True or False, got 'yes'"):
            HyperAdamRule(1, **{name: "yes"})


def test_weights_may_have_a_step_size_of_their_own(tmp_path):
    HyperAdamRule(1, step_size=0.02).save(tmp_path / "own.safetensors")
    rule, w = load_rule(tmp_path / "own.safetensors"), torch.zeros(3, requires_grad=True)
    assert rule.step_size == HyperAdam([w], weights=rule).defaults["lr"] == 0.02
    assert HyperAdam([w], weights=rule, lr=0.1).defaults["lr"] == 0.1
    assert HyperAdamRule(1).step_size == HyperAdamRule.step_size == 0.005
    for bad in (0, -0.1, 1.1, float("nan"), "long", True):
        with pytest.raises(ValueError, match="step_size must be a number, at least 1e-06 and at"):
            HyperAdamRule(1, step_size=bad)


def test_the_papers_learners_have_scale_one():
    for shape in ((20, 784), (20,), (10, 20), (16, 16, 3, 3), (80, 20)):
        assert tensor_scale(torch.tensor(0.1), shape) == 1
    assert tensor_scale(torch.tensor(0.0), (20, 20)) == 1
    assert tensor_scale(torch.tensor(0.0), (20, 256)) == 0.5


def test_fans():
    assert [fan_in(shape) for shape in ((), (9,), (3, 8), (3, 8, 5, 5))] == [1, 1, 8, 200]


@pytest.mark.parametrize("count", [0, 1, 16_383, 16_384, 16_385, 2**20 + 3])
def test_root_mean_square(count):
    x = torch.randn(count, generator=torch.Generator().manual_seed(0)) * 3
    exact = math.fsum(v * v for v in x.tolist())
    assert square_sum(x).dtype == torch.float64
    assert square_sum(x).item() == pytest.approx(exact, rel=1e-13)
    assert root_mean_square(x).item() == np.float32(math.sqrt(exact / max(1, count)))
    assert root_mean_square(x).dtype == torch.float32


def test_root_mean_square_of_other_layouts_and_dtypes():
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    assert root_mean_square(x.T).item() == pytest.approx(root_mean_square(x).item(), rel=1e-6)
    half = x.bfloat16()
    assert torch.equal(root_mean_square(half), root_mean_square(half.double()))
    huge = torch.full((3,), 3e30)
    assert root_mean_square(huge).item() == pytest.approx(3e30)
    assert not root_mean_square(torch.tensor([1.0, torch.nan])).isfinite()


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.kind)
def test_relative_is_an_option_of_every_rule(kind):
    plain, relative = kind(), kind(relative=True)
    assert (plain.relative, plain.memory) == (False, 0)
    assert (relative.relative, relative.memory) == (True, 1)
    # while it is off nobody can tell that it is there: names and hashes of weights stay
    assert "relative" not in plain.config
    assert "relative" not in kind(relative=False).config
    assert relative.config == plain.config | {"relative": True}
    assert relative.extra_repr() == f"{plain.extra_repr()}, relative=True"
    for bad in ("yes", 1, None):
        with pytest.raises(ValueError, match=f"relative must be True or False, got {bad!r}"):
            kind(relative=bad)


def test_memory_begins_with_the_size():
    rule = DMRule(relative=True)
    memory = rule.init_memory(torch.tensor([0.1, 0.5], dtype=torch.float64))
    assert memory.dtype == torch.float32
    assert torch.equal(memory, torch.tensor([[0.1], [0.5]]))


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.kind)
def test_the_update_itself_is_not_scaled(kind):
    """Scale and pace are not the rule's: a relative one gives the same direction."""
    torch.manual_seed(0)
    plain = kind()
    relative = kind(relative=True)
    relative.load_state_dict(plain.state_dict())
    g = torch.randn(3, 11)
    assert torch.equal(plain(g, plain.init_state(g))[0], relative(g, relative.init_state(g))[0])


def test_long_trainings_take_shorter_steps():
    assert horizon_factor(100) == 1
    assert horizon_factor(1000) == pytest.approx(10**-0.3)
    assert horizon_factor(0) == horizon_factor(1000)  # the unknown
    assert horizon_factor(10) > 1
