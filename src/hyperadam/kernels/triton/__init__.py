"""HyperAdam's step in Triton, for GPUs. Importing this imports triton; nothing else here does."""

from hyperadam.kernels.triton.hyperadam import TritonKernel

__all__ = ["TritonKernel"]
