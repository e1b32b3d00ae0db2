"""The experiments of 2,000 and 10,000 steps, and how the trained learners generalize."""

from __future__ import annotations

from hyperadam.experiments.paper.experiment import UNTRAINED, Claim, Experiment, Figure
from hyperadam.experiments.paper.specs.columns import (
    ALL,
    FEW,
    HORIZON,
    PAPER,
    PUBLISHED,
    TOLD,
    published,
)

LONG = (
    Experiment(
        "horizon",
        "Twenty times as long as most rollouts of meta-training",
        "",
        "The small MLP with sigmoid and with ReLU, and the smaller convolutional network, are "
        "trained on MNIST for 2,000 "
        "steps. Dead ReLUs make the paper's rule blow up where its decay rates allow it; the "
        "bounded rule must not.",
        ("mnist-mlp", "mnist-mlp-relu", "mnist-cnn1"),
        ("adam", PAPER, PUBLISHED, "hyperadam", UNTRAINED, HORIZON),
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
        "10,000 steps. Our rule is also told how many steps there are.",
        ("mnist-cnn2", "cifar10-cnn2"),
        (*ALL, TOLD),
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
            published(
                {"mnist-cnn1": (0.10, 2.30, 0.36, 0.05), "mnist-cnn2": (0.09, 2.30, 2.30, 0.07)},
                10_000,
                "test_loss",
            )
            | published(
                {
                    "mnist-cnn1": (0.9850, 0.1010, 0.9646, 0.9848),
                    "mnist-cnn2": (0.9898, 0.1135, 0.1137, 0.9902),
                },
                10_000,
                "test_top1",
            )
            | published(
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
)
