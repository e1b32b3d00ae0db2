"""Every reader, what it is fed with, and what it may raise. A new reader is one more entry."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from safetensors.torch import save

import hyperadam
from hyperadam import WeightsError, load_rule
from hyperadam.cli import build_parser
from hyperadam.commands import meta_train
from hyperadam.data.formats import CSV, IDX, DataError, read_archive
from hyperadam.experiments.training import rates
from hyperadam.files import Damaged
from hyperadam.meta import Settings, Trainer
from hyperadam.report.paper import versions
from hyperadam.results import archive
from hyperadam.rules import RULES
from hyperadam.rules.base import METADATA
from tests.data.conftest import as_deb, as_tar, as_zip, csv_files, idx_files, random_parts
from tests.experiments.tiny import result
from tests.fuzz.inputs import NUMBERS, TEXTS, changed, damaged, edges, json_text, values
from tests.meta import toys
from tests.optim.test_damaged_state import verdict


class Refused(Exception):
    """The reader said no, and how it said so has been looked at."""


class Reader(NamedTuple):
    """A reader under test: ``read`` takes one of ``inputs`` and a folder of its own.

    It returns if the input is taken, and raises one of ``refused`` if not. All else is a finding.
    """

    inputs: Callable[[], st.SearchStrategy[Any]]
    read: Callable[[Any, Path], None]
    refused: tuple[type[Exception], ...] = (Refused,)


# Weights --------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "hyperadam": hyperadam.HyperAdam,
    "hyperadam2": hyperadam.HyperAdam2,
    "rnnprop": hyperadam.RNNprop,
    "dm": hyperadam.DMOptimizer,
}
SMALL = {
    "hyperadam": {"candidates": 2, "decay_bound": 0.9, "normalize_state": True},
    "hyperadam2": {"betas": [0.0, 0.5], "gammas": [0.9], "hidden": 2, "units": 2},
    "rnnprop": {"units": 2},
    "dm": {"units": 2},
}


@functools.cache
def small_rule(kind: str) -> Any:
    torch.manual_seed(0)
    return RULES[kind](**SMALL[kind])


def weight_file(tensors: dict[str, torch.Tensor], text: str) -> bytes:
    # the file's header is UTF-8: what is not cannot even be written
    return save(tensors, {METADATA: text.encode("utf-8", "replace").decode()})


@functools.cache
def good_weights(kind: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        small_rule(kind).save(Path(folder) / "good.safetensors")
        return (Path(folder) / "good.safetensors").read_bytes()


@st.composite
def other_metadata(draw: st.DrawFn) -> bytes:
    rule = small_rule(draw(st.sampled_from(list(RULES))))
    about = {"format": "hyperadam-rule/1", "rule": rule.kind, "config": rule.config}
    what = draw(st.sampled_from(["config", "config", "about", "text"]))
    if what == "config":
        text = json_text(about | {"config": draw(changed(rule.config, values()))})
    elif what == "about":
        text = json_text(draw(changed(about | {"provenance": {}}, values())))
    else:
        text = draw(st.one_of(st.sampled_from(TEXTS), st.text(), values().map(json_text)))
    return weight_file(dict(rule.state_dict()), text)


DTYPES = [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8]
DTYPES += [torch.float8_e4m3fn, torch.complex64]


@st.composite
def other_tensors(draw: st.DrawFn) -> bytes:
    rule = small_rule(draw(st.sampled_from(list(RULES))))
    tensors = {name: x.clone() for name, x in rule.state_dict().items()}
    name = draw(st.sampled_from(list(tensors)))
    how = draw(st.sampled_from(["value", "value", "dtype", "shape", "remove", "add"]))
    if how == "value":
        wide = st.sampled_from([1e6, -1e6, 1e5, 100.0, 1e-30, 1e30, 3e38, float("inf")])
        tensors[name].view(-1)[0] = draw(wide | st.floats(width=32))
        if draw(st.booleans()):
            tensors = {key: torch.full_like(x, draw(wide)) for key, x in tensors.items()}
    elif how == "dtype":
        tensors[name] = tensors[name].to(draw(st.sampled_from(DTYPES)))
    elif how == "shape":
        tensors[name] = torch.ones(draw(st.lists(st.integers(0, 4), max_size=4)))
    elif how == "remove":
        del tensors[name]
    else:
        tensors[draw(st.text(max_size=5).map(lambda x: x.encode("utf-8", "replace").decode()))] = (
            torch.ones(1)
        )
    about = {"format": "hyperadam-rule/1", "rule": rule.kind, "config": rule.config}
    return weight_file(tensors, json_text(about))


def weight_inputs() -> st.SearchStrategy[bytes]:
    return st.one_of(
        damaged([good_weights(kind) for kind in RULES]), other_metadata(), other_tensors()
    )


def read_weights(data: bytes, folder: Path) -> None:
    """What loads must also step, from any gradient, and leave finite parameters."""
    path = folder / "w.safetensors"
    path.write_bytes(data)
    rule = load_rule(path)
    p = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
    opt = OPTIMIZERS[rule.kind]([p], weights=path)
    for step in range(3):
        p.grad = torch.tensor([[0.0, 1e-20, -1.0], [1e6, 1e-3, -1e10]]) * (-1) ** step
        opt.step()
    assert p.isfinite().all(), f"parameters became {p}"


# Checkpoints ----------------------------------------------------------------------------------------

SETTINGS = Settings(
    config={"candidates": 2},
    tasks=("toy-bowl",),
    lengths=(4,),
    period=2,
    updates=4,
    rollouts=1,
    validation_runs=1,
    validation_steps=2,
)


@functools.cache
def good_content() -> dict[str, Any]:
    toys.register()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(SETTINGS, Path(folder))
        trainer.validate()
        trainer.step()
        trainer.save()
        (content,), _ = trainer.checkpoints.load()
    return content


def signed(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest() + payload


def saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


@st.composite
def other_content(draw: st.DrawFn) -> bytes:
    new = st.one_of(
        values(),
        st.sampled_from([torch.ones(3), torch.tensor(1), torch.zeros(0)]),
        st.sampled_from(list(good_content().values())),
    )
    content: Any = draw(changed(good_content(), new))
    for name in ("rule", "optimizer", "norms"):
        if isinstance(content.get(name), dict) and content[name] and draw(st.booleans()):
            content[name] = draw(changed(content[name], new))
    return signed(saved(draw(st.sampled_from([content, content, content, [content], None]))))


def checkpoint_inputs() -> st.SearchStrategy[bytes]:
    good = saved(good_content())
    return st.one_of(damaged([signed(good)]), damaged([good], sign=signed), other_content())


def read_checkpoint(data: bytes, folder: Path) -> None:
    toys.register()
    path = folder / "checkpoint.pt"
    path.write_bytes(data)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            Trainer(SETTINGS, folder)
    except ValueError as error:
        known = isinstance(error, Damaged) or "other settings" in str(error)
        raise Refused if known and str(path) in str(error) else error from error


# Archives -------------------------------------------------------------------------------------------

PARTS = random_parts((1, 3, 3))
FILES = {**csv_files(PARTS), **idx_files(PARTS)}
COUNT = sum(part.size for part in PARTS)


@functools.cache
def good_archives() -> list[bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in FILES.items():
            member = tarfile.TarInfo("é" * 60 + f"/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return [pack(FILES) for pack in (as_tar, as_zip, as_deb)] + [buffer.getvalue()]


@st.composite
def other_tar(draw: st.DrawFn) -> bytes:
    """Blocks of members as no program would write them."""
    data = b""
    for name in draw(st.lists(st.sampled_from([*FILES, "x/" + IDX.files[0], "other"]), max_size=8)):
        member = tarfile.TarInfo(name)
        member.type = draw(st.sampled_from([b"0", b"\0", b"1", b"2", b"5", b"L", b"x", b"g", b"S"]))
        member.linkname = draw(st.sampled_from(["", name, "/etc/passwd", "../.."]))
        body = FILES.get(name, b"12 path=" + IDX.files[0].encode() + b"\n")
        member.size = draw(st.sampled_from([len(body)] * 3 + [0, 1, 600, 2**30, 8**11 - 1]))
        data += member.tobuf(draw(st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])))
        data += body + bytes(-len(body) % 512)
    return data


@st.composite
def other_zip(draw: st.DrawFn) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in draw(st.lists(st.sampled_from(list(FILES)), max_size=5, unique=True)):
            info = zipfile.ZipInfo(draw(st.sampled_from(["", "/", "../", "a/b/"])) + name)
            info.external_attr = draw(st.sampled_from([0, 0o120777 << 16, 2**32 - 1]))
            info.compress_type = draw(st.sampled_from([0, 8, 12, 14]))
            archive.writestr(info, FILES[name])
    data = bytearray(buffer.getvalue())
    for mark, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):  # flags, then the method of compression
        if (start := data.find(mark)) >= 0 and draw(st.booleans()):
            data[start + at] ^= draw(st.sampled_from([1, 8, 32]))
            data[start + at + 2] = draw(st.integers(0, 99))
    return bytes(data)


def archive_inputs() -> st.SearchStrategy[bytes]:
    return st.one_of(damaged(good_archives()), other_tar(), other_zip(), st.binary(max_size=2000))


def read_archives(data: bytes, folder: Path) -> None:
    path = folder / "all.bin"
    path.write_bytes(data)
    read_archive(path, (IDX, CSV), COUNT)


# State dicts ----------------------------------------------------------------------------------------


def read_state(number: int, folder: Path) -> None:
    outcome, story = verdict(number)
    assert outcome in ("refused", "accepted"), f"{outcome}: {story}"
    if outcome == "refused":
        raise Refused


# The command line -----------------------------------------------------------------------------------


@functools.cache
def parser() -> Any:
    return build_parser()


def words() -> st.SearchStrategy[list[str]]:
    flags = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Settings)]
    flags += ["--preset", "--save-every", "--threads", "--no-scaling", "--out", "--period"]
    numbers = st.sampled_from(NUMBERS[:7] + NUMBERS[9:]).map(str) | st.integers(-5, 500).map(str)
    names = [*RULES, "es", "bptt", "mixture", "near-adam", "theta_a@3", "theta_q", "family"]
    known = sorted({option for rule in RULES for option in small_rule(rule).config})
    config = st.dictionaries(st.sampled_from([*known, "candidats"]), edges(), max_size=3)
    value = st.one_of(
        numbers,
        st.lists(numbers, max_size=4).map(",".join),
        st.sampled_from([*names, *TEXTS[:3], *TEXTS[4:], "[" * 20_000]),
        config.map(json_text),
        values().map(json_text),
        st.text(max_size=8),
    )
    pairs = st.lists(st.tuples(st.sampled_from(flags), value), max_size=4)
    return pairs.map(lambda found: [word for pair in found for word in pair])


def read_words(given: list[str], folder: Path) -> None:
    """Parsed and checked; what is taken makes a rule. Errors are one line."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
            options = parser().parse_args(["meta-train", "--out", str(folder), *given])
    except SystemExit as end:
        lines = told.getvalue().rstrip("\n").split("\n")
        if len(lines) > 1 and end.code != 0 and not any("\n" in word for word in given):
            raise AssertionError(f"more than a line: {lines}") from end
        raise Refused from end
    try:
        settings = meta_train.settings(options)
    except ValueError as error:
        raise Refused from error
    if all(size <= 64 for size in settings.config.values() if isinstance(size, int)):
        assert settings.make_rule().kind == settings.rule


# Results --------------------------------------------------------------------------------------------


@functools.cache
def good_results() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "good.npz"
        archive.write(path, [result([0.5, 0.25], "adam"), result([3.0], "adam", seeds=[9])])
        return path.read_bytes()


def resealed(data: bytes) -> bytes:
    """With the checksum that belongs to it: what somebody could make on purpose."""
    rest = data[: -archive.DIGEST]
    return rest + hashlib.sha256(rest).hexdigest().encode()


@st.composite
def other_origins(draw: st.DrawFn) -> bytes:
    with zipfile.ZipFile(io.BytesIO(good_results())) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    about = json.loads(members["about.json"])
    which = draw(st.sampled_from(["settings", "origin", "about", "member"]))
    if which == "member":
        name = draw(st.sampled_from(list(members)))
        members[name] = draw(damaged([members[name]]))
        return archive._packed(members)
    origin = about["origins"][0]
    if which == "settings":
        origin["settings"] = draw(changed(origin["settings"], values()))
    elif which == "origin":
        about["origins"][0] = draw(changed(origin, values()))
    else:
        about = draw(changed(about, values()))
    return archive._packed(members | {"about.json": json_text(about).encode()})


def result_inputs() -> st.SearchStrategy[bytes]:
    return st.one_of(
        damaged([good_results()]), damaged([good_results()], resealed), other_origins()
    )


def read_results(data: bytes, folder: Path) -> None:
    """What is read can be compared and counted."""
    path = folder / "r.npz"
    path.write_bytes(data)
    for found in archive.read(path):
        assert found.losses.shape == (found.runs, found.steps)
        assert len(found.final_loss) == len(found.diverged_at) == found.runs
        versions([found])
        assert isinstance(found.lr, float)


def rate_inputs() -> st.SearchStrategy[bytes]:
    return damaged([rates.SHIPPED.read_bytes()[:400], b"task,optimizer\n", b""])


def read_rates(data: bytes, folder: Path) -> None:
    (folder / rates.RATES).write_bytes(data)
    try:
        found = rates.tuned_lr("adadelta", "cifar10-cnn1-bn", 100, folder)
    except ValueError as error:
        if "rates.csv does not hold tuned rates" in str(error):
            raise Refused from error
        raise
    assert found is not None
    assert 0 < found.lr < float("inf")


READERS: dict[str, Reader] = {
    "weights": Reader(weight_inputs, read_weights, (WeightsError,)),
    "checkpoints": Reader(checkpoint_inputs, read_checkpoint),
    "results": Reader(result_inputs, read_results, (Damaged,)),
    "rates": Reader(rate_inputs, read_rates),
    "archives": Reader(archive_inputs, read_archives, (DataError,)),
    "states": Reader(lambda: st.integers(0, 2**62), read_state),
    "command": Reader(words, read_words),
}
