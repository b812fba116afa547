"""What the races over JPEG pictures share: how long they run.

Covers: images.py, idle_device.py, tfrecord.py (pictures), tar_images.py.
Does not cover: the pictures themselves (data.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.harness import Window


def times(options: Any) -> Window:
    """Seconds before counting, and of counting."""
    return {"warm_s": 0.3, "window_s": 0.7} if options.quick else {"warm_s": 3.0, "window_s": 3.0}
