"""Rules with every option of interest, and gradients to try them on."""

import torch

from hyperadam.rules import DMRule, HyperAdamRule, RNNpropRule

HYPERADAM_OPTIONS = {
    "paper": {},
    "bounded": {"decay_bound": 0.97},
    "normalized-state": {"normalize_state": True},
    "no-lstm": {"lstm": False},
    "no-preprocess": {"preprocess": False},
    "neither": {"lstm": False, "preprocess": False},
    "one-candidate": {"candidates": 1},
    "seven-bounded-normalized": {"candidates": 7, "decay_bound": 0.9, "normalize_state": True},
    "neither-normalized": {
        "lstm": False,
        "preprocess": False,
        "normalize_state": True,
        "candidates": 3,
    },
}


def spread(rule, scale=0.3, seed=0):
    """The rule with weights far enough from zero that every term of it matters."""
    generator = torch.Generator().manual_seed(seed)
    for value in rule.parameters():
        value.data += scale * torch.randn(value.shape, generator=generator)
    return rule


def hyperadam(options, seed=0):
    torch.manual_seed(seed)
    return spread(HyperAdamRule(**options), seed=seed)


def every_rule():
    torch.manual_seed(0)
    rules = {f"hyperadam-{name}": hyperadam(options) for name, options in HYPERADAM_OPTIONS.items()}
    return {**rules, "rnnprop": spread(RNNpropRule()), "dm": spread(DMRule())}


def gradients(steps, *shape, seed=0, dtype=torch.float64):
    """Gradients of many sizes, with zeros among them."""
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(steps, *shape, generator=generator, dtype=torch.float64)
    g *= torch.exp(3 * torch.randn(steps, *shape, generator=generator, dtype=torch.float64))
    g[torch.rand(g.shape, generator=generator) < 0.1] = 0
    return g.to(dtype)


def rollout(rule, grads, state=None):
    """Updates and final state over ``grads (steps, ..., p)``."""
    state = rule.init_state(grads[0]) if state is None else state
    updates = []
    for g in grads:
        d, state = rule(g, state)
        updates.append(d)
    return torch.stack(updates), state
