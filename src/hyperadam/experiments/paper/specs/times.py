"""The experiment of computation time."""

from __future__ import annotations

from hyperadam.experiments.paper.experiment import Claim, Experiment, Figure
from hyperadam.experiments.paper.specs.columns import COLUMNS, PAPER, published

TIMES = (
    Experiment(
        "time",
        "Computation time",
        "Section Computation Time",
        "The time of an update alone is measured on the MLP with nine hidden layers. From training "
        "curves of the MLP with "
        "eight, and the time of a step with its gradient, follows how long each optimizer takes to "
        "the lowest loss that Adam reaches.",
        ("mnist-mlp-8x20",),
        (*COLUMNS, "hyperadam"),  # weights of the same rule take the same time
        (10_000,),
        runs=3,
        final_batches=500,
        figures=(Figure("Eight hidden layers", "mnist-mlp-8x20", 10_000),),
        claims=(
            Claim(
                "An update of HyperAdam takes longer than one of DMoptimizer.",
                "dm",
                (PAPER,),
                ("mnist-mlp-9x20",),
                1,
                "seconds_per_step",
            ),
            Claim(
                "An update of HyperAdam is faster than one of RNNprop.",
                PAPER,
                ("rnnprop",),
                ("mnist-mlp-9x20",),
                1,
                "seconds_per_step",
            ),
            Claim(
                "An update of Adam is faster than one of HyperAdam.",
                "adam",
                (PAPER,),
                ("mnist-mlp-9x20",),
                1,
                "seconds_per_step",
            ),
            Claim(
                "On the MLP with eight hidden layers, HyperAdam is sooner at the lowest loss "
                "that Adam reaches.",
                PAPER,
                ("adam",),
                ("mnist-mlp-8x20",),
                10_000,
                "seconds_to_loss",
            ),
        ),
        published=(
            published(
                {"mnist-mlp-9x20": (0.0023, 0.0039, 0.0033)}, 1, "seconds_per_step", COLUMNS[1:]
            )
            | published(
                {"mnist-mlp-8x20": (28.97, 26.33)}, 10_000, "seconds_to_loss", ("adam", PAPER)
            )
        ),
        quick_steps=(200,),
        timed=("mnist-mlp-9x20",),
    ),
)
