"""One file of results: all runs of an optimizer on a task for a number of steps.

The file is an ``.npz`` that ``numpy.load`` reads. Every run is a row of its arrays. ``about.json``
has the settings and versions that runs were made with, and ``origin`` says which of them a run is
from. The comment at the end of the archive is a SHA-256 of all that comes before it.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hyperadam.files import Damaged, write_atomically
from hyperadam.results.result import TEST, Result

FORMAT = "hyperadam-runs/1"
#: No file is larger than this, packed or unpacked, in bytes: one that claims to be is not read.
LARGEST = 256 * 2**20
#: The length of the checksum, in hexadecimal digits.
DIGEST = 64
#: The arrays of a file and their types; those of the test set are left out if no run has them.
ARRAYS = {
    "origin": "<i4",
    "seed": "<i8",
    "losses": "<f4",
    "final_loss": "<f4",
    "diverged_at": "<i8",
    **{f"test_{name}": "<f4" for name in TEST},
}


def write(path: Path, results: Sequence[Result]) -> None:
    """Write results of one task, optimizer and number of steps, whole or not at all."""
    about = {
        "format": FORMAT,
        "origins": [{"settings": r.settings, "made_with": r.made_with} for r in results],
    }
    arrays: dict[str, Any] = {
        "origin": np.repeat(np.arange(len(results)), [r.runs for r in results]),
        "seed": [seed for r in results for seed in r.seeds],
        "losses": torch.cat([r.losses for r in results]).numpy(),
        "final_loss": torch.cat([r.final_loss for r in results]).numpy(),
        "diverged_at": [-1 if at is None else at for r in results for at in r.diverged_at],
    }
    if any(r.test is not None for r in results):
        nothing = [torch.full((r.runs,), torch.nan) for r in results]
        for name in TEST:
            parts = [r.test[name] if r.test else no for r, no in zip(results, nothing, strict=True)]
            arrays[f"test_{name}"] = torch.cat(parts).numpy()
    members = {"about.json": json.dumps(about, indent=1, sort_keys=True).encode()}
    for name, values in arrays.items():
        buffer = io.BytesIO()
        np.lib.format.write_array(
            buffer, np.asarray(values).astype(ARRAYS[name]), version=(1, 0), allow_pickle=False
        )
        members[f"{name}.npy"] = buffer.getvalue()
    if (size := sum(map(len, members.values()))) > LARGEST:
        raise ValueError(f"{path} would hold {size:,} bytes, expected at most {LARGEST:,}")
    write_atomically(path, _packed(members))


def read(path: Path, curves: bool = True) -> list[Result]:
    """The results in a file, one for each set of settings and versions.

    Raises :class:`~hyperadam.files.Damaged`, which names the file, if it is not what was written.
    With ``curves=False`` losses are left in the file, and come out as ``(runs, 0)``.
    """
    if (size := path.stat().st_size) > LARGEST:
        raise Damaged(f"{path} is damaged: it has {size:,} bytes, expected at most {LARGEST:,}")
    content = path.read_bytes()
    if hashlib.sha256(content[:-DIGEST]).hexdigest().encode() != content[-DIGEST:]:
        raise Damaged(f"{path} is damaged: its checksum is not that of its content")
    try:
        return _results(*_unpacked(content, curves))
    except Exception as error:  # a hostile file fails in the readers of zip, JSON and numpy alike
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise Damaged(f"{path} is damaged: it holds no results ({reason})") from error


def _packed(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            # a date of its own: the same results are the same bytes
            member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
        archive.comment = b"0" * DIGEST
    content = buffer.getvalue()[:-DIGEST]
    return content + hashlib.sha256(content).hexdigest().encode()


def _unpacked(content: bytes, curves: bool) -> tuple[Any, dict[str, Any]]:
    """What ``about.json`` says, and the arrays. Sizes are known before anything is unpacked."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        sizes = {member.filename: member.file_size for member in archive.infolist()}
        if sum(sizes.values()) > LARGEST:
            raise ValueError(f"it unpacks to {sum(sizes.values()):,} bytes")

        def member(name: str) -> bytes:
            # never more than announced: without a number all that is packed would be unpacked
            with archive.open(name) as file:
                return file.read(sizes[name])

        about = json.loads(member("about.json"))
        names = [name for name in ARRAYS if f"{name}.npy" in sizes and (curves or name != "losses")]
        return about, {name: _array(member(f"{name}.npy"), ARRAYS[name]) for name in names}


def _array(content: bytes, expected: str) -> Any:
    """An array in numpy's format; its header is believed only where it fits the content."""
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array is of another version of numpy's format")
    shape, fortran, kind = np.lib.format.read_array_header_1_0(file, max_header_size=1000)
    if fortran or kind != np.dtype(expected):
        raise ValueError(f"an array is of type {kind}, expected {expected}")
    return np.frombuffer(content, kind, offset=file.tell()).reshape(shape).copy()


def _results(about: Any, arrays: dict[str, Any]) -> list[Result]:
    if about["format"] != FORMAT:
        raise ValueError(f"its format is {about['format']!r}, expected {FORMAT!r}")
    runs = len(arrays["seed"])
    steps = {_checked(origin)["steps"] for origin in about["origins"]}
    if len(steps) != 1:
        raise ValueError(f"its runs have {sorted(steps)} steps, expected one number")
    shapes = dict.fromkeys(arrays, (runs,)) | {"losses": (runs, *steps)}
    for name, values in arrays.items():
        if values.shape != shapes[name]:
            raise ValueError(f"{name} has the shape {values.shape}, expected {shapes[name]}")
    if not set(arrays["origin"].tolist()) <= set(range(len(about["origins"]))):
        raise ValueError("a run is from nowhere")
    losses = torch.from_numpy(arrays.get("losses", np.empty((runs, 0), "<f4")))
    found = []
    for number, origin in enumerate(about["origins"]):
        rows = np.flatnonzero(arrays["origin"] == number)
        settings = origin["settings"]
        test = None
        if settings.get("test"):
            test = {name: torch.from_numpy(arrays[f"test_{name}"][rows]) for name in TEST}
        found.append(
            Result(
                settings,
                tuple(arrays["seed"][rows].tolist()),
                losses[torch.from_numpy(rows)],
                torch.from_numpy(arrays["final_loss"][rows]),
                tuple(None if at < 0 else at for at in arrays["diverged_at"][rows].tolist()),
                test,
                origin["made_with"],
                settings["optimizer"],
            )
        )
    return found


def _checked(origin: dict[str, Any]) -> dict[str, Any]:
    """The settings of an origin that has what every result needs."""
    settings, made_with = origin["settings"], origin["made_with"]
    kinds: dict[str, Any] = {"task": str, "optimizer": str, "steps": int, "lr": (int, float)}
    for name, kind in kinds.items():
        if not isinstance(settings[name], kind):
            raise ValueError(f"its settings have {name}: {settings[name]!r}")
    if not isinstance(made_with, dict):
        raise ValueError(f"it was made with {made_with!r}, expected versions by name")
    for name, version in made_with.items():
        if not isinstance(version, str):
            raise ValueError(f"it was made with {name} {version!r}, expected text")
    return dict(settings)
