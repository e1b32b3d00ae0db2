"""A learned rule as a ``torch.optim.Optimizer``: what a step reads, in what order it acts, and what a checkpoint holds."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator
from itertools import chain
from numbers import Real
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from hyperadam.kernels import Kernel, make_kernel
from hyperadam.optim.layout import is_packed, pack, rows_of
from hyperadam.rules import UpdateRule
from hyperadam.rules.base import Sums
from hyperadam.weights.loader import WeightsError, check_finite, load_rule

#: What ``weights`` takes: a shipped name, a path to a ``.safetensors`` file, or a rule.
Weights: TypeAlias = str | os.PathLike[str] | UpdateRule[Any]

#: Coordinates that a step works on at a time. Its temporaries are a few vectors of this length, whatever the model's size.
CHUNK = 2**20

STATE_DTYPES = (torch.float32, torch.float64, torch.bfloat16)
STEP = "step"


class Entry(NamedTuple):
    """A parameter that has a gradient in this step. ``position`` counts over all groups."""

    param: Tensor
    grad: Tensor
    group: dict[str, Any]
    position: int
    label: str


class Part(NamedTuple):
    """A parameter's share of the step: its gradient ``(n,)``, its state as ``(rows, n)`` views, and who steps them."""

    entry: Entry
    grad: Tensor
    state: Any
    kernel: Kernel
    seed: int
    pace: float

    def chunks(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor, Any]]:
        """Where, the gradient in ``dtype`` with the sign to descend, and the state, a chunk at a time."""
        for start in range(0, self.grad.numel(), CHUNK):
            here = slice(start, start + CHUNK)
            grad = self.grad[here].to(dtype).contiguous()
            yield here, -grad if self.entry.group["maximize"] else grad, type(self.state)(*(x[:, here] for x in self.state))


class LearnedOptimizer(Optimizer):
    """Applies a learned rule's update, ``p -= lr * (update + weight_decay * p)``, to all parameters as one vector.

    If the rule warms up, ``lr`` stands for ``lr * rule.pace(step)``, by each parameter's own count of steps.

    Norms run over every parameter of every group that has a gradient in this step: how a model is cut into tensors and
    groups does not change the numbers. A parameter without a gradient takes no part, and its state waits. State is kept per
    parameter, each field ``p.shape + (rows,)`` in ``state_dtype``, whatever the dtype of the parameter.

    Learning-rate schedulers work on ``lr`` as with any optimizer; those that also cycle momentum (``OneCycleLR``, ``CyclicLR``)
    need ``cycle_momentum=False``, for there is no momentum to set.

    Args:
        params: parameters, named parameters, or dicts of parameter groups; ``lr``, ``weight_decay`` and ``maximize`` may
            differ per group.
        lr: the step size, a float or a one-element tensor; ``None``: the rule's published one.
        weights: a shipped name (:func:`hyperadam.list_weights`), a path to a ``.safetensors`` file, or a rule, of which the
            optimizer takes a copy.
        weight_decay: decoupled, as in AdamW.
        maximize: ascend.
        state_dtype: ``torch.float32``; ``torch.float64``, which also computes in float64; or ``torch.bfloat16``, half the
            memory, stochastically rounded. A float16 state is refused: its range ends at 6e-8, above most squared gradients.
        backend: "auto" or one of :func:`hyperadam.kernels.available`.
        nonfinite: "raise" an error that names the parameter whose gradient is not finite, or "skip" the step and count it in
            ``skipped_steps``. Parameters and state stay as they are in both cases. A gradient whose square overflows counts
            as not finite: it would stay in the second moment for ever.
    """

    rule_class: ClassVar[type[UpdateRule[Any]]] = UpdateRule

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | None = None,
        *,
        weights: Weights,
        weight_decay: float = 0.0,
        maximize: bool = False,
        state_dtype: torch.dtype = torch.float32,
        backend: str = "auto",
        nonfinite: str = "raise",
    ) -> None:
        if state_dtype not in STATE_DTYPES:
            why = ", whose range is too small for squared gradients" if state_dtype == torch.float16 else ""
            raise ValueError(f"state_dtype must be one of {', '.join(map(str, STATE_DTYPES))}, got {state_dtype}{why}")
        if nonfinite not in ("raise", "skip"):
            raise ValueError(f"nonfinite must be 'raise' or 'skip', got {nonfinite!r}")
        self.rule = _take_rule(weights, self.rule_class)
        self.state_dtype, self.backend, self.nonfinite = state_dtype, backend, nonfinite
        self._kernels: dict[torch.device, Kernel] = {}
        defaults = {
            "lr": self.rule.step_size if lr is None else lr,
            "weight_decay": weight_decay,
            "maximize": maximize,
            # these two ride in the groups because that is the part of a state dict that every tool carries along
            "rule": f"{self.rule.kind}({self.rule.extra_repr()})",
            "skipped_steps": 0,
        }
        _check_options(defaults)
        super().__init__(params, defaults)
        for p in self._params():
            self._kernel(p.device)  # so that a backend that is not there is refused now

    @property
    def skipped_steps(self) -> int:
        """How many steps ``nonfinite="skip"`` has skipped; part of the state dict."""
        count: int = self.param_groups[0]["skipped_steps"]
        return count

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, now or in the middle of training; their state starts at zero."""
        if isinstance(param_group, dict):
            _check_options(self.defaults | param_group)
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step on all parameters that have a gradient; returns the closure's loss, if one is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        entries = self._entries()
        if not entries or not self._check_gradients(entries):
            return loss

        parts = [self._part(entry) for entry in entries]
        sums: Sums = ()
        for _ in range(self.rule.rounds):
            sums += (self._total(self._column_sums(parts, sums)),)
        for part in parts:
            self._apply(part, sums)
        return loss

    def _entries(self) -> list[Entry]:
        """Parameters with a gradient, in the order of the groups; empty ones have nothing to step."""
        entries: list[Entry] = []
        position = 0
        for number, group in enumerate(self.param_groups):
            for i, p in enumerate(group["params"]):
                if p.grad is not None and p.numel():
                    name = repr(group["param_names"][i]) if "param_names" in group else f"{i} of group {number}"
                    entries.append(Entry(p, p.grad, group, position, f"parameter {name} of shape {tuple(p.shape)}"))
                position += 1
        return entries

    def _check_gradients(self, entries: list[Entry]) -> bool:
        """Whether to take the step. Nothing has been changed when this raises or says no."""
        for entry in entries:
            if entry.grad.layout != torch.strided:
                raise RuntimeError(f"{entry.label} has a gradient of layout {entry.grad.layout}, expected a dense one")
            if not entry.grad.is_floating_point():
                raise RuntimeError(f"{entry.label} has a gradient of type {entry.grad.dtype}, expected a real floating type")
        # the extremes tell without a temporary of the gradient's size; they are read back once, for all devices
        extremes = [torch.stack(torch.aminmax(entry.grad)).to(entries[0].grad.device, self._dtype) for entry in entries]
        finite = torch.stack(extremes).square().isfinite().all(dim=1).cpu().tolist()
        bad = [entry.label for entry, ok in zip(entries, finite, strict=True) if not ok]
        if bad and self.nonfinite == "raise":
            others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            raise RuntimeError(
                f"{bad[0]}{others} has a gradient that is not finite, or whose square overflows {self._dtype}; "
                "parameters and state are unchanged; nonfinite='skip' would skip such steps"
            )
        if bad:
            for group in self.param_groups:
                group["skipped_steps"] += 1
        return not bad

    def _part(self, entry: Entry) -> Part:
        """The parameter's share of the step, its state made or repacked if need be, and its step counted."""
        p, state = entry.param, self.state[entry.param]
        if not state:
            state[STEP] = torch.zeros((), dtype=torch.float32)
            state |= pack(self.rule, p, self.state_dtype)
        elif not is_packed(self.rule, p, self.state_dtype, state):
            state |= pack(self.rule, p, self.state_dtype, state)
        state[STEP] += 1
        # odd multipliers spread steps and parameters over 31 bits: tensors round differently, a resumed run the same
        step = int(state[STEP])
        seed = (step * 0x9E3779B1 + entry.position * 0x85EBCA77) & 0x7FFFFFFF
        rows = rows_of(self.rule, p, state)
        return Part(entry, entry.grad.reshape(-1), rows, self._kernel(p.device), seed, self.rule.pace(step))

    def _column_sums(self, parts: list[Part], sums: Sums) -> Tensor:
        """The next round's column sums over all parts, ``(columns,)`` in float64 on the first part's device."""
        shares = [part.kernel.column_sums(g, s, sums) for part in parts for _, g, s in part.chunks(self._dtype)]
        return torch.stack([share.to(shares[0].device) for share in shares]).sum(0)

    def _total(self, sums: Tensor) -> Tensor:
        """Column sums over the whole vector; where parameters are sharded, the place to add those of the other ranks."""
        return sums

    def _apply(self, part: Part, sums: Sums) -> None:
        """Step the rule on one parameter and move it."""
        p, group = part.entry.param, part.entry.group
        lr, weight_decay = float(group["lr"]) * part.pace, group["weight_decay"]
        w = p.reshape(-1)  # a view, except of a parameter in another memory format
        for number, (here, grad, state) in enumerate(part.chunks(self._dtype)):
            update = part.kernel.step_(grad, state, sums, part.seed + number)
            if weight_decay:
                # decay joins the update so that the parameter is rounded once: p * (1 - lr * decay) is p in bfloat16
                update.add_(w[here], alpha=weight_decay)
            w[here].add_(update, alpha=-lr)
        if not p.is_contiguous():
            p.copy_(w.view_as(p))

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over a state dict, state in this optimizer's own ``state_dtype`` and on its parameters' devices.

        One that belongs to another rule or another configuration of it is refused before anything changes.
        """
        # torch would cast the state to the dtype of the parameters, and so ruin a float32 state under a bfloat16 model: it
        # is taken out of torch's hands after the last of the user's hooks, and put in place before their next one
        loaded: StateDict = {}

        def take(_: Optimizer, state_dict: StateDict) -> StateDict:
            self._check_state_dict(state_dict)
            loaded.update(state_dict)
            return state_dict | {"state": {}}

        def put(_: Optimizer) -> None:
            for key, p in self._loaded_params(loaded).items():
                if saved := loaded["state"].get(key):
                    step = torch.as_tensor(saved[STEP]).to("cpu", torch.float32, copy=True)
                    self.state[p] = {STEP: step} | pack(self.rule, p, self.state_dtype, saved)

        hooks = (self.register_load_state_dict_pre_hook(take), self.register_load_state_dict_post_hook(put, prepend=True))
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    def _check_state_dict(self, state_dict: StateDict) -> None:
        """Refuse the state of another rule. Numbers of groups and parameters are torch's to check."""
        for group in state_dict["param_groups"]:
            given, expected = group.get("rule"), self.defaults["rule"]
            if given != expected:
                what = "has no rule in its groups: it is not of a learned optimizer" if given is None else f"belongs to {given}"
                raise ValueError(f"state_dict {what}; expected {expected}")
        rows = self.rule.state_rows()
        for key, p in self._loaded_params(state_dict).items():
            saved = state_dict["state"].get(key)
            if saved and saved.keys() != {STEP, *rows}:
                raise ValueError(f"state_dict: state {key} has fields {sorted(saved)}, expected {sorted({STEP, *rows})}")
            for name, count in rows.items() if saved else ():
                given, expected = tuple(saved[name].shape), (*p.shape, count)
                if given != expected:
                    raise ValueError(f"state_dict: {name!r} of state {key} has shape {given}, expected {expected}")

    def _loaded_params(self, state_dict: StateDict) -> dict[Any, Tensor]:
        """This optimizer's parameters by their keys in ``state_dict``; none if the groups do not match, as torch will say."""
        groups = state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in self.param_groups]:
            return {}
        return dict(zip(chain.from_iterable(group["params"] for group in groups), self._params(), strict=True))

    def _params(self) -> Iterator[Tensor]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    @property
    def _dtype(self) -> torch.dtype:
        """The dtype in which the rule computes."""
        return torch.float64 if self.state_dtype == torch.float64 else torch.float32

    def _kernel(self, device: torch.device) -> Kernel:
        if device not in self._kernels:
            self._kernels[device] = make_kernel(copy.deepcopy(self.rule).to(device, self._dtype), self.backend)
        return self._kernels[device]

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("rule", "state_dtype", "backend", "nonfinite")}
        return super().__getstate__() | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._kernels = {}  # they hold native handles: made anew when they are needed

    def __repr__(self) -> str:
        backends = ", ".join(sorted({self._kernel(p.device).name for p in self._params()}))
        lines = [
            f"rule: {self.defaults['rule']}",
            f"state: {self.state_dtype}, backend: {backends}, nonfinite: {self.nonfinite}",
        ]
        for number, group in enumerate(self.param_groups):
            size = sum(p.numel() for p in group["params"])
            options = ", ".join(f"{key}: {group[key]}" for key in ("lr", "weight_decay", "maximize"))
            lines.append(f"group {number}: {len(group['params'])} tensors, {size:,} coordinates, {options}")
        return "\n    ".join([f"{type(self).__name__} (", *lines]) + "\n)"


def _take_rule(weights: Weights, wanted: type[UpdateRule[Any]]) -> UpdateRule[Any]:
    """A frozen rule of the wanted kind, the optimizer's own."""
    if isinstance(weights, UpdateRule):
        rule, source = copy.deepcopy(weights), "the rule given as weights"
        check_finite(rule, source)
    elif isinstance(weights, str | os.PathLike):
        rule, source = load_rule(weights), f"weights {os.fspath(weights)!r}"
    else:
        raise TypeError(f"weights must be the name of shipped weights, a path or an UpdateRule, got {type(weights).__name__}")
    if not isinstance(rule, wanted):
        raise WeightsError(f"{source}: got a {type(rule).__name__}, expected a {wanted.__name__}")
    return rule.requires_grad_(False)


def _check_options(options: dict[str, Any]) -> None:
    """Refuse a step size or weight decay that is no finite number from zero up; a one-element tensor is one for ``lr``."""
    for name in ("lr", "weight_decay"):
        value = options[name]
        number = value.item() if name == "lr" and isinstance(value, Tensor) and value.numel() == 1 else value
        if not isinstance(number, Real) or not 0 <= float(number) < math.inf:
            raise ValueError(f"{name} must be a finite number ≥ 0, got {value!r}")
