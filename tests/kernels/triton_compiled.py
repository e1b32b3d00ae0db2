"""Compiles the Triton programs for GPUs that need not be there, and prints what came of it as JSON.

For instance: python triton_compiled.py cuda:80:32 hip:gfx942:64"""

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hyperadam.kernels.triton import TritonKernel, device, hyperadam, launch
from hyperadam.rules import HyperAdamRule

POINTERS = {"table": "*i64", "shares": "*fp64", "totals": "*fp64"}


def build(program, constants, target):
    """The compiled program, with pointers as aligned as an allocator makes them."""
    names = program.arg_names
    signature = {x: "constexpr" if x in constants else POINTERS.get(x, "*fp32") for x in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, x in enumerate(names) if x not in constants}
    # 256 threads, in warps as wide as the target's
    options = {**launch.OPTIONS, "num_warps": 256 // target.warp_size}
    source = ASTSource(program, signature, constants, aligned)
    return triton.compile(source, target=target, options=options)


def resources(kernel):
    """Registers a thread and bytes that it spills, from the binary."""
    if "hsaco" in kernel.asm:
        text = kernel.asm["amdgcn"]
        registers, spilled = (
            re.search(rf"\.{name}: +(\d+)", text)[1]
            # vector registers; the scalar ones spill into these
            for name in ("vgpr_count", "vgpr_spill_count")
        )
        return int(registers), 4 * int(spilled)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [tool, "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", text).groups()
    return int(registers), int(stack)


#: All of the rule's parts at its full size; and on few candidates, the branches that it leaves.
WHOLE = {"decay_bound": 0.97, "normalize_state": True, "relative": True}
BRANCHES = {
    "no-lstm": {"candidates": 3, "lstm": False},
    "no-preprocess": {"candidates": 3, "preprocess": False},
    "neither": {"candidates": 3, "lstm": False, "preprocess": False},
}


def programs_of(options):
    """The programs of a rule with the constants that it gives them, by name."""
    kernel = TritonKernel(HyperAdamRule(**options))
    first, second = ({"STATE": tl.float32, "BLOCK": x} for x in hyperadam.SUM_BLOCKS)
    step = {**kernel.all, "BLOCK": hyperadam.BLOCK}
    bfloat16 = {"STATE": tl.bfloat16, "WEIGHT": tl.bfloat16}
    return {
        "first sums": (device.moment_sums, {**kernel.rows, **first}),
        "second sums": (device.state_sums, {**kernel.cell, **second}),
        "step": (device.step, {**step, "STATE": tl.float32, "WEIGHT": tl.float32}),
        "step in bfloat16": (device.step, {**step, **bfloat16}),
    }


def report(program, constants, target):
    began = time.perf_counter()
    compiled = build(program, constants, target)
    seconds = round(time.perf_counter() - began, 1)
    registers, spilled = resources(compiled)
    return {
        "bytes": len(compiled.asm["hsaco" if "hsaco" in compiled.asm else "cubin"]),
        "registers": registers,
        "spilled": spilled,
        "shared": compiled.metadata.shared,
        "seconds": seconds,
    }


def main(*targets):
    found = {}
    for text in targets:
        backend, name, warp = text.split(":")
        target = GPUTarget(backend, int(name) if backend == "cuda" else name, int(warp))
        wanted = programs_of(WHOLE)
        if not found:  # what a branch may hold is up to Triton's language, not to the target
            for branch, options in BRANCHES.items():
                others = programs_of(options)
                wanted |= {f"{branch}, {x}": others[x] for x in ("second sums", "step")}
        found[text] = {name: report(*program, target) for name, program in wanted.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
