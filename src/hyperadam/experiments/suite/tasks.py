"""The tasks of the suite: networks that people use, none of them seen by any meta-training."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, mse_loss

from hyperadam import data
from hyperadam.data import catalog, draws
from hyperadam.data.text import KINDS, library_text
from hyperadam.experiments.suite import networks
from hyperadam.tasks.modules import Batch, ModuleTask, Sampler, examples, windows

#: Test sets are the first so many examples; enough to compare on, and cheap.
TESTED = 2000
TEST_BLOCK = 500
#: Horizons of every task; of the cheap VeLOdrome ones; of four of them.
SHORT, MORE, LONG = (100, 1_000), (100, 1_000, 2_000), (100, 1_000, 2_000, 10_000)


@dataclass(frozen=True)
class SuiteTask:
    """A task of the suite.

    Attributes:
        name: for the command line and files.
        title: network and data in a line.
        build: makes the task; reads the data.
        data: what the numbers depend on beside the code: a short text with the data's checksum.
        steps: the horizons at which it is trained.
        batches: at the end the training loss is taken over so many fixed batches.
        envelope: its name in VeLOdrome, if it has one.
    """

    name: str
    title: str
    build: Callable[[], ModuleTask]
    data: Callable[[], str]
    steps: tuple[int, ...] = SHORT
    batches: int = 20
    envelope: str = ""

    @cached_property
    def task(self) -> ModuleTask:
        """The task itself, made when it is first asked for."""
        return self.build()


class Images:
    """A dataset's pixels in [0, 1] and labels. Small integers stay as they are until a batch is drawn."""

    def __init__(self, dataset: str, side: int, share: float = 1.0) -> None:
        loaded = data.load(dataset)
        count = int(share * len(loaded.train_labels))
        self.train = _resized(loaded.train_images[:count], side), loaded.train_labels[:count]
        self.test = _resized(loaded.test_images[:TESTED], side), loaded.test_labels[:TESTED]

    def batches(self, size: int, offset: float = 0.0) -> Sampler:
        """Training batches of ``size`` examples."""
        sample = examples(self.train, size)

        def pixels(keys: Tensor) -> Batch:
            images, labels = sample(keys)
            return _pixels(images, offset), labels

        return pixels

    def tested(self, offset: float = 0.0) -> Iterator[Batch]:
        """The test set in blocks."""
        for images, labels in zip(*(part.split(TEST_BLOCK) for part in self.test), strict=True):
            yield _pixels(images, offset), labels


@lru_cache(maxsize=4)
def images(dataset: str, side: int, share: float = 1.0) -> Images:
    """Images that tasks share."""
    return Images(dataset, side, share)


def _resized(pixels: Tensor, side: int) -> Tensor:
    """As they are, or brought to ``side × side`` by bilinear interpolation without antialiasing, as floats in [0, 1]."""
    if pixels.shape[-1] == side:
        return pixels
    blocks = [block.float() / 255 for block in pixels.split(10_000)]
    return torch.cat(
        [interpolate(b, (side, side), mode="bilinear", align_corners=False) for b in blocks]
    )


def _pixels(images: Tensor, offset: float) -> Tensor:
    pixels = images if images.is_floating_point() else images.float().mul_(1 / 255)
    return pixels - offset if offset else pixels


def classify(module: Any, batch: Batch) -> Tensor:
    """Softmax cross-entropy of images and labels."""
    return cross_entropy(module(batch[0]), batch[1])


def reconstruct(module: Any, batch: Batch) -> Tensor:
    """Mean square of pixels less the sigmoid of the outputs."""
    return mse_loss(module(batch[0]).sigmoid(), batch[0].flatten(1))


def foretell(module: Any, batch: Batch) -> Tensor:
    """Cross-entropy of the next character, in nats."""
    return cross_entropy(module(batch[0]).flatten(0, -2), batch[1].flatten())


def regress(module: Any, batch: Batch) -> Tensor:
    """Mean squared error."""
    return mse_loss(module(batch[0]), batch[1])


def image_task(
    make: Callable[[], nn.Module],
    dataset: str,
    side: int,
    size: int,
    *,
    loss: Callable[[Any, Batch], Tensor] = classify,
    share: float = 1.0,
    offset: float = 0.0,
) -> Callable[[], ModuleTask]:
    """What makes a task on images."""

    def build() -> ModuleTask:
        found = images(dataset, side, share)
        return ModuleTask(
            make, loss, found.batches(size, offset), test=lambda: found.tested(offset)
        )

    return build


def velodrome(
    name: str,
    envelope: str,
    make: Callable[[], nn.Module],
    dataset: str,
    side: int,
    *,
    loss: Callable[[Any, Batch], Tensor] = classify,
    steps: tuple[int, ...] = MORE,
    batches: int = 100,
) -> SuiteTask:
    """A task of VeLOdrome: batch 128 from the first 80 % of the training set, its own start."""
    build = image_task(lambda: networks.truncated(make()), dataset, side, 128, loss=loss, share=0.8)
    return SuiteTask(name, envelope, build, lambda: sha256(dataset), steps, batches, envelope)


def sha256(dataset: str) -> str:
    """A dataset's name and the checksum of its content."""
    return f"{dataset} {catalog.find(dataset).sha256[:16]}"


def text_task(make: Callable[[], nn.Module], length: int, size: int) -> Callable[[], ModuleTask]:
    """What makes a task on the text that comes with Python: the first nine tenths to train on, the rest to test."""

    def build() -> ModuleTask:
        text, _ = library_text()
        cut = len(text) * 9 // 10
        rest = text[cut : cut + (len(text) - cut - 1) // length * length + 1]
        rows = [part.view(-1, length) for part in (rest[:-1], rest[1:])]
        blocks = list(zip(*(part.split(128) for part in rows), strict=True))
        return ModuleTask(make, foretell, windows(text[:cut], length, size), test=lambda: blocks)

    return build


def tabular_task() -> ModuleTask:
    """An MLP on scikit-learn's diabetes data: the disease's progress after a year from ten measurements of 442 people.

    It is a small one: with a second layer of 64 the training loss goes to zero within 1,000 steps, and ratios say nothing.
    """
    x, y = diabetes()
    order = torch.from_numpy(draws.uniform(draws.keys([0], "split"), len(x)).numpy()[0].argsort())
    train, test = order[: len(x) * 4 // 5], order[len(x) * 4 // 5 :]

    def scaled(part: Tensor) -> Tensor:
        return (part - part[train].mean(0)) / part[train].std(0)

    x, y = scaled(x).float(), scaled(y).float().unsqueeze(1)
    return ModuleTask(
        lambda: networks.mlp((10, 32, 1)),
        regress,
        examples((x[train], y[train]), 64),
        test=lambda: [(x[test], y[test])],
    )


def diabetes() -> tuple[Tensor, Tensor]:
    """Inputs ``(442, 10)`` and targets ``(442,)``, float64, as measured."""
    try:
        from sklearn.datasets import load_diabetes
    except ModuleNotFoundError as error:
        raise data.DataError(
            "the task tabular needs scikit-learn: pip install scikit-learn"
        ) from error
    x, y = load_diabetes(return_X_y=True, scaled=False)
    return torch.from_numpy(x).double(), torch.from_numpy(y).double()


def diabetes_sha256() -> str:
    """The checksum of the numbers, for the results."""
    x, y = diabetes()
    return f"diabetes {hashlib.sha256(x.numpy().tobytes() + y.numpy().tobytes()).hexdigest()[:16]}"


#: Fine-tuning starts from a network that Adam trained for so many steps on MNIST.
PRETRAINING = 1_000


def pretrained() -> nn.Module:
    """A small CNN that knows digits, with a last layer that is new."""
    fresh = networks.small_cnn()
    state = _digits(torch.initial_seed())
    fresh.load_state_dict(
        {name: value for name, value in state.items() if not name.startswith("7")}, strict=False
    )
    return fresh


@lru_cache(maxsize=8)
@torch.enable_grad()
def _digits(seed: int) -> dict[str, Tensor]:
    """The weights of a network trained on MNIST from its own start; the same for whoever fine-tunes the run."""
    module = networks.small_cnn()
    sample = images("mnist", 28).batches(64)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    for step in range(PRETRAINING):
        batch = tuple(part[0] for part in sample(draws.keys([seed], "pretraining", step)))
        optimizer.zero_grad()
        classify(module, batch).backward()
        optimizer.step()
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


LENGTH = 32

#: All tasks, the cheap ones first.
TASKS: dict[str, SuiteTask] = {
    task.name: task
    for task in (
        velodrome(
            "fashion8-mlp",
            "ImageMLP_FashionMnist8_Relu32",
            lambda: networks.mlp((64, 32, 10)),
            "fashion-mnist",
            8,
            steps=LONG,
        ),
        velodrome(
            "cifar8-mlp",
            "ImageMLP_Cifar10_8_Relu32",
            lambda: networks.mlp((192, 32, 10)),
            "cifar10",
            8,
            steps=LONG,
        ),
        SuiteTask("tabular", "MLP 10-32-1, diabetes (scikit-learn)", tabular_task, diabetes_sha256),
        velodrome(
            "cifar-ae",
            "ImageMLPAE_Cifar10_32x32x32_bs128",
            lambda: networks.mlp((3072, 32, 32, 32, 3072)),
            "cifar10",
            32,
            loss=reconstruct,
        ),
        velodrome(
            "fashion-mlp",
            "ImageMLP_FashionMnist_Relu128x128",
            lambda: networks.mlp((784, 128, 128, 10)),
            "fashion-mnist",
            28,
            steps=LONG,
        ),
        velodrome(
            "mnist-mlp3",
            "ImageMLP_Mnist_128x128x128_Relu",
            lambda: networks.mlp((784, 128, 128, 128, 10)),
            "mnist",
            28,
            steps=LONG,
        ),
        velodrome(
            "mnist-ae",
            "ImageMLPAE_Mnist_128x32x128_bs128",
            lambda: networks.mlp((784, 128, 32, 128, 784)),
            "mnist",
            28,
            loss=reconstruct,
        ),
        velodrome(
            "fashion-ae",
            "ImageMLPAE_FashionMnist_128x32x128_bs128",
            lambda: networks.mlp((784, 128, 32, 128, 784)),
            "fashion-mnist",
            28,
            loss=reconstruct,
        ),
        velodrome(
            "cifar-mlp-norm",
            "ImageMLP_Cifar10_128x128x128_LayerNorm_Relu",
            lambda: networks.mlp((3072, 128, 128, 128, 10), norm=True),
            "cifar10",
            32,
        ),
        SuiteTask(
            "finetune",
            "CNN 16-32-64, first on MNIST, then on Fashion-MNIST",
            image_task(pretrained, "fashion-mnist", 28, 64),
            lambda: f"{sha256('mnist')}, {sha256('fashion-mnist')}",
        ),
        SuiteTask(
            "text-lstm",
            "LSTM 128 on characters of Python's library",
            text_task(lambda: networks.Characters(KINDS, 128), 32, 16),
            lambda: f"text {library_text()[1][:16]}",
        ),
        SuiteTask(
            "text-transformer",
            "transformer, 2 blocks of width 64, on characters of Python's library",
            text_task(lambda: networks.gpt(KINDS, LENGTH), LENGTH, 16),
            lambda: f"text {library_text()[1][:16]}",
        ),
        SuiteTask(
            "cifar-vit",
            "vision transformer, 2 blocks of width 64, CIFAR-10",
            image_task(networks.vit, "cifar10", 32, 32, offset=0.5),
            lambda: sha256("cifar10"),
        ),
        SuiteTask(
            "fashion-mlp-1m",
            "MLP 784-768-512-10 with a million parameters, Fashion-MNIST",
            image_task(lambda: networks.mlp((784, 768, 512, 10)), "fashion-mnist", 28, 64),
            lambda: sha256("fashion-mnist"),
        ),
        SuiteTask(
            "cifar-cnn2",
            "CNN-2 of the paper with Kaiming's start, CIFAR-10",
            image_task(networks.cnn2, "cifar10", 32, 32, offset=0.5),
            lambda: sha256("cifar10"),
        ),
        velodrome(
            "cifar16-conv",
            "Conv_Cifar10_16_32x64x64",
            lambda: networks.conv((3, 32, 64, 64)),
            "cifar10",
            16,
            steps=SHORT,
            batches=40,
        ),
        velodrome(
            "cifar-conv",
            "Conv_Cifar10_32x64x64",
            lambda: networks.conv((3, 32, 64, 64)),
            "cifar10",
            32,
            steps=SHORT,
            batches=40,
        ),
    )
}


def find(names: Sequence[str] | None = None) -> list[SuiteTask]:
    """Tasks by name, in the suite's order; all without names."""
    if unknown := [name for name in names or () if name not in TASKS]:
        raise ValueError(
            f"the suite has no task {', '.join(unknown)}; there are {', '.join(TASKS)}"
        )
    return [task for task in TASKS.values() if names is None or task.name in names]
