"""Another process holds the device's memory.

Covers: messages that name other processes, TensorFlow's and JAX's preallocation, NVML's list of holders.
Does not cover: this process's own use.
"""

from __future__ import annotations

import re

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Sign
from penstock.doctor.causes.device.fragmentation import binary
from penstock.doctor.verdict.facts import Clues

_OTHER = re.compile(r"Process \d+ has ([\d.]+ [KMGT]iB) memory in use")
_OWN = re.compile(r"[Tt]his process has ([\d.]+ [KMGT]iB) memory in use")


def live(facts: Clues) -> Sign | None:
    said = facts.says(r"Process \d+ has [\d.]+ [KMGT]iB memory in use")
    others = sum(binary(found) for found in _OTHER.findall(said))
    own = sum(binary(found) for found in _OWN.findall(said))
    if others > own and others:
        return Sign(0.9, (f"other processes hold {size(others)} of the device",), nbytes=others)
    said = facts.says(
        r"failed to allocate .*CUDA_ERROR_OUT_OF_MEMORY|Failed to determine best cudnn|CUBLAS_STATUS_NOT_INITIALIZED"
    )
    if said:
        return Sign(0.7, (said, "the device was full before this process asked: another process or a preallocation"))
    ours = {str(pid) for pid in facts.peaks}
    for sample in reversed(facts.evidence.samples):
        for device in sample.get("devices", ()):
            foreign = sum(n for pid, n in device["pids"].items() if pid not in ours)
            if foreign > 0.3 * device["total"] and facts.died:
                return Sign(0.6, (f"other processes hold {size(foreign)} of device {device['index']}",), nbytes=foreign)
    return None


CAUSE = Cause(
    name="device-taken",
    title="Another process, or a preallocation, holds the device",
    why="TensorFlow and JAX take most of a device when they start; a forgotten notebook does, too.",
    cure="End the other process (nvidia-smi), TF_FORCE_GPU_ALLOW_GROWTH=true, XLA_PYTHON_CLIENT_PREALLOCATE=false.",
    live=live,
    env={"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    instead="XLA_PYTHON_CLIENT_PREALLOCATE=false TF_FORCE_GPU_ALLOW_GROWTH=true python train.py",
)
