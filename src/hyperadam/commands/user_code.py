"""The user's own module, and where an error of theirs is: their file and line, not ours."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from pathlib import Path

#: This package.
OURS = Path(__file__).parents[1]
#: Where libraries lie, Python's own and others'.
LIBRARIES = tuple(
    Path(sysconfig.get_paths()[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")
)


def import_module(name: str) -> None:
    """Import a module of the user's, found as Python finds modules and in the current folder."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        importlib.import_module(name)
    except Exception as error:  # anything may happen in somebody's module
        raise ValueError(f"--import {name}: {place(error) or error}") from error


def place(error: BaseException) -> str:
    """``tasks.py, line 12: NameError: …`` if the user's code raised it, or called what
    did; else nothing.

    The innermost frame that is no library's decides: it is ours, or the user's."""
    what = f"{type(error).__name__}: {getattr(error, 'msg', error)}"
    if isinstance(error, SyntaxError) and error.filename and not _is_ours(error.filename):
        return f"{_shown(error.filename)}, line {error.lineno}: {what}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_ours(frame.filename):
            return ""
        if not _is_library(frame.filename):
            return f"{_shown(frame.filename)}, line {frame.lineno}: {what}"
    return ""


def _is_ours(file: str) -> bool:
    return OURS in Path(file).absolute().parents


def _is_library(file: str) -> bool:
    parents = Path(file).absolute().parents
    return file.startswith("<") or any(library in parents for library in LIBRARIES)


def _shown(file: str) -> str:
    """A path as seen from the current folder, if it lies there."""
    path = Path(file).absolute()
    here = Path.cwd()
    return str(path.relative_to(here)) if here in path.parents else str(path)
