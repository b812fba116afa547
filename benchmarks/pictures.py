"""What the races over JPEG pictures share: how long they run, and penstock's kernels compiled beforehand.

Covers: images.py, idle_device.py, tfrecord.py (pictures), tar_images.py.
Does not cover: the pictures themselves (data.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np


def times(options: Any) -> dict[str, float]:
    """Seconds before counting, and of counting. penstock's JPEG kernels are loaded beside the first second or two."""
    return {"warm_s": 0.3, "window_s": 0.7} if options.quick else {"warm_s": 3.0, "window_s": 3.0}


def compile_once() -> None:
    """Let Numba compile the JPEG kernels and keep them on disk, as after the first minute on a new machine."""
    from penstock.sources.jpeg.kernel import kernel

    if kernel.get(np.uint8, wait=True) is None:
        raise RuntimeError("The JPEG kernels could not be compiled.")
