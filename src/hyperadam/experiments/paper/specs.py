"""The experiments of the paper, one small table each, with its claims in our words and its
numbers."""

from __future__ import annotations

from hyperadam.experiments.paper.experiment import UNTRAINED, Claim, Experiment, Figure
from hyperadam.experiments.paper.variants import CANDIDATES
from hyperadam.experiments.training.optimizers import BASELINES
from hyperadam.unknown import unknown

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "Figure", "find_experiment"]

#: The paper's rule to the letter; the paper's numbers and claims are about it.
PAPER = "hyperadam-paper"
LEARNED = ("dm", "rnnprop", PAPER, "hyperadam", UNTRAINED)
#: The paper's nine, our rule beside its own, and the untrained start: what was learned, and what
#: was only a good start.
ALL = (*BASELINES, *LEARNED)
FEW = ("adam", *LEARNED)

_COLUMNS = ("adam", "dm", "rnnprop", PAPER)
_DEEP = ("mnist-mlp", *(f"mnist-mlp-{depth}x20" for depth in range(2, 11)))


def _published(
    rows: dict[str, tuple[float, ...]],
    steps: int,
    measure: str = "final_loss",
    columns: tuple[str, ...] = _COLUMNS,
) -> dict[tuple[str, str, int, str], float]:
    """Rows of a table of the paper, by task."""
    return {
        (task, label, steps, measure): value
        for task, row in rows.items()
        for label, value in zip(columns, row, strict=True)
    }


_EXPERIMENTS = (
    Experiment(
        "activations",
        "Activation functions",
        "Table 1 and Figure 5(a)",
        "The small MLP 784-20-10 on MNIST is trained for 100 steps with each of four activation "
        "functions. The learned "
        "optimizers have seen only the sigmoid.",
        ("mnist-mlp", "mnist-mlp-relu", "mnist-mlp-elu", "mnist-mlp-tanh"),
        ALL,
        figures=(Figure("Small MLP with ELU", "mnist-mlp-elu", 100),),
        claims=(
            Claim(
                "With sigmoid, ReLU and ELU, HyperAdam trains the small MLP to a lower loss than "
                "Adam, DMoptimizer and RNNprop.",
                PAPER,
                ("adam", "dm", "rnnprop"),
                ("mnist-mlp", "mnist-mlp-relu", "mnist-mlp-elu"),
            ),
            Claim(
                "With tanh, HyperAdam trains the small MLP better than DMoptimizer and RNNprop "
                "(so the text; in the table RNNprop is lower).",
                PAPER,
                ("dm", "rnnprop"),
                ("mnist-mlp-tanh",),
            ),
            Claim(
                "On the small MLP with ELU, HyperAdam's curve is the lowest of all nine "
                "optimizers'.",
                PAPER,
                (*BASELINES, "dm", "rnnprop"),
                ("mnist-mlp-elu",),
            ),
            Claim(
                "DMoptimizer does not carry over to an MLP with ELU: even Adam is better.",
                "adam",
                ("dm",),
                ("mnist-mlp-elu",),
            ),
        ),
        published=_published(
            {
                "mnist-mlp": (0.35, 0.38, 0.34, 0.33),
                "mnist-mlp-relu": (0.32, 1.42, 0.31, 0.29),
                "mnist-mlp-elu": (0.31, 2.02, 0.31, 0.28),
                "mnist-mlp-tanh": (0.34, 0.83, 0.33, 0.36),
            },
            100,
        ),
    ),
    Experiment(
        "depth",
        "Deep MLPs",
        "Figure 5(b) and 5(d)",
        "Sigmoid MLPs with one to ten hidden layers of 20 units are trained on MNIST for 100 "
        "steps. The deeper the network, "
        "the longer it stays on the plateau where all classes are equally likely.",
        _DEEP,
        ALL,
        figures=(Figure("Seven hidden layers", "mnist-mlp-7x20", 100),),
        claims=(
            Claim(
                "HyperAdam ends clearly below Adam and DMoptimizer on MLPs of every depth from "
                "one to ten hidden layers.",
                PAPER,
                ("adam", "dm"),
            ),
            Claim(
                "On MLPs with more than six hidden layers, HyperAdam ends below RNNprop.",
                PAPER,
                ("rnnprop",),
                _DEEP[6:],
            ),
            Claim(
                "On the MLP with seven hidden layers, HyperAdam's curve is the lowest of all nine "
                "optimizers'.",
                PAPER,
                (*BASELINES, "dm", "rnnprop"),
                ("mnist-mlp-7x20",),
            ),
        ),
        quick_steps=(50,),
    ),
    Experiment(
        "lstm",
        "Sequence prediction",
        "Table 2 and Figure 5(c)",
        "An LSTM of 20 units predicts the next value of a noisy sine wave, trained for 100 steps: "
        "one layer, one layer with a "
        "tenth of the noise, two layers. Neither the data nor the network were seen in "
        "meta-training.",
        ("sine-lstm", "sine-lstm-small-noise", "sine-lstm-2"),
        ALL,
        figures=(Figure("One layer, small noise", "sine-lstm-small-noise", 100),),
        claims=(
            Claim(
                "On all three LSTM tasks, HyperAdam ends below Adam, DMoptimizer and RNNprop.",
                PAPER,
                ("adam", "dm", "rnnprop"),
            ),
            Claim(
                "On the LSTM with small noise, HyperAdam's curve is the lowest of all nine "
                "optimizers'.",
                PAPER,
                (*BASELINES, "dm", "rnnprop"),
                ("sine-lstm-small-noise",),
            ),
        ),
        published=_published(
            {
                "sine-lstm": (0.65, 3.10, 0.49, 0.42),
                "sine-lstm-small-noise": (0.39, 3.06, 0.32, 0.19),
                "sine-lstm-2": (0.51, 2.05, 0.27, 0.26),
            },
            100,
        ),
    ),
    Experiment(
        "cnn",
        "Convolutional networks",
        "Figure 6(a), (b), (e) and (f)",
        "Two convolutional networks on MNIST, and on CIFAR-10 the smaller with batch normalisation "
        "and the larger with "
        "dropout, are trained for 100 steps. Meta-training saw no convolution and no colour.",
        ("mnist-cnn1", "mnist-cnn2", "cifar10-cnn1-bn", "cifar10-cnn2-dropout"),
        ALL,
        runs=10,
        figures=(
            Figure("CNN-1 on MNIST", "mnist-cnn1", 100),
            Figure("CNN-2 on MNIST", "mnist-cnn2", 100),
            Figure("CNN-1 with batch normalisation on CIFAR-10", "cifar10-cnn1-bn", 100),
            Figure("CNN-2 with dropout on CIFAR-10", "cifar10-cnn2-dropout", 100),
        ),
        claims=(
            Claim(
                "HyperAdam trains all four convolutional networks, where DMoptimizer and RNNprop "
                "do poorly or fail.",
                PAPER,
                ("dm", "rnnprop"),
            ),
        ),
        quick_runs=1,
        quick_steps=(8,),
    ),
    Experiment(
        "horizon",
        "Twenty times as long as most rollouts of meta-training",
        "",
        "The small MLP with sigmoid and with ReLU, and the smaller convolutional network, are "
        "trained on MNIST for 2,000 "
        "steps. Dead ReLUs make the paper's rule blow up where its decay rates allow it; the "
        "bounded rule must not.",
        ("mnist-mlp", "mnist-mlp-relu", "mnist-cnn1"),
        ("adam", PAPER, "hyperadam", UNTRAINED),
        (2_000,),
        runs=5,
        final_batches=500,
        figures=(Figure("CNN-1 on MNIST", "mnist-cnn1", 2_000),),
        quick_runs=1,
        quick_steps=(8,),
    ),
    Experiment(
        "long-mlp",
        "A deep MLP for 10,000 steps",
        "Figure 7(a)",
        "The sigmoid MLP with nine hidden layers is trained on MNIST a hundred times as long as "
        "the learned optimizers were "
        "trained for.",
        ("mnist-mlp-9x20",),
        ALL,
        (10_000,),
        runs=3,
        final_batches=500,
        figures=(Figure("Nine hidden layers", "mnist-mlp-9x20", 10_000),),
        claims=(
            Claim(
                "On the MLP with nine hidden layers, over 10,000 steps, HyperAdam lowers the "
                "loss where DMoptimizer and all hand-made optimizers but Adam fail to.",
                PAPER,
                ("sgd", "momentum", "adagrad", "adadelta", "rmsprop", "dm"),
            ),
        ),
        quick_steps=(200,),
    ),
    Experiment(
        "long-lstm",
        "A two-layer LSTM for 10,000 steps",
        "Figure 7(b)",
        "The two-layer LSTM on noisy sine waves is trained for 10,000 steps.",
        ("sine-lstm-2",),
        ALL,
        (10_000,),
        runs=3,
        final_batches=500,
        figures=(Figure("Two layers", "sine-lstm-2", 10_000),),
        claims=(
            Claim(
                "On the two-layer LSTM, over 10,000 steps, HyperAdam ends below RMSProp and SGD.",
                PAPER,
                ("rmsprop", "sgd"),
            ),
            Claim(
                "On the two-layer LSTM, over 10,000 steps, RNNprop ends below RMSProp and SGD.",
                "rnnprop",
                ("rmsprop", "sgd"),
            ),
            Claim(
                "On the two-layer LSTM, over 10,000 steps, DMoptimizer first lowers the loss, "
                "then loses it: HyperAdam ends below it.",
                PAPER,
                ("dm",),
            ),
        ),
        quick_steps=(200,),
    ),
    Experiment(
        "long-cnn",
        "CNN-2 for 2,000 and 10,000 steps",
        "Figure 6(c), (d), (g) and (h)",
        "The larger convolutional network is trained on MNIST and on CIFAR-10, for 2,000 and for "
        "10,000 steps.",
        ("mnist-cnn2", "cifar10-cnn2"),
        ALL,
        (2_000, 10_000),
        runs=1,
        more_runs={("mnist-cnn2", label, 10_000): 3 for label in FEW},  # those of `learners`
        final_batches=500,
        test=True,  # not for itself: so the runs serve `learners` too
        figures=tuple(
            Figure(f"CNN-2 on {data}, {steps:,} steps", task, steps)
            for data, task in (("MNIST", "mnist-cnn2"), ("CIFAR-10", "cifar10-cnn2"))
            for steps in (2_000, 10_000)
        ),
        claims=(
            Claim(
                "On CNN-2 on MNIST, over 2,000 and 10,000 steps, HyperAdam trains where "
                "DMoptimizer and RNNprop fail.",
                PAPER,
                ("dm", "rnnprop"),
                ("mnist-cnn2",),
            ),
            Claim(
                "On CNN-2 on MNIST, over 2,000 and 10,000 steps, HyperAdam ends a little below "
                "SGD, Adam and AdaDelta.",
                PAPER,
                ("sgd", "adam", "adadelta"),
                ("mnist-cnn2",),
            ),
            Claim(
                "On CNN-2 on CIFAR-10, Adam is ahead of HyperAdam after 2,000 steps.",
                "adam",
                (PAPER,),
                ("cifar10-cnn2",),
                2_000,
            ),
            Claim(
                "On CNN-2 on CIFAR-10, RMSProp is ahead of HyperAdam after 2,000 steps.",
                "rmsprop",
                (PAPER,),
                ("cifar10-cnn2",),
                2_000,
            ),
            Claim(
                "On CNN-2 on CIFAR-10, HyperAdam is below Adam and RMSProp after 10,000 steps.",
                PAPER,
                ("adam", "rmsprop"),
                ("cifar10-cnn2",),
                10_000,
            ),
            Claim(
                "On CNN-2 on CIFAR-10, over 10,000 steps, DMoptimizer and RNNprop hardly lower "
                "the loss; HyperAdam does.",
                PAPER,
                ("dm", "rnnprop"),
                ("cifar10-cnn2",),
                10_000,
            ),
        ),
        quick_steps=(6, 12),
    ),
    Experiment(
        "learners",
        "How the trained learners generalize",
        "Table 3",
        "Both convolutional networks are trained on MNIST for 10,000 steps, then measured on the "
        "test set: loss, and how often "
        "the right class is the first or among the first two.",
        ("mnist-cnn1", "mnist-cnn2"),
        FEW,
        (10_000,),
        runs=3,
        final_batches=500,
        test=True,
        claims=(
            Claim(
                "CNNs trained by HyperAdam on MNIST have a lower test loss than those trained by "
                "DMoptimizer and RNNprop.",
                PAPER,
                ("dm", "rnnprop"),
                measure="test_loss",
            ),
            Claim(
                "CNNs trained by HyperAdam on MNIST are right more often on the test set than "
                "those trained by DMoptimizer and RNNprop.",
                PAPER,
                ("dm", "rnnprop"),
                measure="test_top1",
            ),
            Claim(
                "CNNs trained by Adam on MNIST are right more often on the test set than those "
                "trained by DMoptimizer and RNNprop.",
                "adam",
                ("dm", "rnnprop"),
                measure="test_top1",
            ),
            Claim(
                "CNNs trained by HyperAdam on MNIST have a lower test loss than those trained by "
                "Adam.",
                PAPER,
                ("adam",),
                measure="test_loss",
            ),
        ),
        published=(
            _published(
                {"mnist-cnn1": (0.10, 2.30, 0.36, 0.05), "mnist-cnn2": (0.09, 2.30, 2.30, 0.07)},
                10_000,
                "test_loss",
            )
            | _published(
                {
                    "mnist-cnn1": (0.9850, 0.1010, 0.9646, 0.9848),
                    "mnist-cnn2": (0.9898, 0.1135, 0.1137, 0.9902),
                },
                10_000,
                "test_top1",
            )
            | _published(
                {
                    "mnist-cnn1": (0.9959, 0.2038, 0.9903, 0.9963),
                    "mnist-cnn2": (0.9980, 0.2145, 0.2169, 0.9978),
                },
                10_000,
                "test_top2",
            )
        ),
        quick_runs=1,
        quick_steps=(8,),
    ),
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
    Experiment(
        "time",
        "Computation time",
        "Section Computation Time",
        "The time of an update alone is measured on the MLP with nine hidden layers. From training "
        "curves of the MLP with "
        "eight, and the time of a step with its gradient, follows how long each optimizer takes to "
        "the lowest loss that Adam reaches.",
        ("mnist-mlp-8x20",),
        FEW[:-1],
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
            _published(
                {"mnist-mlp-9x20": (0.0023, 0.0039, 0.0033)}, 1, "seconds_per_step", _COLUMNS[1:]
            )
            | _published(
                {"mnist-mlp-8x20": (28.97, 26.33)}, 10_000, "seconds_to_loss", ("adam", PAPER)
            )
        ),
        quick_steps=(200,),
        timed=("mnist-mlp-9x20",),
    ),
)

#: Every experiment by name.
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _EXPERIMENTS}


def find_experiment(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise ValueError(unknown("experiment", name, EXPERIMENTS))
    return EXPERIMENTS[name]
