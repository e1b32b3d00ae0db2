"""Text that comes with every Python: sources of the standard library that have not changed since 3.10."""

from __future__ import annotations

import hashlib
import sysconfig
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from hyperadam.data.formats import DataError

#: Byte for byte the same in Python 3.10.13, 3.11.7, 3.12.1 and 3.13.0; some 330,000 characters in all.
FILES = (
    "difflib.py",
    "xml/sax/handler.py",
    "unittest/suite.py",
    "tracemalloc.py",
    "pyclbr.py",
    "json/__init__.py",
    "_markupbase.py",
    "xml/sax/saxutils.py",
    "multiprocessing/heap.py",
    "asyncio/protocols.py",
    "email/_encoded_words.py",
    "xml/dom/xmlbuilder.py",
    "urllib/robotparser.py",
    "multiprocessing/reduction.py",
    "wsgiref/headers.py",
    "_threading_local.py",
    "optparse.py",
)
#: Characters outside printable ASCII become one more kind of their own.
KINDS = 98


@lru_cache(maxsize=1)
def library_text() -> tuple[Tensor, str]:
    """The text as whole numbers below :data:`KINDS`, ``(n,)`` int64, and the sha256 of the files one after the other.

    Another Python may have other sources: whoever stores numbers that depend on the text stores the sha256 with them.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    try:
        content = b"".join((folder / name).read_bytes() for name in FILES)
    except OSError as error:
        raise DataError(
            f"this Python has no sources of its library ({error}): use one that has, such as any installed from python.org"
        ) from error
    return _numbers(content), hashlib.sha256(content).hexdigest()


def _numbers(content: bytes) -> Tensor:
    """Printable ASCII from 0 up, then newline, tab and all else."""
    table = torch.full((256,), KINDS - 1)
    table[32:127] = torch.arange(95)
    table[ord("\n")], table[ord("\t")] = 95, 96
    return table[torch.frombuffer(bytearray(content), dtype=torch.uint8).long()]
