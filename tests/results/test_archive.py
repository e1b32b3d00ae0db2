"""Files of results: everything comes back, and nothing else: damage is seen and named."""

from __future__ import annotations

import hashlib
import io
import json
import math
import random
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hyperadam.files import Damaged
from hyperadam.results import Result, archive
from hyperadam.results.sealed import read_sealed, write_sealed

from ..experiments.tiny import result


def full() -> Result:
    """A result with all that a result can have."""
    found = result([0.5, math.inf, 0.25], "hyperadam", steps=7)
    test = {name: torch.tensor([0.1, math.nan, 0.3]) for name in ("loss", "top1", "top2")}
    return replace(found, settings=found.settings | {"test": True}, test=test)


def same(a: Result, b: Result) -> bool:
    equal = torch.equal(a.losses, b.losses) and torch.equal(a.final_loss, b.final_loss)
    tests = [r.test and {k: v.nan_to_num(-1).tolist() for k, v in r.test.items()} for r in (a, b)]
    fields = [(r.settings, r.seeds, r.diverged_at, r.made_with) for r in (a, b)]
    return equal and tests[0] == tests[1] and fields[0] == fields[1]


def test_everything_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.npz"
    others = [full(), result([3.0], "hyperadam", steps=7, seeds=[2**40])]
    archive.write(path, others)
    assert all(same(a, b) for a, b in zip(archive.read(path), others, strict=True))
    first = path.read_bytes()
    archive.write(path, others)
    assert path.read_bytes() == first, "the same results are the same bytes"
    (head, _) = archive.read(path, curves=False)
    assert head.losses.shape == (3, 0)
    assert torch.equal(head.final_loss, others[0].final_loss)


def test_a_stranger_reads_it_with_numpy(tmp_path: Path) -> None:
    archive.write(tmp_path / "a.npz", [full()])
    with np.load(tmp_path / "a.npz", allow_pickle=False) as found:
        assert found["losses"].shape == (3, 7)
        assert found["seed"].tolist() == [0, 1, 2]
        assert found["diverged_at"].tolist() == [-1, 2, -1]
        about = json.loads(found["about.json"])
    assert about["origins"][0]["settings"]["task"] == "bowl"


def test_every_flipped_bit_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    archive.write(path, [full()])
    content = path.read_bytes()
    for place in random.Random(0).sample(range(8 * len(content)), 400):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(Damaged, match=r"a\.npz is damaged"):
            archive.read(path)


def test_a_file_that_is_cut_short_or_longer_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    archive.write(path, [full()])
    content = path.read_bytes()
    for damaged in (b"", content[:10], content[:-1], content + b"x", b"PK nonsense"):
        path.write_bytes(damaged)
        with pytest.raises(Damaged, match=r"a\.npz is damaged"):
            archive.read(path)


def sealed(path: Path, members: dict[str, bytes]) -> None:
    """An archive of anything with a checksum that is right: what somebody could make on purpose."""
    path.write_bytes(archive._packed(members))


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def about(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, bytes]], object]:
    """A change of what ``about.json`` says."""

    def make(parts: dict[str, bytes]) -> None:
        record = json.loads(parts["about.json"])
        change(record)
        parts["about.json"] = json.dumps(record).encode()

    return make


def array(name: str, values: Any) -> Callable[[dict[str, bytes]], object]:
    def make(parts: dict[str, bytes]) -> None:
        file = io.BytesIO()
        np.save(file, values)
        parts[f"{name}.npy"] = file.getvalue()

    return make


def header(text: str) -> Callable[[dict[str, bytes]], object]:
    """An array with this header, and nothing behind it."""
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    return lambda parts: parts.update({"losses.npy": content})


HOSTILE: dict[str, Callable[[dict[str, bytes]], object]] = {
    "no versions": about(lambda r: r["origins"][0].update(made_with=None)),
    "versions of no kind": about(lambda r: r["origins"][0].update(made_with={"torch": [2]})),
    "no settings": about(lambda r: r["origins"][0].update(settings=None)),
    "no optimizer": about(lambda r: r["origins"][0]["settings"].pop("optimizer")),
    "a rate in words": about(lambda r: r["origins"][0]["settings"].update(lr="fast")),
    "other steps": about(lambda r: r["origins"][0]["settings"].update(steps=8)),
    "no origins": about(lambda r: r.update(origins=[])),
    "another format": about(lambda r: r.update(format="hyperadam-result/1")),
    "deep JSON": lambda parts: parts.update({"about.json": b"[" * 200_000}),
    "a long number": lambda parts: parts.update({"about.json": b'{"format": ' + b"9" * 5000}),
    "no about": lambda parts: parts.pop("about.json"),
    "no losses": lambda parts: parts.update({"losses.npy": b""}),
    "no seeds": lambda parts: parts.pop("seed.npy"),
    "from nowhere": array("origin", np.full(3, 7, "<i4")),
    "fewer runs": array("final_loss", np.zeros(2, "<f4")),
    "objects": array("seed", np.array([{}, {}, {}], dtype=object)),
    "another type": array("losses", np.zeros((3, 7), "<f8")),
    "a header that lies": header("{'descr': '<f4', 'fortran_order': False, 'shape': (10**9,)}"),
    "a deep header": header("(" * 900),
    "a long header": header("{" + " " * 60_000 + "}"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_named_whatever_it_holds(
    change: Callable[[dict[str, bytes]], object], tmp_path: Path
) -> None:
    path = tmp_path / "a.npz"
    archive.write(path, [full()])
    parts = members(path)
    change(parts)
    sealed(path, parts)
    with pytest.raises(Damaged, match=r"a\.npz is damaged: it holds no results") as caught:
        archive.read(path)
    assert "\n" not in str(caught.value)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    monkeypatch.setattr(archive, "LARGEST", 2**20)
    sealed(path, {"about.json": b" " * 600 * 2**20})
    assert path.stat().st_size < 2**20
    with pytest.raises(Damaged, match="it unpacks to 629,145,600 bytes"):
        archive.read(path)
    # and one that says that it is small
    content = path.read_bytes()[: -archive.DIGEST]
    small = content.replace((600 * 2**20).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    assert small != content
    path.write_bytes(small + hashlib.sha256(small).hexdigest().encode())
    unpacked = []
    real = zlib.decompressobj

    class Watching:
        def __init__(self, *arguments: Any) -> None:
            self.real = real(*arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def decompress(self, data: bytes, most: int = 0) -> bytes:
            found = self.real.decompress(data, most)
            unpacked.append(len(found))
            return found

    monkeypatch.setattr(zlib, "decompressobj", Watching)
    with pytest.raises(Damaged):
        archive.read(path)
    assert 0 < sum(unpacked) < 2**16


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npz"
    with path.open("wb") as file:
        file.truncate(archive.LARGEST + 1)  # takes no room on the disk
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("it was read"))
    with pytest.raises(Damaged, match="expected at most"):
        archive.read(path)
    monkeypatch.undo()
    monkeypatch.setattr(archive, "LARGEST", 100)
    with pytest.raises(ValueError, match="would hold"):
        archive.write(tmp_path / "b.npz", [full()])
    assert not (tmp_path / "b.npz").exists()


def test_small_records_are_sealed_too(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    record = {"format": "x/1", "numbers": [1.5, None], "text": "µ"}
    write_sealed(path, record)
    assert read_sealed(path, "x/1") == record
    with pytest.raises(Damaged, match=r"its format is 'x/1', expected 'y/1'"):
        read_sealed(path, "y/1")
    text = path.read_text()
    seen = 0
    for place in range(len(text)):
        if text[place].isdigit():
            changed = text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]
            path.write_text(changed)
            with pytest.raises(Damaged, match=r"a\.json is damaged"):
                read_sealed(path, "x/1")
            seen += 1
    assert seen > 30
    for damage in ("", "{", "[]", "null", "[" * 100_000, '{"format": "x/1"}', "9" * 5000):
        path.write_text(damage)
        with pytest.raises(Damaged, match=r"a\.json is damaged"):
            read_sealed(path, "x/1")
