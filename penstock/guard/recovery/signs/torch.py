"""PyTorch's out-of-memory errors.

Covers: CUDA and CPU allocators, cuDNN and cuBLAS workspaces, oneDNN on CPU.
Does not cover: how they are matched (guard/recovery/classify.py).
"""

from __future__ import annotations

from penstock.guard.recovery.signs.signs import Signs

TORCH = Signs(
    framework="torch",
    types=frozenset({"torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError"}),
    texts=(
        "cuda out of memory",
        "hip out of memory",
        "mps backend out of memory",
        "defaultcpuallocator: can't allocate memory",
        "defaultcpuallocator: not enough memory",
        "[enforce fail at alloc_cpu.cpp",
        "cuda error: out of memory",
        "cudnn_status_alloc_failed",
        "cublas_status_alloc_failed",
    ),
    disguised=(
        "could not create a primitive",
        "could not execute a primitive",
        "could not create a memory object",
        "cudnn_status_not_supported",
        "cudnn_status_internal_error",
        "unable to find a valid cudnn algorithm",
        "cublas_status_not_initialized",
    ),
)
