"""What people call our tasks and optimizers: the one table of names."""

from __future__ import annotations

OPTIMIZERS = {
    "hyperadam2": "HyperAdam2",
    "hyperadam2+horizon": "HyperAdam2",
    "hyperadam2-start": "untrained HyperAdam2",
    "hyperadam": "HyperAdam",
    "hyperadam+horizon": "HyperAdam, told the horizon",
    "hyperadam-horizon": "HyperAdam, trained with the horizon",
    "hyperadam-paper": "HyperAdam to the letter",
    "hyperadam-published": "HyperAdam, published recipe",
    "adam-init": "untrained HyperAdam",
    "rnnprop": "RNNprop",
    "dm": "DMoptimizer",
    "adam": "tuned Adam",
    "adam@0.001": "Adam at 0.001",
    "adam-linear": "tuned Adam with linear decay",
    "adamw-cosine": "AdamW at 0.001, cosine",
    "schedule-free": "schedule-free AdamW",
    "prodigy": "Prodigy",
    "prodigy-cosine": "Prodigy, cosine",
    "muon": "tuned Muon",
    "sgd": "tuned SGD",
    "sgd-cosine": "tuned SGD, cosine",
    "momentum": "tuned SGD with momentum",
    "rmsprop": "tuned RMSProp",
    "adagrad": "tuned AdaGrad",
    "adadelta": "tuned AdaDelta",
    "full": "the whole rule",
    "no-lstm": "without the LSTM",
    "no-preprocessing": "without preprocessing",
    "no-lstm-no-preprocessing": "without LSTM and preprocessing",
    "no-scaling": "without Random Scaling",
    "no-convex": "without the convex function",
    "no-scaling-no-convex": "without both tricks",
    "j1": "1 candidate",
    **{f"j{n}": f"{n} candidates" for n in range(2, 100)},
}
TASKS = {
    "mnist-mlp": "MNIST MLP, sigmoid",
    "mnist-mlp-relu": "MNIST MLP, ReLU",
    "mnist-mlp-elu": "MNIST MLP, ELU",
    "mnist-mlp-tanh": "MNIST MLP, tanh",
    **{f"mnist-mlp-{n}x20": f"MNIST MLP, {n} hidden layers" for n in range(2, 100)},
    "sine-lstm": "sine LSTM",
    "sine-lstm-small-noise": "sine LSTM, small noise",
    "sine-lstm-2": "sine LSTM, two layers",
    "mnist-cnn1": "CNN-1 on MNIST",
    "mnist-cnn2": "CNN-2 on MNIST",
    "cifar10-cnn1-bn": "CNN-1 with batch norm on CIFAR-10",
    "cifar10-cnn2": "CNN-2 on CIFAR-10",
    "cifar10-cnn2-dropout": "CNN-2 with dropout on CIFAR-10",
    # the suite's
    "fashion8-mlp": "small MLP on Fashion-MNIST 8×8",
    "cifar8-mlp": "small MLP on CIFAR-10 8×8",
    "tabular": "MLP on tabular data",
    "cifar-ae": "autoencoder on CIFAR-10",
    "fashion-mlp": "MLP on Fashion-MNIST",
    "mnist-mlp3": "deep MLP on MNIST",
    "mnist-ae": "autoencoder on MNIST",
    "fashion-ae": "autoencoder on Fashion-MNIST",
    "cifar-mlp-norm": "MLP with layer norm on CIFAR-10",
    "finetune": "fine-tuned CNN on Fashion-MNIST",
    "text-lstm": "LSTM on text",
    "text-transformer": "transformer on text",
    "cifar-vit": "vision transformer on CIFAR-10",
    "fashion-mlp-1m": "large MLP on Fashion-MNIST",
    "cifar-cnn2": "CNN-2 with Kaiming start on CIFAR-10",
    "cifar16-conv": "CNN on CIFAR-10 16×16",
    "cifar-conv": "CNN on CIFAR-10",
}


def called(name: str) -> str:
    """What people call a task or an optimizer; what has no other name is called by its own."""
    return OPTIMIZERS.get(name) or TASKS.get(name) or name


def listed(things: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(part for part in (", ".join(things[:-1]), *things[-1:]) if part)
