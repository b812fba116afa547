"""penstock: training jobs that never run out of memory.

A dataset of any size flows to a model through a pipe of known width. `import penstock as ps`, read with `ps.read_*`,
chain verbs as in tf.data, iterate or hand over with `.torch()`, `.tensorflow()`, `.jax()`, `.keras()`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.core import errors
from penstock.core.errors import PenstockError
from penstock.core.events import events
from penstock.memory import current_limit, limit, memory_report
from penstock.memory.library_env import make_settings

if TYPE_CHECKING:
    from penstock.compress import distill, shrink
    from penstock.dataset import Dataset
    from penstock.doctor.assert_peak import assert_peak_below
    from penstock.doctor.watch_memory import watch_memory
    from penstock.feed.bound import bound
    from penstock.guard import Guard, JaxGuard, evaluate, fit, lean_optimizer, predict, setup_devices, supervise
    from penstock.guard.forecast.forecast import forecast
    from penstock.plan.steps import AUTOTUNE
    from penstock.read import (
        from_generator,
        from_ray,
        from_tensor_slices,
        from_torch,
        list_files,
        read_csv,
        read_hdf5,
        read_images,
        read_json,
        read_numpy,
        read_parquet,
        read_sql,
        read_text,
        read_tfrecords,
        read_webdataset,
        read_zarr,
    )
    from penstock.watch.record import record

make_settings()

__version__ = "0.1.0"

# A room is opened when one of its names is first used: NumPy and Arrow alone take longer to load than a wrong option
# takes to answer, and most programs read one format, with one framework.
_LATER = {
    "penstock.dataset": ("Dataset",),
    "penstock.doctor.assert_peak": ("assert_peak_below",),
    "penstock.doctor.watch_memory": ("watch_memory",),
    "penstock.feed.bound": ("bound",),
    "penstock.guard": (
        "Guard", "JaxGuard", "evaluate", "fit", "lean_optimizer", "predict", "setup_devices", "supervise",
    ),
    "penstock.guard.forecast.forecast": ("forecast",),
    "penstock.plan.steps": ("AUTOTUNE",),
    "penstock.read": (
        "from_generator", "from_ray", "from_tensor_slices", "from_torch", "list_files", "read_csv", "read_hdf5",
        "read_images", "read_json", "read_numpy", "read_parquet", "read_sql", "read_text", "read_tfrecords",
        "read_webdataset", "read_zarr",
    ),
    "penstock.compress": ("distill", "shrink"),
    "penstock.watch.record": ("record",),
}  # fmt: skip
_ROOM_OF = {name: room for room, names in _LATER.items() for name in names}

__all__ = [
    "AUTOTUNE",
    "Dataset",
    "Guard",
    "JaxGuard",
    "PenstockError",
    "__version__",
    "assert_peak_below",
    "bound",
    "current_limit",
    "distill",
    "errors",
    "evaluate",
    "events",
    "fit",
    "forecast",
    "from_generator",
    "from_ray",
    "from_tensor_slices",
    "from_torch",
    "lean_optimizer",
    "limit",
    "list_files",
    "memory_report",
    "predict",
    "read_csv",
    "read_hdf5",
    "read_images",
    "read_json",
    "read_numpy",
    "read_parquet",
    "read_sql",
    "read_text",
    "read_tfrecords",
    "read_webdataset",
    "read_zarr",
    "record",
    "setup_devices",
    "shrink",
    "supervise",
    "watch_memory",
]


def __getattr__(name: str) -> Any:
    if name in _ROOM_OF:
        return getattr(importlib.import_module(_ROOM_OF[name]), name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
