"""A learned rule as a ``torch.optim.Optimizer``: from ``p.grad`` to the kernel, and into ``p``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from hyperadam.kernels import Motion, Part
from hyperadam.optim.checkpoint import check_groups, loaded_state, new_state, used_state
from hyperadam.optim.devices import Kernels
from hyperadam.optim.diagnostics import diagnose, flattened
from hyperadam.optim.memory import MEMORY, check_whole, new_memories
from hyperadam.optim.options import (
    Weights,
    check_options,
    check_state_dtype,
    check_total,
    shown,
    take_rule,
)
from hyperadam.optim.plan import Plan, Share
from hyperadam.optim.sharding import (
    Ranks,
    check_group,
    find_ranks,
    is_dtensor,
    local,
    turns_of,
    zero_redundancy_group,
)
from hyperadam.rules import UpdateRule
from hyperadam.rules.base import Sums


class LearnedOptimizer(Optimizer):
    """Applies a learned rule's update to all parameters.

    A parameter moves by ``p -= lr * (scale * update + weight_decay * p)``. Here ``lr`` stands for
    ``lr * rule.pace(step, total_steps)``, by each parameter's own count of steps. The scale is 1,
    unless the rule is ``relative``: then it is the parameter's size when its state was made, in
    units of 0.1, and stays in ``state[p]["memory"]``.

    Norms run over every parameter of every group that has a gradient in this step: how a model is
    cut into tensors, groups and shards does not change the numbers. A rule with ``per_tensor``
    takes them over each tensor alone: its numbers do not depend on its company. A parameter without
    a gradient takes no part, and its state waits. State is kept per parameter, each field
    ``(rows, *p.shape)`` in ``state_dtype``, whatever the dtype of the parameter; of a ``DTensor``
    it is a ``DTensor``, sharded alike.

    Learning-rate schedulers work on ``lr`` as with any optimizer. Those that also cycle momentum
    (``OneCycleLR``, ``CyclicLR``) find a ``momentum`` in the groups and may set it: it is there for
    them alone and changes nothing.

    Args:
        params: parameters, named parameters, or dicts of parameter groups, in which ``lr``,
            ``weight_decay``, ``maximize`` and ``total_steps`` may differ.
        lr: the step size, a float or a one-element tensor; ``None``: the weights' own.
        weights: a shipped name (:func:`hyperadam.list_weights`), a path to a ``.safetensors`` file,
            or a rule, of which the optimizer takes a copy; ``None``: those of the optimizer's name.
        weight_decay: decoupled, as in AdamW.
        maximize: ascend.
        total_steps: how many steps training will take, if that is known: the first twentieth warms
            up, the rest decays on a line to zero. Beyond the last the step keeps its length, and a
            warning says so once. ``None``: steps do not decay. Schedulers multiply either way. It
            may be changed between steps, in the groups.
        state_dtype: ``torch.float32``; ``torch.float64``, which also computes in float64; or
            ``torch.bfloat16``, half the memory, rounded by chance. A float16 state is refused: its
            range ends at 6e-8, above most squared gradients.
        backend: "auto" or one of :func:`hyperadam.kernels.available`.
        nonfinite: "raise" an error that names the parameter whose gradient is not finite, or
            "skip" the step and count it in ``skipped_steps``. Parameters and state stay as they are
            in both cases. One above 1e18 is too large to square and counts as not finite: it would
            stay in the second moment for ever.
        process_group: the ranks over which the parameters are split, a different piece on each, as
            by FSDP1 or into the stages of a pipeline: norms then run over all of them. FSDP2,
            tensor parallelism and ``ZeroRedundancyOptimizer`` need no telling. A rule with
            ``per_tensor`` needs no group, and refuses one.
    """

    rule_class: ClassVar[type[UpdateRule[Any]]] = UpdateRule
    _plan: Plan | None
    _warned = False
    default_weights: ClassVar[str] = ""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | None = None,
        *,
        weights: Weights | None = None,
        weight_decay: float = 0.0,
        maximize: bool = False,
        total_steps: int | None = None,
        state_dtype: torch.dtype = torch.float32,
        backend: str = "auto",
        nonfinite: str = "raise",
        process_group: Any = None,
    ) -> None:
        check_state_dtype(state_dtype)
        if nonfinite not in ("raise", "skip"):
            raise ValueError(f"nonfinite must be 'raise' or 'skip', got {nonfinite!r}")
        self.rule = take_rule(self.default_weights if weights is None else weights, self.rule_class)
        check_group(process_group, self.rule)
        self.state_dtype, self.backend, self.nonfinite = state_dtype, backend, nonfinite
        self._process_group = zero_redundancy_group() if process_group is None else process_group
        self._group_lost = False
        self._forget()
        defaults = {
            "lr": self.rule.step_size if lr is None else lr,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "total_steps": total_steps,
            "momentum": 0.0,  # for schedulers that would cycle it
            # in the groups, for that is the part of a state dict that every tool carries along
            "rule": f"{self.rule.kind}({self.rule.extra_repr()})",
            "skipped_steps": 0,
        }
        check_options(defaults)
        super().__init__(params, defaults)
        for p in self._params():
            self._kernels[p.device]  # so that a backend that is not there is refused now

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
        group = self.param_groups[-1]
        if group["total_steps"] is not None:  # a plain number, which any checkpoint may hold
            group["total_steps"] = int(group["total_steps"])
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
        for group in self.param_groups:
            check_total(group["total_steps"])  # anybody may have changed it
        params, grads = self._gradients()
        ranks = self._ranks()
        if not params and ranks is None:
            return
        plan = self._plan_for(params, ranks)
        plan.take(grads)
        bad = [self._label(position) for position in plan.too_large(self._kernels.limit)]
        if bad and ranks is None:
            return self._refuse(bad, plan, together=False)
        sums = self._sums(plan, grads, ranks, bool(bad))
        if ranks is not None and not sums[0].isfinite().all():
            return self._refuse(bad or ["a parameter on another rank"], plan, together=True)
        if self._only_makes_state(plan, grads, sums):
            plan.fresh = []
            return
        motions = plan.motions(self.rule, self.param_groups, self.state_dtype == torch.bfloat16)
        self._warn_beyond(motions)
        # norms per tensor are taken in the step: those of shards are yet to be added up
        late = ranks is not None and ranks.split and self.rule.per_tensor
        plan.step_(sums, motions, ranks.add if ranks is not None and late else None)
        # a kernel writes past autograd, which must still find out a stale graph
        increment_version(params)

    def _sums(self, plan: Plan, grads: list[Tensor], ranks: Ranks | None, bad: bool) -> Sums:
        """What a step must know beforehand, over all ranks.

        A bad gradient on one makes it not finite on all, so that all refuse the step together."""

        def share(earlier: Sums) -> Tensor:
            return plan.sums(earlier) if ranks is None else plan.shared_sums(earlier, ranks, bad)

        if ranks is None or self.rule.rounds:
            return self.rule.total_sums(share)
        # no sums are due, but ranks must agree on whether there is a step to take
        moves = not self._may_only_make_state(plan) or any(grad.any() for grad in grads)
        turns = turns_of(self.rule, self._params(), plan.params) if ranks.split else []
        said = torch.tensor([math.nan if bad else float(moves), *turns]).to(plan.device)
        agreed = ranks.add(said)
        uneven = [i for i, count in enumerate(agreed[1:].tolist()) if 0 < count < ranks.size]
        if uneven:
            self._forget_fresh(plan, together=True)
            raise RuntimeError(
                f"{self._label(uneven[0])} has a gradient on some ranks and none on others: a "
                "matrix that ranks have split moves as a whole; parameters and state are unchanged"
            )
        return (agreed[:1],)

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
                    grad = self._kernels.readable_grad(p, group["maximize"], self._label_of)
                # an empty one, too: a tool that saves shards wants its state on all ranks
                params.append(p)
                grads.append(grad)
        return params, grads

    def _plan_for(self, params: list[Tensor], ranks: Ranks | None) -> Plan:
        """The plan of the last step if it holds, else a new one; a first step makes state."""
        if self._plan is not None and self._plan.holds(params, self.state):
            return self._plan
        fresh = [p for p in params if not self.state.get(p)]
        memories = new_memories(self.rule, fresh, self._label_of)
        for p, memory in zip(fresh, memories, strict=True):
            self.state[p] = new_state(self.rule, p, self.state_dtype, memory)
        shares: dict[tuple[torch.device, float], Share] = {}
        for i, p in enumerate(params):
            w = local(p)
            key = w.device, 1.0 if ranks is None else ranks.weight(p)
            if key not in shares:
                shares[key] = Share(self._kernels[w.device], key[1])
            shares[key].add(i, w, self._part(p, self._kernels.readable(w)))
        if ranks is not None and not params:  # the others wait for this rank's, which is nothing
            device = next((p.device for p in self._params()), ranks.device)
            shares[device, 1.0] = Share(self._kernels[device], 1.0)
        states = [self.state[p] for p in params]
        plan = Plan(params, self.param_groups, states, list(shares.values()), fresh)
        self._plan = plan if plan.reusable else None
        return plan

    def _part(self, p: Tensor, readable: Tensor) -> Part:
        """This rank's part of ``p``, whose values are ``readable``, with its state."""
        fields = used_state(self.rule, p, self.state_dtype, self.state[p])
        memory = self.state[p].get(MEMORY)
        if memory is not None:
            # one run's; the same memory, which a rule may write into
            memory = memory.view(1, -1)
        return Part(readable, fields, tuple(p.shape), memory)

    def _warn_beyond(self, motions: list[Motion]) -> None:
        """Say once that there are more steps than ``total_steps`` announced."""
        if self._warned:
            return
        beyond = next((x for x in motions if x.total and x.step > x.total), None)
        if beyond is not None:
            self._warned = True
            warnings.warn(
                f"step {beyond.step} of {type(self).__name__} is beyond total_steps={beyond.total}"
                ": this one and all that follow are as short as the last of those",
                stacklevel=2,
            )

    def _only_makes_state(self, plan: Plan, grads: list[Tensor], sums: Sums) -> bool:
        """Whether this is the very first step, without gradient or ``lr``.

        ``torch.distributed.checkpoint`` steps so when it wants state to be there, and must not find
        any that has moved."""
        if not self._may_only_make_state(plan):
            return False
        # ranks must agree: where there are sums, these tell
        return not (sums[0].any() if sums else any(grad.any() for grad in grads))

    def _may_only_make_state(self, plan: Plan) -> bool:
        """The same without a look at the gradients."""
        return len(plan.fresh) == len(self.state) and not any(
            float(group["lr"]) for group in self.param_groups
        )

    def _refuse(self, bad: list[str], plan: Plan, together: bool) -> None:
        """Raise for the first bad gradient, or count the step as skipped. Nothing is changed.

        Other ranks do the same ``together`` with this one, or may not know of it."""
        self._forget_fresh(plan, together)
        if self.nonfinite == "raise":
            others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            raise RuntimeError(
                f"{bad[0]}{others} has a gradient that is not finite, or above "
                f"{self._kernels.limit:.3g}, too large to square in {self._kernels.dtype}; "
                "parameters and state are unchanged; "
                "nonfinite='skip' would skip such steps"
            )
        for group in self.param_groups:
            group["skipped_steps"] += 1

    def _forget_fresh(self, plan: Plan, together: bool) -> None:
        """Take back the state that was made for a step that is not taken."""
        for p in plan.fresh:
            # ranks have taken the size of a sharded tensor together: one alone could not again
            if together or not (self.rule.memory and is_dtensor(p)):
                del self.state[p]
        self._plan = None

    def _ranks(self) -> Ranks | None:
        """The ranks that step together, found once. Without norms each may go by itself."""
        if self._group_lost and self.rule.rounds:
            raise RuntimeError(
                "this optimizer is a copy of one with a process_group, which copies do not keep: "
                "make a new one with process_group= and load_state_dict() into it"
            )
        if not self._ranks_known:
            check_whole(self.rule, self._params())
            self._found = None
            if self.rule.rounds or self.rule.per_tensor:
                self._found = find_ranks(self, self._params(), self._process_group)
            self._ranks_known = True
        return self._found

    # Looking inside -----------------------------------------------------------------------------

    @_disable_dynamo
    def diagnostics(self, flat: bool = False) -> dict[str, Any]:
        """What the next step will do with the gradients that are there, in plain numbers.

        Call it between ``backward()`` and ``step()``. By tensor, under its name if the optimizer
        was given ``named_parameters()``, else under its number: ``size``, ``step``, ``lr``,
        ``pace``, ``gradient_norm``, ``weight_rms``, ``update_rms``, ``effective_step`` (the root
        mean square of the update over that of the weights), ``direction_rms`` (of the rule's
        output); and what the rule has to tell, in lists with a number for each candidate: see
        docs/inside.md.

        Nothing changes: state, parameters and random numbers are as before. It costs about a step
        in plain torch. Ranks that step together must call it together, and all get the numbers of
        whole tensors.

        Args:
            flat: one dict of floats, ``tensor/what`` or ``tensor/what/candidate``, for loggers.
        """
        told = diagnose(self)
        return flattened(told) if flat else told

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
            name: getattr(self, name)
            for name in ("rule", "state_dtype", "backend", "nonfinite", "_warned")
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
        for group in self.param_groups:
            group.setdefault("total_steps", None)  # older versions had none
        self._forget()

    def _forget(self) -> None:
        """Kernels hold native handles, ranks hold groups: both are found anew when needed."""
        self._kernels = Kernels(self.rule, self.backend, self.state_dtype)
        self._ranks_known, self._found = False, None
        self._plan = None

    def _params(self) -> Iterator[Tensor]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    def _label_of(self, p: Tensor) -> str:
        return self._label(next(i for i, q in enumerate(self._params()) if q is p))

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

    def __repr__(self) -> str:
        backends = ", ".join(sorted({self._kernels[p.device].name for p in self._params()}))
        lines = [
            f"rule: {self.defaults['rule']}",
            f"state: {self.state_dtype}, backend: {backends}, nonfinite: {self.nonfinite}",
        ]
        for number, group in enumerate(self.param_groups):
            size = sum(p.numel() for p in group["params"])
            options = ", ".join(
                f"{key}: {group[key]}" for key in ("lr", "weight_decay", "maximize", "total_steps")
            )
            lines.append(
                f"group {number}: {len(group['params'])} tensors, {size:,} coordinates, {options}"
            )
        return "\n    ".join([f"{type(self).__name__} (", *lines]) + "\n)"
