"""HyperAdam2's Triton kernel without a GPU, as test_triton.py has HyperAdam's: interpreted, and
compiled."""

import json

import pytest

from tests.kernels.test_triton import HERE, TARGETS, needs_triton, run


@needs_triton
def test_interpreted_it_equals_the_rule():
    options = ("-p", "no:cacheprovider", "-o", "filterwarnings=")
    run("-m", "pytest", *options, str(HERE / "triton2_interpreted.py"), TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("triton2"))
    return json.loads(run(str(HERE / "triton2_compiled.py"), *TARGETS, TRITON_CACHE_DIR=cache))


@needs_triton
@pytest.mark.parametrize("target", TARGETS)
def test_it_compiles_and_fits_the_registers(target, compiled):
    assert len(compiled[target]) == 5
    for name, program in compiled[target].items():
        print(target, name, program)
        assert program["bytes"] > 0, name
        assert program["spilled"] == 0, (name, program)
        assert program["shared"] <= 4 * 1024, (name, program)
