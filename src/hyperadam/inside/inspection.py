"""A small recorder of what an optimizer tells: one look after another."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from hyperadam.optim import LearnedOptimizer
from hyperadam.optim.diagnostics import Numbers


class Look(NamedTuple):
    """What was seen at a step: each tensor's numbers, by its name, and the loss if it was told."""

    step: int
    tensors: dict[str, Numbers]
    loss: float | None = None


class Inspection:
    """Looks at an optimizer while it trains, and what they show.

    ::

        inside = hyperadam.inspect(optimizer)
        for ...:
            loss.backward()
            inside.look(loss)     # between backward() and step(); every tenth step will do
            optimizer.step()
        print(inside)             # a table of the last look
        inside.write("inside")    # figures and a page: over training, and over layers

    A look changes nothing, and costs about a step in plain torch.
    """

    def __init__(self, optimizer: LearnedOptimizer) -> None:
        if not isinstance(optimizer, LearnedOptimizer):
            what = type(optimizer).__name__
            raise TypeError(f"optimizer must be a LearnedOptimizer, such as HyperAdam, got {what}")
        self.optimizer = optimizer
        #: All looks so far, in their order.
        self.looks: list[Look] = []

    def look(self, loss: Any = None) -> Inspection:
        """Look at the step that comes next. ``loss``, for the figures: a number or a tensor."""
        told = self.optimizer.diagnostics()
        step = max((int(float_of(numbers["step"])) for numbers in told.values()), default=0)
        if isinstance(loss, Tensor):
            loss = loss.item()
        self.looks.append(Look(step, told, None if loss is None else float(loss)))
        return self

    @property
    def last(self) -> Look:
        """The last look."""
        if not self.looks:
            raise RuntimeError(
                "nothing has been seen yet: call look() between backward() and step()"
            )
        return self.looks[-1]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The last look in words: a header, and a row for each tensor."""
        header = ["tensor", "size", "gradient norm", "weights", "effective step"]
        told = next(iter(self.last.tensors.values()), {})
        # decay rates are told where they are the rule's choice
        own = [(title, key) for title, key, needs in COLUMNS if needs in told]
        rows = []
        for name, numbers in self.last.tensors.items():
            size, norm, weight, step = (
                float_of(numbers[key])
                for key in ("size", "gradient_norm", "weight_rms", "effective_step")
            )
            more = [_in_words(key, numbers[key]) for _, key in own]
            rows.append(
                [name, f"{size:,.0f}", f"{norm:.3g}", f"{weight:.3g}", _percent(step), *more]
            )
        return [*header, *(title for title, _ in own)], rows

    def write(self, folder: str | Path, title: str = "", about: str = "") -> list[Path]:
        """Write figures (PNG and SVG), the numbers behind them (JSON) and a page; all their paths,
        the page's first. Needs the extra ``lab``."""
        from hyperadam.inside.page import write_page

        assert self.last  # refuses to draw nothing
        return write_page(self, Path(folder), title or self._title(), about)

    def as_json(self) -> str:
        """All looks as JSON, one a line, with seven digits; what is not finite is ``null``."""
        looks = [json.dumps(_plain(look._asdict()), allow_nan=False) for look in self.looks]
        return "[" + ",\n".join(looks) + "]\n"

    def _title(self) -> str:
        return f"Inside {type(self.optimizer).__name__}"

    def __str__(self) -> str:
        if not self.looks:
            return f"{self._title()}: nothing has been seen yet"
        header, rows = self.table()
        lines = [header, *rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(f"{c:<{w}}" for c, w in zip(x, widths, strict=True)) for x in lines]
        return "\n".join([f"{self._title()}, step {self.last.step}", *map(str.rstrip, text)])

    __repr__ = __str__


#: What a table tells besides: a column's title, its key, and the key that must be there for it.
COLUMNS = (
    ("memory of m, steps", "beta", "beta_spread"),
    ("of v", "gamma", "gamma_spread"),
    ("sum of ρ", "rho", "rho"),
    ("step factor", "log_step", "log_step"),
)


def inspect(optimizer: LearnedOptimizer) -> Inspection:
    """A recorder for ``optimizer``: see :class:`Inspection`. It has not looked yet."""
    return Inspection(optimizer)


def float_of(value: float | list[float]) -> float:
    """A number that is one."""
    assert not isinstance(value, list)
    return value


def list_of(value: float | list[float]) -> list[float]:
    """A list of numbers that is one."""
    assert isinstance(value, list)
    return value


def memory(decay: float) -> float:
    """Over how many steps a moving average with this decay rate looks back."""
    return 1 / max(1 - decay, 1e-9)


def _in_words(key: str, value: float | list[float]) -> str:
    if key == "log_step":
        return f"{math.exp(float_of(value)):.2f}"
    values = list_of(value)
    if key == "rho":
        return f"{sum(values):.2f}"
    spans = sorted(map(memory, values))
    return f"{_short(spans[0])} to {_short(spans[-1])}"


def _short(x: float) -> str:
    return f"{x:,.0f}" if x >= 10 else f"{x:.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if math.isfinite(share) else "from zero"


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _plain(value) for key, value in x.items()}
    if isinstance(x, list):
        return [_plain(value) for value in x]
    if isinstance(x, float):
        return float(f"{x:.7g}") if math.isfinite(x) else None
    return x
