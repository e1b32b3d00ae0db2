"""Compiles HyperAdam2's Triton programs for GPUs that need not be there; prints JSON, as
triton_compiled.py does for HyperAdam's.

For instance: python triton2_compiled.py cuda:80:32 hip:gfx942:64"""

import json
import sys

import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton_compiled import report

from hyperadam.kernels.triton import TritonTensorKernel, device2, hyperadam2
from hyperadam.rules import HyperAdam2Rule

FULL = {"SLOPE": tl.float32, "STATE": tl.float32, "WEIGHT": tl.float32}
#: As under mixed precision: the gradient's dtype, the state's and the parameter's.
DTYPES = {
    "step": FULL,
    "step of bfloat16": dict.fromkeys(FULL, tl.bfloat16),
    "step of float16 and bfloat16 state": {**dict.fromkeys(FULL, tl.float16), "STATE": tl.bfloat16},
}


def programs():
    """The programs with their constants, by name."""
    constants = {**TritonTensorKernel(HyperAdam2Rule()).constants, "BLOCK": hyperadam2.BLOCK}
    steps = {
        name: (device2.step, {**constants, "EACH": False, **dtypes})
        for name, dtypes in DTYPES.items()
    }
    return {
        **steps,
        "step, weights a run": (device2.step, {**constants, "EACH": True, **FULL}),
        "sums": (device2.add_up, {"CHUNK": hyperadam2.CHUNK}),
    }


def main(*targets):
    found = {}
    for text in targets:
        backend, name, warp = text.split(":")
        target = GPUTarget(backend, int(name) if backend == "cuda" else name, int(warp))
        found[text] = {name: report(*program, target) for name, program in programs().items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
