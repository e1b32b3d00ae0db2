"""The learned update rules: pure functions from gradient and state to update and state."""

from typing import Any

from hyperadam.rules.base import UpdateRule
from hyperadam.rules.dm import DMRule, DMState
from hyperadam.rules.hyperadam import HyperAdamRule, HyperAdamState
from hyperadam.rules.hyperadam2 import HyperAdam2Rule, HyperAdam2State
from hyperadam.rules.rnnprop import RNNpropRule, RNNpropState

#: Every rule by the name its weight files carry.
RULES: dict[str, type[UpdateRule[Any]]] = {
    rule.kind: rule for rule in (HyperAdamRule, HyperAdam2Rule, RNNpropRule, DMRule)
}

__all__ = [
    "RULES",
    "DMRule",
    "DMState",
    "HyperAdam2Rule",
    "HyperAdam2State",
    "HyperAdamRule",
    "HyperAdamState",
    "RNNpropRule",
    "RNNpropState",
    "UpdateRule",
]
