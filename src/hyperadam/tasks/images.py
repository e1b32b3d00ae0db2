"""Image classification: a network on MNIST or CIFAR-10, softmax cross-entropy, batches drawn with replacement."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, cross_entropy

from hyperadam import data
from hyperadam.data import catalog, draws
from hyperadam.data.draws import Seeds, Steps
from hyperadam.tasks.base import Metrics, Task
from hyperadam.tasks.learners import CNN, Classifier, size, unflatten

#: Subtracted from pixels in [0, 1].
OFFSETS = {"mnist": 0.0, "cifar10": 0.5}
TEST_BLOCK = 1000


class ImageBatch(NamedTuple):
    """Which training images, ``(runs, n)`` int64, and the keys of the dropout masks, ``(runs,)`` int64. The pixels themselves
    are gathered when they are used: a hundred runs' worth would not fit in any cache."""

    rows: Tensor
    dropout: Tensor


class Examples(NamedTuple):
    """Images ``(N, channels, height, width)`` as small integers that ``scale`` brings to [0, 1], and labels ``(N,)``."""

    images: Tensor
    labels: Tensor


class Classification(Task[ImageBatch]):
    """A classifier trained on a dataset.

    Args:
        dataset: ``"mnist"`` or ``"cifar10"``; read (and fetched, if need be) when first used.
        learner: the network.
        shrink: images are averaged over ``shrink × shrink`` pixels.
        batch_size: examples a batch.
    """

    def __init__(
        self, dataset: str, learner: Classifier, shrink: int = 1, batch_size: int = 128
    ) -> None:
        super().__init__(size(learner.shapes()), learner.shapes())
        self.dataset, self.learner, self.shrink, self.batch_size = (
            dataset,
            learner,
            shrink,
            batch_size,
        )
        self.title = f"{dataset}, {learner}"
        if isinstance(learner, CNN):
            self.runs_at_once = 1

    def batch(self, seeds: Seeds, step: Steps) -> ImageBatch:
        rows = draws.integers(
            draws.keys(seeds, "batch", step), len(self.train.labels), self.batch_size
        )
        return ImageBatch(rows, draws.keys(seeds, "dropout", step))

    def losses(self, params: Tensor, batch: ImageBatch) -> Tensor:
        x, y = self.examples(batch, params.dtype)
        mask = None
        if units := self.learner.dropout_units:
            mask = draws.coins(batch.dropout, y.shape[1], units)
        logits = self.learner(unflatten(params, self.learner.shapes()), x, mask)
        return cross_entropy(logits, y, reduction="none").mean(1)

    def examples(
        self, batch: ImageBatch, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """The pixels ``(runs, n, channels, height, width)`` and labels ``(runs, n)`` of a batch."""
        images, labels = self.train
        # index_select copies whole rows; indexing with a matrix of numbers is several times slower
        chosen = images.index_select(0, batch.rows.flatten()).view(
            *batch.rows.shape, *images.shape[1:]
        )
        return self._pixels(chosen, dtype), labels[batch.rows]

    @torch.no_grad()
    def test_metrics(self, params: Tensor) -> Metrics:
        """Loss, top-1 and top-2 accuracy of each run on the whole test set, without dropout."""
        metrics = []
        for runs in self._chunks(params):
            weights = unflatten(params[runs], self.learner.shapes())
            total = torch.zeros(3, len(params[runs]), dtype=torch.float64)
            for images, labels in zip(
                *(torch.split(part, TEST_BLOCK) for part in self.test), strict=True
            ):
                x = self._pixels(images, params.dtype).expand(len(params[runs]), *images.shape)
                logits = self.learner(weights, x)
                y = labels.expand(len(logits), -1)
                hits = logits.topk(2, dim=1).indices == y.unsqueeze(1)
                total[0] += cross_entropy(logits, y, reduction="none").sum(1)
                total[1] += hits[:, 0].sum(1)
                total[2] += hits.any(1).sum(1)
            metrics.append(total / len(self.test.labels))
        return Metrics(*torch.cat(metrics, dim=1).to(params.dtype))

    @cached_property
    def train(self) -> Examples:
        """The training set, resident as small integers."""
        loaded = data.load(self.dataset)
        return Examples(_shrunk(loaded.train_images, self.shrink), loaded.train_labels)

    @cached_property
    def test(self) -> Examples:
        """The test set, resident as small integers."""
        loaded = data.load(self.dataset)
        return Examples(_shrunk(loaded.test_images, self.shrink), loaded.test_labels)

    def _pixels(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        x = images.to(dtype).mul_(1 / (255 * self.shrink**2))
        return x.sub_(offset) if (offset := OFFSETS[self.dataset]) else x


def image_shape(dataset: str, shrink: int = 1) -> tuple[int, int, int]:
    """Channels, height and width of a dataset's images."""
    channels, height, width = catalog.find(dataset).image
    return channels, height // shrink, width // shrink


def _shrunk(images: Tensor, shrink: int) -> Tensor:
    """Sums over ``shrink × shrink`` pixels: whole numbers still, so small and exact."""
    if shrink == 1:
        return images
    return avg_pool2d(images.float(), shrink, divisor_override=1).to(torch.int16)
