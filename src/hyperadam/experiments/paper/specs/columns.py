"""The columns of the paper's tables: the optimizers of an experiment, and its numbers of them."""

from __future__ import annotations

from collections.abc import Mapping

from hyperadam.experiments.paper.experiment import UNTRAINED
from hyperadam.experiments.training.optimizers import BASELINES

#: The paper's rule to the letter; the paper's claims are about it.
PAPER = "hyperadam-paper"
#: The same rule, meta-trained as the paper did it.
PUBLISHED = "hyperadam-published"
#: Our rule, told how many steps there will be; and with weights that were meta-trained so.
TOLD, HORIZON = "hyperadam+horizon", "hyperadam-horizon"
LEARNED = ("dm", "rnnprop", PAPER, PUBLISHED, "hyperadam", UNTRAINED)
#: The paper's nine, our rule beside its own, and the untrained start: what was learned, and what
#: was only a good start.
ALL = (*BASELINES, *LEARNED)
FEW = ("adam", *LEARNED)
#: The optimizers that the paper's tables have numbers of.
COLUMNS = ("adam", "dm", "rnnprop", PAPER)


def published(
    rows: Mapping[str, tuple[float, ...]],
    steps: int,
    measure: str = "final_loss",
    columns: tuple[str, ...] = COLUMNS,
) -> dict[tuple[str, str, int, str], float]:
    """Rows of a table of the paper, by task."""
    return {
        (task, label, steps, measure): value
        for task, row in rows.items()
        for label, value in zip(columns, row, strict=True)
    }
