"""Memory of accelerators, seen from outside of the script.

Covers: bytes used and in all per NVIDIA device, and which processes hold them, through NVML.
Does not cover: machines without nvidia-ml-py (extra `doctor`) or without such a device: the list is empty there.
"""

from __future__ import annotations

from typing import Any


def read_devices() -> list[dict[str, Any]]:
    """One entry per device."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            holders = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            found.append(
                {
                    "index": index,
                    "used": int(memory.used),
                    "total": int(memory.total),
                    "pids": {str(holder.pid): int(holder.usedGpuMemory or 0) for holder in holders},
                }
            )
        return found
    finally:
        pynvml.nvmlShutdown()
