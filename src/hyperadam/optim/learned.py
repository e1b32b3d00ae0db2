"""A learned rule as a ``torch.optim.Optimizer``: from ``p.grad`` to the kernel, and into ``p``."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from hyperadam.kernels import Kernel, Motion, make_kernel
from hyperadam.optim.checkpoint import STEP, check_groups, loaded_state, new_state
from hyperadam.optim.options import Weights, check_options, shown, take_rule
from hyperadam.optim.plan import Plan, Share
from hyperadam.optim.sharding import (
    Ranks,
    check_group,
    find_ranks,
    local,
    local_grad,
    rows_like,
    zero_redundancy_group,
)
from hyperadam.rules import UpdateRule
from hyperadam.rules.base import Sums

STATE_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


class LearnedOptimizer(Optimizer):
    """Applies a learned rule's update to all parameters as one vector.

    A parameter moves by ``p -= lr * (update + weight_decay * p)``. If the rule warms up, ``lr``
    stands for ``lr * rule.pace(step)``, by each parameter's own count of steps.

    Norms run over every parameter of every group that has a gradient in this step: how a model is
    cut into tensors, groups and shards does not change the numbers. A parameter without a gradient
    takes no part, and its state waits. State is kept per parameter, each field ``(rows, *p.shape)``
    in ``state_dtype``, whatever the dtype of the parameter;
    of a ``DTensor`` it is a ``DTensor``, sharded alike.

    Learning-rate schedulers work on ``lr`` as with any optimizer. Those that also cycle momentum
    (``OneCycleLR``, ``CyclicLR``) find a ``momentum`` in the groups and may set it: it is there for
    them alone and changes nothing.

    Args:
        params: parameters, named parameters, or dicts of parameter groups; ``lr``, ``weight_decay``
            and ``maximize`` may differ per group.
        lr: the step size, a float or a one-element tensor; ``None``: the rule's published one.
        weights: a shipped name (:func:`hyperadam.list_weights`), a path to a ``.safetensors`` file,
            or a rule, of which the optimizer takes a copy; ``None``: those of the optimizer's name.
        weight_decay: decoupled, as in AdamW.
        maximize: ascend.
        state_dtype: ``torch.float32``; ``torch.float64``, which also computes in float64; or
            ``torch.bfloat16``, half the memory, rounded by chance. A float16 state is refused: its
            range ends at 6e-8, above most squared gradients.
        backend: "auto" or one of :func:`hyperadam.kernels.available`.
        nonfinite: "raise" an error that names the parameter whose gradient is not finite, or
            "skip" the step and count it in ``skipped_steps``. Parameters and state stay as they are
            in both cases. A gradient whose square overflows counts as not finite: it would stay in
            the second moment for ever.
        process_group: the ranks over which the parameters are split, a different piece on each, as
            by FSDP1 or into the stages of a pipeline: norms then run over all of them. FSDP2,
            tensor parallelism and ``ZeroRedundancyOptimizer`` need no telling.
    """

    rule_class: ClassVar[type[UpdateRule[Any]]] = UpdateRule
    _plan: Plan | None
    default_weights: ClassVar[str] = ""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | None = None,
        *,
        weights: Weights | None = None,
        weight_decay: float = 0.0,
        maximize: bool = False,
        state_dtype: torch.dtype = torch.float32,
        backend: str = "auto",
        nonfinite: str = "raise",
        process_group: Any = None,
    ) -> None:
        if state_dtype not in STATE_DTYPES:
            why = (
                ", whose range is too small for squared gradients"
                if state_dtype == torch.float16
                else ""
            )
            raise ValueError(
                f"state_dtype must be one of {', '.join(map(str, STATE_DTYPES))}, "
                f"got {state_dtype}{why}"
            )
        if nonfinite not in ("raise", "skip"):
            raise ValueError(f"nonfinite must be 'raise' or 'skip', got {nonfinite!r}")
        check_group(process_group)
        self.rule = take_rule(self.default_weights if weights is None else weights, self.rule_class)
        self.state_dtype, self.backend, self.nonfinite = state_dtype, backend, nonfinite
        self._process_group = zero_redundancy_group() if process_group is None else process_group
        self._group_lost = False
        self._forget()
        defaults = {
            "lr": self.rule.step_size if lr is None else lr,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "momentum": 0.0,  # for schedulers that would cycle it
            # in the groups, for that is the part of a state dict that every tool carries along
            "rule": f"{self.rule.kind}({self.rule.extra_repr()})",
            "skipped_steps": 0,
        }
        check_options(defaults)
        super().__init__(params, defaults)
        for p in self._params():
            self._kernel(p.device)  # so that a backend that is not there is refused now

    @property
    def skipped_steps(self) -> int:
        """How many steps ``nonfinite="skip"`` has skipped; part of the state dict."""
        count: int = self.param_groups[0]["skipped_steps"]
        return count

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, now or in the middle of training; state starts at zero."""
        if isinstance(param_group, dict):
            check_options(self.defaults | param_group)
        super().add_param_group(param_group)
        self._ranks_known = False

    # The step ---------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step on all parameters that have a gradient; returns the closure's loss, if any."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step()
        return loss

    # a kernel takes addresses: the graph of a compiled loop breaks here and goes on behind
    @_disable_dynamo  # torch.compiler.disable would import the compiler now, this when needed
    def _step(self) -> None:
        params, grads = self._gradients()
        ranks = self._ranks()
        if not params and ranks is None:
            return
        plan = self._plan_for(params, ranks)
        plan.take(grads)
        bad = [self._label(position) for position in plan.too_large(self._limit)]
        if bad and ranks is None:
            return self._refuse(bad, plan)

        def share(earlier: Sums) -> Tensor:
            sums = plan.sums(earlier)
            if ranks is None:
                return sums
            # a bad gradient spoils the sums on every rank: all refuse the step together
            return ranks.add(torch.full_like(sums, torch.nan) if bad else sums)

        sums = self.rule.total_sums(share)
        if ranks is not None and not sums[0].isfinite().all():
            return self._refuse(bad or ["a parameter on another rank"], plan)
        if self._only_makes_state(plan, grads, sums):
            plan.fresh = []
            return
        plan.step_(sums, self._motions(plan))
        increment_version(
            params
        )  # a kernel writes past autograd, which must still find out a stale graph

    def _gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """Whose turn it is, in the order of the groups, and gradients as a kernel reads them."""
        params, grads = [], []
        for group in self.param_groups:
            for p in group["params"]:
                grad = p.grad
                if grad is None:
                    continue
                plain = (
                    type(grad) is Tensor
                    and grad.dtype is torch.float32
                    and grad.layout is torch.strided
                )
                if not plain or group["maximize"] or not grad.is_contiguous():
                    grad = self._readable_grad(p, group["maximize"])
                # an empty one, too: a tool that saves shards wants its state on all ranks
                params.append(p)
                grads.append(grad)
        return params, grads

    def _readable_grad(self, p: Tensor, maximize: bool) -> Tensor:
        """This rank's gradient of ``p`` as its kernel reads it, with the sign to descend."""
        grad = local_grad(p)
        fault = ""
        if grad.layout != torch.strided:
            fault = f"layout {grad.layout}, expected a dense one"
        elif not grad.is_floating_point():
            fault = f"type {grad.dtype}, expected a real floating type"
        if fault:
            position = next(i for i, q in enumerate(self._params()) if q is p)
            raise RuntimeError(f"{self._label(position)} has a gradient of {fault}")
        grad = self._readable(grad).contiguous()
        return -grad if maximize else grad

    def _readable(self, x: Tensor) -> Tensor:
        """``x`` in a dtype that its kernel reads: its own if that will do."""
        dtypes = self._kernel(x.device).dtypes
        return x if dtypes is None or x.dtype in dtypes else x.to(self._dtype)

    def _plan_for(self, params: list[Tensor], ranks: Ranks | None) -> Plan:
        """The plan of the last step if it holds, else a new one; a first step makes state."""
        if self._plan is not None and self._plan.holds(params, self.state):
            return self._plan
        fresh = [p for p in params if not self.state.get(p)]
        for p in fresh:
            self.state[p] = new_state(self.rule, p, self.state_dtype)
        shares: dict[tuple[torch.device, float], Share] = {}
        for i, p in enumerate(params):
            w = local(p)
            key = w.device, 1.0 if ranks is None else ranks.weight(p)
            if key not in shares:
                shares[key] = Share(self._kernel(w.device), key[1])
            shares[key].add(i, w, self._readable(w).contiguous(), self._fields(p))
        if ranks is not None and not params:  # the others wait for this rank's, which is nothing
            device = next((p.device for p in self._params()), ranks.device)
            shares[device, 1.0] = Share(self._kernel(device), 1.0)
        states = [self.state[p] for p in params]
        plan = Plan(params, self.param_groups, states, list(shares.values()), fresh)
        self._plan = plan if plan.reusable else None
        return plan

    def _fields(self, p: Tensor) -> Any:
        """This rank's state of ``p``; what a tool has put in its place is brought into line."""
        state, device = self.state[p], local(p).device
        state[STEP] = torch.as_tensor(state[STEP]).to("cpu", torch.int64)
        fields = []
        for name in self.rule.State._fields:
            x = local(state[name])
            if x.dtype != self.state_dtype or not x.is_contiguous() or x.device != device:
                x = x.to(device, self.state_dtype).contiguous()
                state[name] = rows_like(p, x)
            fields.append(x)
        return self.rule.State(*fields)

    def _motions(self, plan: Plan) -> list[Motion]:
        """How each parameter moves in this step."""
        rates = [(float(group["lr"]), float(group["weight_decay"])) for group in self.param_groups]
        rounded = self.state_dtype == torch.bfloat16
        alike: dict[tuple[int, int], Motion] = {}
        motions = []
        for step, (group, position) in zip(plan.steps(), plan.places, strict=True):
            motion = alike.get((step, group))
            if motion is None:
                lr, decay = rates[group]
                motion = alike[step, group] = Motion(lr * self.rule.pace(step), decay)
            if rounded:
                # odd factors spread steps and parameters over 31 bits: tensors round
                # differently, a resumed run the same
                seed = (step * 0x9E3779B1 + position * 0x85EBCA77) & 0x7FFFFFFF
                motion = motion._replace(seed=seed)
            motions.append(motion)
        return motions

    def _only_makes_state(self, plan: Plan, grads: list[Tensor], sums: Sums) -> bool:
        """Whether this is the very first step, without gradient or ``lr``.

        ``torch.distributed.checkpoint`` steps so when it wants state to be there, and must not find
        any that has moved."""
        if len(plan.fresh) < len(self.state) or any(
            float(group["lr"]) for group in self.param_groups
        ):
            return False
        # ranks must agree: where there are sums, these tell
        return not (sums[0].any() if sums else any(grad.any() for grad in grads))

    def _refuse(self, bad: list[str], plan: Plan) -> None:
        """Raise for the first bad gradient, or count the step as skipped. Nothing is changed."""
        for p in plan.fresh:
            del self.state[p]
        self._plan = None
        if self.nonfinite == "raise":
            others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            raise RuntimeError(
                f"{bad[0]}{others} has a gradient that is not finite, or whose square overflows "
                f"{self._dtype}; parameters and state are unchanged; "
                "nonfinite='skip' would skip such steps"
            )
        for group in self.param_groups:
            group["skipped_steps"] += 1

    def _ranks(self) -> Ranks | None:
        """The ranks that hold the vector together, found once; without norms none is needed."""
        if self._group_lost and self.rule.rounds:
            raise RuntimeError(
                "this optimizer is a copy of one with a process_group, which copies do not keep: "
                "make a new one with process_group= and load_state_dict() into it"
            )
        if not self._ranks_known:
            self._found = (
                find_ranks(self, self._params(), self._process_group) if self.rule.rounds else None
            )
            self._ranks_known = True
        return self._found

    # Checkpoints ------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over a state dict, state in this optimizer's ``state_dtype`` and on its devices.

        One that is damaged, or of another rule or another configuration of it, is refused with a
        ``ValueError`` that names the entry. Nothing has changed then, nor after any other error:
        all is built before anything is put in its place.
        """

        def take(_: Optimizer, state_dict: StateDict) -> StateDict:
            groups, saved = check_groups(self.defaults["rule"], self.param_groups, state_dict)
            states = {}
            for key, p, fields in saved:
                states[p] = loaded_state(self.rule, p, self.state_dtype, key, fields)
            # torch casts a state to its parameter's dtype: a float32 state under a bfloat16 model
            # would be ruined. What lies under a key that no group names, as the parameters here,
            # it leaves as it is.
            for group in groups:
                group["params"] = [None] * len(group["params"])
            return {"state": states, "param_groups": groups}

        if not isinstance(state_dict, Mapping):
            raise ValueError(f"state_dict must be a mapping, got {shown(state_dict)}")
        hook = self.register_load_state_dict_pre_hook(take)  # after the last of the user's
        try:
            super().load_state_dict(dict(state_dict))
        finally:
            hook.remove()

    def __getstate__(self) -> dict[str, Any]:
        own = {
            name: getattr(self, name) for name in ("rule", "state_dtype", "backend", "nonfinite")
        }
        # a group is of one process: none survives a pickle, but that there was one must
        return (
            super().__getstate__()
            | own
            | {"_group_lost": self._group_lost or self._process_group is not None}
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # of a copy, or in torch's load_state_dict
        self._process_group = getattr(self, "_process_group", None)
        self._forget()

    def _forget(self) -> None:
        """Kernels hold native handles, ranks hold groups: both are found anew when needed."""
        self._kernels: dict[torch.device, Kernel] = {}
        self._ranks_known, self._found = False, None
        self._plan = None

    def _params(self) -> Iterator[Tensor]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    def _label(self, position: int) -> str:
        """How errors call the parameter at ``position``."""
        for number, group in enumerate(self.param_groups):
            if position < len(group["params"]):
                name = (
                    repr(group["param_names"][position])
                    if "param_names" in group
                    else f"{position} of group {number}"
                )
                return f"parameter {name} of shape {tuple(group['params'][position].shape)}"
            position -= len(group["params"])
        raise IndexError(position)

    @property
    def _dtype(self) -> torch.dtype:
        """The dtype in which the rule computes."""
        return torch.float64 if self.state_dtype == torch.float64 else torch.float32

    @property
    def _limit(self) -> float:
        """The largest number whose square the rule can take."""
        return math.sqrt(torch.finfo(self._dtype).max)

    def _kernel(self, device: torch.device) -> Kernel:
        if device not in self._kernels:
            rule = copy.deepcopy(self.rule).to(device, self._dtype)
            self._kernels[device] = make_kernel(rule, self.backend, self.state_dtype)
        return self._kernels[device]

    def __repr__(self) -> str:
        backends = ", ".join(sorted({self._kernel(p.device).name for p in self._params()}))
        lines = [
            f"rule: {self.defaults['rule']}",
            f"state: {self.state_dtype}, backend: {backends}, nonfinite: {self.nonfinite}",
        ]
        for number, group in enumerate(self.param_groups):
            size = sum(p.numel() for p in group["params"])
            options = ", ".join(
                f"{key}: {group[key]}" for key in ("lr", "weight_decay", "maximize")
            )
            lines.append(
                f"group {number}: {len(group['params'])} tensors, {size:,} coordinates, {options}"
            )
        return "\n    ".join([f"{type(self).__name__} (", *lines]) + "\n)"
