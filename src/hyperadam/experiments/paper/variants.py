"""Variants of HyperAdam for the ablations: the paper's rule with a part left out, each meta-trained
with the same budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from hyperadam.meta.settings import PRESETS, Settings

#: What every variant gets: the preset's course with half its meta-updates, of one rollout in place
#: of two.
BASE = replace(PRESETS["hyperadam-paper"], updates=400, rollouts=1)
#: Every variant is meta-trained from each of these seeds: what is said of it is then said of more
#: than one start.
META_SEEDS = (0, 1, 2)
#: Numbers of candidates J.
CANDIDATES = (1, 5, 10, 15, 20, 25, 35)


class Variant(NamedTuple):
    """A variant, meta-trained from one seed: the name of its weight file, and how it is made. Two
    labels may share a file."""

    file: str
    settings: Settings

    def at(self, meta_seed: int) -> Variant:
        """The same from another seed; seed 0 has no number in its file's name."""
        file = f"{self.file}-{meta_seed}" if meta_seed else self.file
        return Variant(file, replace(self.settings, seed=meta_seed))

    def coarse(self) -> Variant:
        """The quick version, hardly trained at all."""
        return self._replace(
            settings=replace(
                self.settings, updates=10, exact_from=5, validation_runs=2, validation_steps=20
            )
        )


def _variant(file: str, config: dict[str, Any] | None = None, **changes: Any) -> Variant:
    return Variant(file, replace(BASE, config=config or {}, **changes))


_FULL = _variant("full")

#: Every variant by the label that the experiments use.
VARIANTS: dict[str, Variant] = {
    "full": _FULL,
    "no-lstm": _variant("no-lstm", {"lstm": False}),
    "no-preprocessing": _variant("no-preprocessing", {"preprocess": False}),
    "no-lstm-no-preprocessing": _variant(
        "no-lstm-no-preprocessing", {"lstm": False, "preprocess": False}
    ),
    "no-scaling": _variant("no-scaling", scaling=False),
    "no-convex": _variant("no-convex", convex=False),
    "no-scaling-no-convex": _variant("no-scaling-no-convex", scaling=False, convex=False),
    **{f"j{j}": _FULL if j == 20 else _variant(f"j{j}", {"candidates": j}) for j in CANDIDATES},
}
