"""The real datasets, fetched through the package; skipped with the reason where they cannot be had."""

from __future__ import annotations

import hashlib
import struct

import pytest
import torch

from hyperadam import data

pytestmark = pytest.mark.data


def real(name: str) -> data.Dataset:
    try:
        return data.load(name)
    except data.DataError as error:
        pytest.skip(str(error))


def md5_of_idx(array: torch.Tensor) -> str:
    array = array.to(torch.uint8)
    header = bytes([0, 0, 8, array.dim()]) + struct.pack(f">{array.dim()}I", *array.shape)
    return hashlib.md5(header + array.numpy().tobytes()).hexdigest()


def test_mnist_is_the_published_one() -> None:
    mnist = real("mnist")
    # the MD5s of LeCun's files, uncompressed
    assert md5_of_idx(mnist.train_images.squeeze(1)) == "6bbc9ace898e44ae57da46a324031adb"
    assert md5_of_idx(mnist.train_labels) == "a25bea736e30d166cdddb491f175f624"
    assert md5_of_idx(mnist.test_images.squeeze(1)) == "2646ac647ad5339dbf082846283269ea"
    assert md5_of_idx(mnist.test_labels) == "27ae3e4e09519cfbb04c329615203637"
    pixels = mnist.train_images.double() / 255
    assert pixels.mean().item() == pytest.approx(0.13066, abs=1e-5)
    assert pixels.std().item() == pytest.approx(0.30811, abs=1e-5)


def test_fashion_mnist_is_the_published_one() -> None:
    if data.status("fashion-mnist").state == "absent":
        pytest.skip("Fashion-MNIST is not in the cache (31 MB): fetch it first")
    fashion = real("fashion-mnist")
    assert fashion.train_images.shape == (60_000, 1, 28, 28)
    assert torch.bincount(fashion.train_labels).tolist() == [6000] * 10
    assert torch.bincount(fashion.test_labels).tolist() == [1000] * 10
    pixels = fashion.train_images.double() / 255
    # what its users normalise by
    assert pixels.mean().item() == pytest.approx(0.2860, abs=1e-4)
    assert pixels.std().item() == pytest.approx(0.3530, abs=1e-4)


def test_cifar10_is_the_published_one() -> None:
    if data.status("cifar10").state == "absent":
        pytest.skip("CIFAR-10 is not in the cache (170 MB): fetch it first")
    cifar = real("cifar10")
    assert cifar.train_images.shape == (50_000, 3, 32, 32)
    assert torch.bincount(cifar.train_labels).tolist() == [5000] * 10
    assert torch.bincount(cifar.test_labels).tolist() == [1000] * 10
    means = cifar.train_images.double().mean((0, 2, 3)) / 255
    assert means.tolist() == pytest.approx([0.49140, 0.48216, 0.44653], abs=1e-5)
