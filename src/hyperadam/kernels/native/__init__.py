"""Steps in C++, forward and backward, through a plain C interface."""

from hyperadam.kernels.native.hyperadam import NativeKernel
from hyperadam.kernels.native.hyperadam2 import NativeTensorKernel
from hyperadam.kernels.native.library import available, load_library
from hyperadam.kernels.native.lstm import NativeLSTM, with_native_lstms

__all__ = [
    "NativeKernel",
    "NativeLSTM",
    "NativeTensorKernel",
    "available",
    "load_library",
    "with_native_lstms",
]
