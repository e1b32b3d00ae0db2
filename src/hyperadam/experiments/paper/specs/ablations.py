"""The ablations: variants of the rule, each meta-trained anew."""

from __future__ import annotations

from hyperadam.experiments.paper.experiment import UNTRAINED, Claim, Experiment, Figure
from hyperadam.experiments.paper.variants import CANDIDATES

ABLATIONS = (
    Experiment(
        "ablation-state",
        "Without the LSTM, without preprocessing",
        "Figure 8(a)",
        "The rule is meta-trained anew without the LSTM, without the layer in front of it, and "
        "without both, each with the "
        "same small budget. Each variant then trains the MLP with three hidden layers.",
        ("mnist-mlp-3x20",),
        ("full", "no-lstm", "no-preprocessing", "no-lstm-no-preprocessing", UNTRAINED),
        figures=(Figure("Three hidden layers", "mnist-mlp-3x20", 100),),
        claims=(
            Claim(
                "HyperAdam's whole rule does better than without its LSTM, without its "
                "preprocessing, or without both.",
                "full",
                ("no-lstm", "no-preprocessing", "no-lstm-no-preprocessing"),
            ),
        ),
    ),
    Experiment(
        "ablation-tricks",
        "Without Random Scaling, without the convex function",
        "Figure 8(b)",
        "The rule is meta-trained anew without one of the two tricks of meta-training, and without "
        "both, each with the same "
        "small budget. Each variant then trains the MLP with three hidden layers.",
        ("mnist-mlp-3x20",),
        ("full", "no-scaling", "no-convex", "no-scaling-no-convex", UNTRAINED),
        figures=(Figure("Three hidden layers", "mnist-mlp-3x20", 100),),
        claims=(
            Claim(
                "Meta-training with Random Scaling and the convex function gives a better rule "
                "than with one of the two or none.",
                "full",
                ("no-scaling", "no-convex", "no-scaling-no-convex"),
            ),
        ),
    ),
    Experiment(
        "ablation-candidates",
        "How many candidates",
        "Figure 8(c)",
        "The rule is meta-trained anew with 1 to 35 candidate Adams in place of 20, each with the "
        "same small budget. Each "
        "variant then trains the MLP with four hidden layers.",
        ("mnist-mlp-4x20",),
        (*(f"j{j}" for j in CANDIDATES), UNTRAINED),
        figures=(Figure("Four hidden layers", "mnist-mlp-4x20", 100),),
        claims=(
            Claim(
                "Twenty candidate Adams are the best number: fewer do worse, and so do more.",
                "j20",
                tuple(f"j{j}" for j in CANDIDATES if j != 20),
            ),
            *(
                Claim(f"{j} candidate Adams are better than one.", f"j{j}", ("j1",))
                for j in CANDIDATES
                if j not in (1, 20)
            ),
        ),
    ),
)
