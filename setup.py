"""Builds the fused step where there is a C++ compiler, and leaves it out where there is none.

The kernel has a plain C interface: no header of Python or torch is needed, and one wheel a platform serves every Python.
"""

import platform
import sys
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/hyperadam/kernels/native")
# No -fwrapv, which Python's own flags bring along: it costs 7 %.
FLAGS = (
    "-O3 -g0 -std=c++17 -fno-wrapv -funroll-loops -ffp-contract=fast "
    "-fno-math-errno -fno-trapping-math -ffinite-math-only -fno-signed-zeros"
)
INSTRUCTION_SETS = {"portable": "-DHYPERADAM_LANES=4"}
if platform.machine().lower() in ("x86_64", "amd64"):
    INSTRUCTION_SETS |= {
        "avx2": "-DHYPERADAM_LANES=8 -mavx2 -mfma",
        "avx512": "-DHYPERADAM_LANES=16 -mavx512f -mavx512dq -mprefer-vector-width=512",
    }


class BuildKernel(build_ext):
    """Compiles the extensions as plain shared libraries; a failure is reported and otherwise ignored (``optional``)."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []  # there is no PyInit function to export


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 on this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class WithKernel(Distribution):
    """What ``setup`` builds. Windows compilers do not know the vector extension: there the torch path serves."""

    def has_ext_modules(self) -> bool:
        return sys.platform != "win32"


extensions = [
    Extension(
        f"hyperadam.kernels.native.{name}",
        sources=[str(path) for path in sorted(NATIVE.glob("*.cpp"))],
        depends=[str(path) for path in sorted(NATIVE.glob("*.h"))],
        extra_compile_args=[
            *FLAGS.split(),
            *flags.split(),
            *([] if sys.platform == "darwin" else ["-fopenmp"]),
        ],
        extra_link_args=[] if sys.platform == "darwin" else ["-fopenmp"],
        optional=True,
    )
    for name, flags in INSTRUCTION_SETS.items()
]

setup(
    distclass=WithKernel,
    ext_modules=[] if sys.platform == "win32" else extensions,
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": PlatformWheel},
)
