"""penstock: training jobs that never run out of memory.

A dataset of any size flows to a model through a pipe of known width. `import penstock as ps`, read with `ps.read_*`,
chain verbs as in tf.data, iterate or hand over with `.torch()`, `.tensorflow()`, `.jax()`, `.keras()`.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from penstock.memory.limits import find_limit

# Arrow's allocator gives freed buffers back after 10 ms, and the next block faults them in again: a fifth of the time
# of reading Parquet (measured). It reads this when it is loaded. Where memory is short, they go back at once.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000" if find_limit().nbytes > 2_000_000_000 else "0")

from penstock.core.errors import PenstockError
from penstock.core.events import events
from penstock.dataset import Dataset
from penstock.memory import Budget, current_limit, limit, memory
from penstock.plan.steps import AUTOTUNE
from penstock.read import (
    from_generator,
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

if TYPE_CHECKING:
    from penstock.feed.bound import bound
    from penstock.guard import Guard, evaluate, fit, predict, setup_devices, supervise
    from penstock.guard.forecast import forecast
    from penstock.shrink import distill, shrink
    from penstock.watch.record import record

__version__ = "0.1.0"

# Rooms that import frameworks are opened when they are first used.
_LATER = {
    "bound": "penstock.feed.bound",
    "Guard": "penstock.guard",
    "evaluate": "penstock.guard",
    "fit": "penstock.guard",
    "forecast": "penstock.guard.forecast",
    "predict": "penstock.guard",
    "record": "penstock.watch.record",
    "setup_devices": "penstock.guard",
    "supervise": "penstock.guard",
    "distill": "penstock.shrink",
    "shrink": "penstock.shrink",
}

__all__ = [
    "AUTOTUNE",
    "Budget",
    "Dataset",
    "Guard",
    "PenstockError",
    "__version__",
    "bound",
    "current_limit",
    "distill",
    "evaluate",
    "events",
    "fit",
    "forecast",
    "from_generator",
    "from_tensor_slices",
    "from_torch",
    "limit",
    "list_files",
    "memory",
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
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
