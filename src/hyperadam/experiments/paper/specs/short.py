"""The experiments of a hundred steps: activations, depth, LSTMs, convolutional networks."""

from __future__ import annotations

from hyperadam.experiments.paper.experiment import Claim, Experiment, Figure
from hyperadam.experiments.paper.specs.columns import ALL, HORIZON, PAPER, published
from hyperadam.experiments.training.optimizers import BASELINES

_DEEP = ("mnist-mlp", *(f"mnist-mlp-{depth}x20" for depth in range(2, 11)))

SHORT = (
    Experiment(
        "activations",
        "Activation functions",
        "Table 1 and Figure 5(a)",
        "The small MLP 784-20-10 on MNIST is trained for 100 steps with each of four activation "
        "functions. The learned "
        "optimizers have seen only the sigmoid.",
        ("mnist-mlp", "mnist-mlp-relu", "mnist-mlp-elu", "mnist-mlp-tanh"),
        (*ALL, HORIZON),
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
        published=published(
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
        (*ALL, HORIZON),
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
        (*ALL, HORIZON),
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
        published=published(
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
        (*ALL, HORIZON),
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
)
