"""HyperAdam's and HyperAdam2's step in Triton, for GPUs. Importing this imports triton; nothing
else here does."""

from hyperadam.kernels.triton.hyperadam import TritonKernel
from hyperadam.kernels.triton.hyperadam2 import TritonTensorKernel

__all__ = ["TritonKernel", "TritonTensorKernel"]
