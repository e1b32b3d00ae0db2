"""The contract of a learned update rule: a pure function from gradient and state to update and state."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from safetensors.torch import save
from torch import Tensor, nn

from hyperadam.files import write_atomically
from hyperadam.rules.checks import check_flag
from hyperadam.rules.faults import Fault
from hyperadam.rules.pace import pace, tensor_scale

#: The key in a weight file's metadata that holds all else in JSON, and the format it names.
METADATA, FORMAT = "hyperadam", "hyperadam-rule/1"

#: No entry of a weight is larger: what a step adds and multiplies then stays finite.
LARGEST_WEIGHT = 1e6

#: A rule's state: a ``NamedTuple`` of tensors of shape ``(..., rows, p)``.
StateT = TypeVar("StateT", bound=NamedTuple)
#: Squared norms over the whole vector, one tensor ``(..., columns)`` in float64 a round.
Sums = tuple[Tensor, ...]


class UpdateRule(nn.Module, Generic[StateT]):
    """A learned function from a gradient to an update, applied as ``w -= lr * pace * scale * update``.

    ``pace`` is warm-up and, if the number of steps is known, decay. ``scale`` is 1, unless the rule is ``relative``: then it
    is the size that the tensor had when its state was made (:mod:`hyperadam.rules.pace`).

    The module holds meta-parameters and nothing else: what it remembers of a rollout goes in and comes out as ``State``.
    ``grad`` is ``(..., p)``: leading dimensions are independent runs, the last is the whole parameter vector of a learner.
    State tensors are ``(..., rows, p)``: coordinates stay last and contiguous, which is what makes the small matrix
    products fast.

    Coordinates meet only in squared norms over the whole vector. A caller who holds the vector in parts (tensors, groups,
    tiles, ranks) asks each part for its :meth:`column_sums`, adds them up, and hands the totals to :meth:`forward`:
    the numbers are then those of one flat vector.
    """

    kind: ClassVar[str]
    #: The published step size or the weights' own, the default ``lr`` of the optimizer.
    step_size: float
    #: The NamedTuple class of the state.
    State: ClassVar[type[Any]]
    #: How many rounds of column sums a step needs; a later round depends on the totals of the earlier ones.
    rounds: int = 0
    #: Whether norms run over one tensor alone. They are then taken after a step, for the next one, and kept in its memory.
    per_tensor: ClassVar[bool] = False
    #: How many float32 numbers are kept once for each tensor; the first is its root mean square when its state was made.
    memory: int = 0
    #: The largest entry of a weight, by its name; of all others it is ``LARGEST_WEIGHT``.
    largest: ClassVar[dict[str, float]] = {}
    #: Steps over which the step size grows, where their total is not known.
    warmup: int = 0
    #: Whether steps depend on how many matrices move together.
    depth: bool = False

    def __init__(self, *, relative: bool = False, **config: Any) -> None:
        check_flag("relative", relative)
        super().__init__()
        # left out while it is off: rules from before it have the same configuration, name and hash as ever
        self.config: dict[str, Any] = config | ({"relative": True} if relative else {})
        self.relative = relative
        self.memory = int(relative)
        self.provenance: dict[str, Any] = {}

    def state_rows(self) -> dict[str, int]:
        """Rows of each state tensor, by field name."""
        raise NotImplementedError

    def column_sums(self, grad: Tensor, state: StateT, sums: Sums) -> Tensor:
        """The next round's sums of squares over this part of the vector, ``(..., columns)``, given earlier totals."""
        raise NotImplementedError(f"{self.kind} couples no coordinates: it has no column sums")

    def forward(
        self, grad: Tensor, state: StateT, sums: Sums | None = None
    ) -> tuple[Tensor, StateT]:
        """One step: ``(update (..., p), new state)``. ``sums`` are whole-vector totals; ``None``: ``grad`` is whole."""
        raise NotImplementedError

    def look(
        self, grad: Tensor, state: StateT, sums: Sums | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The update of :meth:`forward`, and what people may want to see of how it came about: by name, each
        ``(..., rows, p)``. Nothing of it is kept."""
        return self(grad, state, sums)[0], {}

    def pace(self, step: int, total: int | None = None, matrices: int = 1) -> float:
        """The share of ``lr`` that is taken at ``step``, counted from 1, of ``total`` steps if that is known, where so many
        matrices move together: a rule with ``depth`` asks for that."""
        return pace(step, total, self.warmup)

    def scale(self, rms: Tensor, shape: Sequence[int]) -> Tensor:
        """What a ``relative`` rule's update of a tensor of ``shape`` is multiplied by, if the tensor began with ``rms``:
        elementwise in that, one entry for each run."""
        return tensor_scale(rms, shape)

    @property
    def knows_horizon(self) -> bool:
        """Whether meta-training told it how many steps there are: it wants to be told again where it is used."""
        settings = self.provenance.get("settings")
        return isinstance(settings, dict) and settings.get("horizon") is True

    def init_memory(self, rms: Tensor) -> Tensor:
        """What is kept of tensors that begin with root mean square ``rms (...)``: ``(..., memory)``, float32 on its device."""
        memory = torch.zeros(*rms.shape, self.memory, dtype=torch.float32, device=rms.device)
        memory[..., 0] = rms
        return memory

    def init_state(self, like: Tensor) -> StateT:
        """The state before the first step for gradients shaped and typed like ``like`` ``(..., p)``: all zeros."""
        *lead, p = like.shape
        state: StateT = self.State(
            *(like.new_zeros(*lead, rows, p) for rows in self.state_rows().values())
        )
        return state

    def state_fault(self, state: StateT, steps: int) -> Fault | None:
        """A field of ``state`` that no ``steps`` of this rule can have left, and what is wrong with it.

        ``None``: the next steps are safe. Entries are known to be finite. A state that was kept in
        bfloat16 is rounded at random: what real training leaves must pass all the same.
        """
        return None

    def total_sums(self, share: Callable[[Sums], Tensor]) -> Sums:
        """All rounds of column sums: ``share`` gives the next one's, summed over all parts, from those before it."""
        sums: Sums = ()
        for _ in range(self.rounds):
            sums += (share(sums),)
        return sums

    def save(self, path: str | Path) -> None:
        """Write meta-parameters, configuration and provenance to a ``.safetensors`` file, whole or
        not at all, and byte for byte reproducible."""
        tensors = {
            name: value.detach().to("cpu", torch.float32).contiguous()
            for name, value in self.state_dict().items()
        }
        # one key alone: the order in which several are written is left to chance
        about = {
            "format": FORMAT,
            "rule": self.kind,
            "config": self.config,
            "provenance": self.provenance,
        }
        write_atomically(path, save(tensors, {METADATA: json.dumps(about, sort_keys=True)}))

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in self.config.items())
