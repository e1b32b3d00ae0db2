"""A folder of results: ``<task>/<optimizer>-<steps>.npz``, each with all the runs there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from hyperadam.files.names import safe_name
from hyperadam.results import archive
from hyperadam.results.result import Result, merge, settings_key


class Store:
    """Runs are found by their settings and seeds. What is there is never computed again.

    Several processes may add to one file: it is locked for as long as that takes. Whatever reads a
    file raises :class:`~hyperadam.files.Damaged` if it is not what was written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, settings: Mapping[str, Any]) -> Path:
        """The file that has the runs of these settings, there or not."""
        name = f"{safe_name(settings['optimizer'])}-{settings['steps']}.npz"
        return self.folder / safe_name(settings["task"]) / name

    def checkpoint(self, settings: Mapping[str, Any], seeds: Sequence[int]) -> Path:
        """Where a training of these seeds leaves off, and goes on."""
        key = settings_key({**settings, "seeds": list(seeds)})
        return self.path(settings).with_suffix(f".{key}.checkpoint")

    def find(
        self, settings: Mapping[str, Any], seeds: Iterable[int], curves: bool = True
    ) -> Result | None:
        """The runs of these seeds that are there, in this order; ``None`` if there is none."""
        path = self.path(settings)
        if not path.is_file():
            return None
        found = [result for result in archive.read(path, curves) if result.settings == settings]
        if not found:
            return None
        whole = merge(found)
        rows = {seed: row for row, seed in enumerate(whole.seeds)}
        wanted = [rows[seed] for seed in seeds if seed in rows]
        return whole.take(wanted) if wanted else None

    def missing(self, settings: Mapping[str, Any], seeds: Sequence[int]) -> tuple[int, ...]:
        """The seeds whose runs are not there."""
        found = self.find(settings, seeds, curves=False)
        there = set(found.seeds) if found else set()
        return tuple(seed for seed in seeds if seed not in there)

    def add(self, result: Result) -> None:
        """Keep a result, in the place of runs of the same settings and seeds."""
        path = self.path(result.settings)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".lock"):
            kept = [result]
            for other in archive.read(path) if path.is_file() else []:
                if other.settings == result.settings:
                    gone = set(result.seeds)
                    other = other.take([n for n, s in enumerate(other.seeds) if s not in gone])
                if other.runs:
                    kept.append(other)
            archive.write(path, _in_order(kept))


def _in_order(results: Sequence[Result]) -> list[Result]:
    """Results by settings and versions, those alike made one, runs by seed: in whatever order runs
    were added, the file is the same."""
    alike: dict[str, list[Result]] = {}
    for result in results:
        key = settings_key({"settings": result.settings, "made_with": result.made_with})
        alike.setdefault(key, []).append(result)
    merged = [merge(group) for group in alike.values()]
    ordered = [r.take(sorted(range(r.runs), key=lambda n: r.seeds[n])) for r in merged]
    return sorted(ordered, key=lambda r: (r.seeds, settings_key(r.settings)))
