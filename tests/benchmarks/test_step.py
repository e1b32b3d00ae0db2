"""The step's benchmark at tiny sizes, so that it cannot rot. No time is judged here."""

import importlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hyperadam.kernels import native

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = ("timing", "contenders", "lists", "periods", "step_report", "step")


@pytest.fixture(scope="module")
def bench():
    """The benchmark's modules, which import one another as scripts of one folder do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    sys.path.insert(0, str(BENCHMARKS))
    modules = SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    modules.timing.SAMPLE = 1e-5
    modules.periods.PERIOD = 3
    yield modules
    sys.path.remove(str(BENCHMARKS))
    for name in MODULES:
        del sys.modules[name]
    torch.set_num_threads(threads)


def assert_times(summary):
    assert 0 < summary["low"] <= summary["median"] <= summary["high"]


def test_every_optimizer_steps_a_flat_vector(bench):
    setups = bench.contenders.every()
    part = bench.step.time_flat(setups, coordinates=130, rounds=2)
    assert list(part["seconds"]) == list(setups)
    for summary in part["seconds"].values():
        assert_times(summary)


def moved(bench, monkeypatch, names):
    """Where each of some optimizers takes the same vector in twenty steps."""
    made = []
    parameters = bench.contenders.parameters

    def remembered(shapes):
        torch.manual_seed(1)
        made.append(parameters(shapes)[0])
        return made[-1:]

    monkeypatch.setattr(bench.contenders, "parameters", remembered)
    setups = bench.contenders.every()
    for name in names:
        work = setups[name]([(50,)])
        for _ in range(20):
            work()
    assert all(w.any() for w in made)
    return made


def test_naive_step_is_the_kernels(bench, monkeypatch):
    made = moved(bench, monkeypatch, (bench.contenders.NAIVE, bench.contenders.OURS))
    torch.testing.assert_close(*made, rtol=1e-4, atol=1e-6)


def test_backends_of_hyperadam2_take_the_same_steps(bench, monkeypatch):
    torch.manual_seed(0)
    names = [bench.contenders.second_name(x) for x in ("torch", *native.available())]
    assert set(names) <= set(bench.contenders.longest())
    first, *others = moved(bench, monkeypatch, names)
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_list_beside_flat(bench, threads):
    part = bench.lists.time_list([(3, 4), (5,)], threads, rounds=2)
    assert (part["tensors"], part["coordinates"]) == (2, 17)
    for forms in part["seconds"].values():
        assert_times(forms["list"])
        assert_times(forms["flat"])
    assert bool(part["outside"]) == (threads == 1 and bool(native.available()))


def test_lists_are_as_large_as_they_say(bench):
    lists = bench.contenders.LISTS.values()
    sizes = [(len(shapes), bench.contenders.size(shapes)) for shapes in lists]
    assert sizes[:2] == [(100, 6_400), (20, 19_270)]
    assert sizes[2][0] == 76
    assert 5.5e6 < sizes[2][1] < 6.5e6


def test_every_period(bench):
    assert set(bench.periods.names(quick=True)) <= set(bench.periods.names())
    for name in bench.periods.names():
        forwards, both = bench.periods.works(name, coordinates=30)
        forwards()
        assert all(gradient.isfinite().all() for gradient in both())


def test_period_in_a_process_of_its_own(bench, monkeypatch):
    # the child sees the package that we test
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    found = bench.periods.measure_apart(bench.periods.WHOLE, rounds=1, coordinates=30)
    assert found["forwards"] > 0
    assert found["all"] > 0


def test_all_of_it_and_its_report(bench, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench.step, "SIZES", {"16k": 60, "100k": 130})
    monkeypatch.setattr(bench.step, "LISTS", {"a pair": [(3, 4), (5,)]})
    monkeypatch.setattr(bench.step, "TOGETHER", 100)  # the naive step alone, and together
    monkeypatch.setattr(bench.step, "QUICK_ROUNDS", 1)
    here = bench.periods.measure
    monkeypatch.setattr(bench.periods, "measure_apart", lambda name, *_: here(name, 1, 30))
    (tmp_path / "step.json").write_text(json.dumps(bench.step.measure(quick=True)))
    result = json.loads((tmp_path / "step.json").read_text())
    # what the full run has besides: a longest size that lacks most variants
    longest = {name: result["flat"]["100k"]["seconds"][name] for name in bench.contenders.longest()}
    result["flat"]["10M"] = {"coordinates": 10_000_000, "seconds": longest}
    text = bench.step_report.write(result, tmp_path)
    page = (tmp_path / "step.md").read_text()
    for name in (*bench.contenders.every(), *bench.periods.names(quick=True), "a pair"):
        assert name in text
        assert name in page
    assert (tmp_path / "step.png").stat().st_size > 0
    assert (tmp_path / "step.svg").stat().st_size > 0

    (tmp_path / "step.md").unlink()
    monkeypatch.setattr(sys, "argv", ["step.py", "--again", "--out", str(tmp_path)])
    bench.step.main()
    assert (tmp_path / "step.md").exists()
    assert "Targets" in capsys.readouterr().out


def published():
    """The results that are in the repository."""
    return json.loads((BENCHMARKS / "results" / "step.json").read_text())


def test_targets_of_hyperadam2(bench):
    result = published() | {"backends": ["avx512", "avx2", "portable", "triton", "torch"]}
    adam, half = bench.contenders.FUSED, bench.contenders.half_name("HyperAdam2 avx512")
    result["flat"] = {
        size: {"coordinates": n, "seconds": {name: {"median": ns * n * 1e-9} for name, ns in times}}
        for size, n, times in (
            ("16k", 16_000, [("HyperAdam2 avx512", 50.0), (adam, 1.0)]),
            ("100k", 100_000, [("HyperAdam2 avx512", 11.9), ("HyperAdam2 avx2", 12.1)]),
            ("1M", 1_000_000, [("HyperAdam2 avx512", 9.0), ("HyperAdam2 avx2", 11.0), (adam, 1.0)]),
            ("10M", 10_000_000, [("HyperAdam2 avx512", 13.0), (half, 3.0), (adam, 1.0)]),
        )
    }
    assert list(bench.step_report.judged_second(result)) == [
        ("HyperAdam2 avx512, 100k", "≤ 12 ns a coordinate", "11.9 ns", True),
        ("HyperAdam2 avx2, 100k", "≤ 12 ns a coordinate", "12.1 ns", False),
        ("HyperAdam2 avx512, 1M", "≤ 12 ns a coordinate", "9.0 ns", True),
        ("HyperAdam2 avx512 against Adam fused, 1M", "≤ 10×", "9.0×", True),
        ("HyperAdam2 avx2, 1M", "≤ 12 ns a coordinate", "11.0 ns", True),
        ("HyperAdam2 avx2 against Adam fused, 1M", "≤ 10×", "11.0×", False),
        ("HyperAdam2 avx512, 10M", "≤ 12 ns a coordinate", "13.0 ns", False),
    ]


def test_the_published_results_can_be_reported_anew(bench, tmp_path):
    bench.step_report.write(published(), tmp_path)
    assert "kernel" in (tmp_path / "step.md").read_text()
