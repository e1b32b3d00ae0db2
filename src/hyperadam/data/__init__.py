"""Data: MNIST, Fashion-MNIST and CIFAR-10, fetched, verified and cached; sine sequences, generated; draws that depend on seeds alone."""

from hyperadam.data.catalog import names
from hyperadam.data.formats import DataError
from hyperadam.data.sine import sine_sequences
from hyperadam.data.sources import Progress
from hyperadam.data.store import (
    Dataset,
    Status,
    cache_dir,
    fetch,
    load,
    status,
    stderr_progress,
    verify,
)

__all__ = [
    "DataError",
    "Dataset",
    "Progress",
    "Status",
    "cache_dir",
    "fetch",
    "load",
    "names",
    "sine_sequences",
    "status",
    "stderr_progress",
    "verify",
]
