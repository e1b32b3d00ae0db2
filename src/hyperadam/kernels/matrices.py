"""HyperAdam's meta-parameters as the four matrices that a kernel multiplies by."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hyperadam.rules.hyperadam import HyperAdamRule


class Matrices(NamedTuple):
    """Each matrix with its bias column: preprocessing, LSTM on ``[x; s]``, both decay rates on
    ``[m'; s]``, weight field.

    A part that the rule's options leave out has no rows."""

    theta_p: Tensor
    b_p: Tensor
    theta_l: Tensor
    b_l: Tensor
    theta_d: Tensor
    b_d: Tensor
    theta_q: Tensor
    b_q: Tensor


def to_matrices(rule: HyperAdamRule) -> Matrices:
    """The rule's meta-parameters, joined into the kernel's matrices."""
    none = rule.theta_q.new_empty(0, 1)
    lstm = rule.lstm
    return Matrices(
        rule.theta_p if rule.preprocess else none,
        rule.b_p if rule.preprocess else none,
        torch.cat([lstm.theta_x, lstm.theta_s], dim=1) if lstm else none,
        lstm.b if lstm else none,
        torch.cat([rule.theta_u, rule.theta_r]),
        torch.cat([rule.b_u, rule.b_r]),
        rule.theta_q,
        rule.b_q,
    )


def from_matrices(rule: HyperAdamRule, matrices: Matrices) -> list[Tensor]:
    """What :func:`to_matrices` joined taken apart again, in the order of ``rule.parameters()``."""
    parts: dict[str, Tensor] = {
        "theta_p": matrices.theta_p,
        "b_p": matrices.b_p,
        "theta_q": matrices.theta_q,
        "b_q": matrices.b_q,
    }
    parts["theta_u"], parts["theta_r"] = matrices.theta_d.chunk(2)
    parts["b_u"], parts["b_r"] = matrices.b_d.chunk(2)
    if rule.lstm:
        inputs = rule.lstm.theta_x.shape[1]
        parts["lstm.theta_x"], parts["lstm.theta_s"] = (
            matrices.theta_l[:, :inputs],
            matrices.theta_l[:, inputs:],
        )
        parts["lstm.b"] = matrices.b_l
    return [parts[name] for name, _ in rule.named_parameters()]
