"""Telling frameworks how much device memory they may take, before they take it all.

Covers: `setup_devices`: memory growth or a limit for TensorFlow, preallocation for JAX, the CUDA allocator for torch.
Does not cover: host memory (memory/limits.py).

These settings count only before a framework first touches a device. What came too late is reported.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

from penstock.core.errors import InvalidInput
from penstock.core.events import events
from penstock.core.sizes import Size, parse_size, size

_NAMES = ("tensorflow", "jax", "torch")


@dataclass
class Devices:
    """What was set, by framework, and what could not be: mostly because it came too late."""

    done: dict[str, str] = field(default_factory=dict)
    too_late: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{name}: {what}" for name, what in self.done.items()]
        lines += [f"{name}: not set, {why}" for name, why in self.too_late.items()]
        return "\n".join(lines)


def setup_devices(device_memory: Size | None = None, *, frameworks: tuple[str, ...] = _NAMES) -> Devices:
    """Let each framework grow its device memory as needed, or limit it to `device_memory`.

    Call it before the first tensor is made, best before importing the frameworks. Frameworks that are not imported yet
    are set up through their environment variables and are not imported for it.

    >>> devices = setup_devices("4GB")  # doctest: +SKIP
    """
    unknown = set(frameworks) - set(_NAMES)
    if unknown:
        raise InvalidInput(f"Unknown frameworks {', '.join(sorted(unknown))}; known are {', '.join(_NAMES)}.")
    limit = None if device_memory is None else parse_size(device_memory)
    report = Devices()
    for name in frameworks:
        _SETUPS[name](limit, report)
    events.emit("guard.devices", "setup_devices", done=dict(report.done), too_late=dict(report.too_late))
    return report


def _tensorflow(limit: int | None, report: Devices) -> None:
    tf = sys.modules.get("tensorflow")
    if tf is None:
        os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        report.done["tensorflow"] = "will grow its device memory as needed"
        if limit is not None:
            report.too_late["tensorflow"] = (
                "its limit can be set only once it is imported: import it, then call this again"
            )
        return
    gpus = tf.config.list_physical_devices("GPU")
    try:
        for gpu in gpus:
            if limit is None:
                tf.config.experimental.set_memory_growth(gpu, True)
            else:
                device = tf.config.LogicalDeviceConfiguration(memory_limit=limit // 2**20)
                tf.config.set_logical_device_configuration(gpu, [device])
    except RuntimeError as error:
        report.too_late["tensorflow"] = f"it is too late: {error}"
        return
    how = "grow as needed" if limit is None else f"are limited to {size(limit)} each"
    report.done["tensorflow"] = f"{len(gpus)} GPUs {how}" if gpus else "no GPU, nothing to set"


def _jax(limit: int | None, report: Devices) -> None:
    if _jax_started():
        report.too_late["jax"] = "it is too late: its devices are in use already"
        return
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    report.done["jax"] = "will not preallocate"
    if limit is not None:
        total = _device_total()
        if total is None:
            report.too_late["jax"] = "its limit is a share of the device, whose size only torch could tell here"
            return
        share = min(1.0, limit / total)
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{share:.4f}"
        report.done["jax"] = f"will not preallocate, and take at most {share:.0%} of the device"


def _jax_started() -> bool:
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    return bool(bridge is not None and bridge.backends_are_initialized())


def _torch(limit: int | None, report: Devices) -> None:
    torch = sys.modules.get("torch")
    started = torch is not None and torch.cuda.is_initialized()
    if started:
        report.too_late["torch"] = "it is too late: CUDA is in use already, so its allocator cannot be changed"
    elif "expandable_segments" not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
        before = os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = ",".join(filter(None, [before, "expandable_segments:True"]))
        report.done["torch"] = "CUDA segments can expand"
    if limit is None:
        return
    total = _device_total()
    if torch is None or total is None:
        report.too_late["torch"] = "its limit needs torch imported and a CUDA device"
        return
    for device in range(torch.cuda.device_count()):
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    report.done["torch"] = f"limited to {size(limit)} on each CUDA device"


def _device_total() -> int | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(0).total_memory)


_SETUPS = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
