"""The memory behind the state: one buffer a parameter, rows apart in the cache, two views of the same numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperadam import HyperAdamRule, RNNpropRule
from hyperadam.optim.layout import is_packed, pack, row_length, rows_of

SHAPES = [(), (1,), (5,), (16,), (3, 7), (2, 1, 4), (1, 1), (1024,)]
RULES = [HyperAdamRule(candidates=3), HyperAdamRule(candidates=3, lstm=False), RNNpropRule(units=2)]


@given(st.integers(1, 10**9))
def test_row_length(n: int) -> None:
    width = row_length(n)
    assert n <= width < n + 32
    assert width % 32 == 16


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_views_are_the_same_memory(rule: HyperAdamRule, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    p = torch.empty(shape)
    fields = pack(rule, p, dtype)
    rows = rows_of(rule, p, fields)
    assert isinstance(rows, rule.State)
    assert is_packed(rule, p, dtype, fields)
    for i, (name, count) in enumerate(rule.state_rows().items()):
        assert fields[name].shape == (*shape, count)
        assert fields[name].dtype == dtype
        assert not fields[name].any()
        assert rows[i].shape == (count, p.numel())
        assert rows[i].stride() == (row_length(p.numel()), 1)
        fields[name].copy_(torch.arange(fields[name].numel()).reshape(fields[name].shape) + 1000 * i)
    for i, name in enumerate(rule.state_rows()):
        assert torch.equal(rows[i], fields[name].reshape(p.numel(), -1).mT)  # no field has overwritten another
        assert rows[i].untyped_storage().data_ptr() == rows[0].untyped_storage().data_ptr()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_copies_are_told_from_packed_fields(shape: tuple[int, ...]) -> None:
    rule, p = RULES[0], torch.empty(shape)
    fields = pack(rule, p, torch.float32)
    for i, field in enumerate(fields.values()):
        field.copy_(torch.arange(field.numel()).reshape(field.shape) + 1000 * i)
    assert not is_packed(rule, p, torch.bfloat16, fields)
    for name, field in fields.items():
        assert not is_packed(rule, p, torch.float32, {**fields, name: field.contiguous()})
        assert not is_packed(rule, p, torch.float32, {**fields, name: field.clone(memory_format=torch.preserve_format)})
    flat = torch.cat([field.reshape(-1) for field in fields.values()])
    shared = {name: part.view(*shape, 3) for name, part in zip(fields, flat.chunk(len(fields)), strict=True)}
    assert not is_packed(rule, p, torch.float32, shared)  # one buffer, other strides
    again = pack(rule, p, torch.float32, {name: field.contiguous() for name, field in fields.items()})
    assert is_packed(rule, p, torch.float32, again)
    assert all(torch.equal(again[name], fields[name]) for name in fields)


def test_the_memory_format_of_the_parameter_does_not_matter() -> None:
    p = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    fields = pack(RULES[0], p, torch.float32)
    assert [x.stride() for x in fields.values()] == [(60, 20, 5, 1, row_length(120))] * 6
