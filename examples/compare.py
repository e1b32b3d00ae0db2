"""Train small networks on MNIST with HyperAdam, Adam and SGD; print the losses and draw the curves.

python examples/compare.py [--steps 300] [--seeds 3] [--out demo]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import nn

import hyperadam
from hyperadam import data

OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "HyperAdam": lambda params: hyperadam.HyperAdam(params),
    "Adam, lr 0.005": lambda params: torch.optim.Adam(params, lr=0.005),
    "SGD, lr 0.5": lambda params: torch.optim.SGD(params, lr=0.5),
}
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "MLP 784-20-10, sigmoid": lambda: nn.Sequential(nn.Linear(784, 20), nn.Sigmoid(), nn.Linear(20, 10)),
    "MLP 784-64-64-10, ReLU": lambda: nn.Sequential(
        nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    ),
}


def train(network: Callable[[], nn.Module], optimizer: str, seed: int, steps: int, mnist: data.Dataset) -> list[float]:
    """Training loss at each step, batches of 128."""
    torch.manual_seed(seed)
    model = network()
    opt = OPTIMIZERS[optimizer](model.parameters())
    losses = []
    for _ in range(steps):
        batch = torch.randint(len(mnist.train_labels), (128,))
        images = mnist.train_images[batch].flatten(1).float() / 255
        loss = nn.functional.cross_entropy(model(images), mnist.train_labels[batch].long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="steps of training (default 300)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each pair (default 3)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="where the figure goes (default ./demo)")
    arguments = parser.parse_args()
    mnist = data.load("mnist")
    opt = hyperadam.HyperAdam(nn.Linear(1, 1).parameters())
    print(f"{opt}\n\nmean training loss over the last 20 of {arguments.steps} steps, {arguments.seeds} seeds:\n")
    curves: dict[str, dict[str, torch.Tensor]] = {}
    for title, network in NETWORKS.items():
        print(title)
        curves[title] = {}
        for name in OPTIMIZERS:
            runs = [train(network, name, seed, arguments.steps, mnist) for seed in range(arguments.seeds)]
            curves[title][name] = torch.tensor(runs)
            last = curves[title][name][:, -20:].mean(1)
            print(f"  {name:16} {last.mean():.3f} ± {last.std(unbiased=len(last) > 1) / len(last) ** 0.5:.3f}", flush=True)
    print(f"\nfigure: {draw(curves, arguments.out)}")


def draw(curves: dict[str, dict[str, torch.Tensor]], out: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(5.2 * len(curves), 3.8), layout="constrained", squeeze=False)
    for axis, (title, optimizers) in zip(axes[0], curves.items(), strict=True):
        for (name, losses), colour in zip(optimizers.items(), ("#0072B2", "#E69F00", "#999999"), strict=True):
            smooth = losses.unfold(1, 10, 1).mean(2)
            x = torch.arange(smooth.shape[1]) + 10
            axis.plot(x, smooth.mean(0), label=name, color=colour)
            axis.fill_between(x, smooth.min(0).values, smooth.max(0).values, color=colour, alpha=0.2, linewidth=0)
        axis.set(title=title, xlabel="step", ylabel="training loss, mean of 10 steps", yscale="log")
        axis.legend()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "compare.png", dpi=130)
    return out / "compare.png"


if __name__ == "__main__":
    main()
