"""Readers: each returns a dataset over one kind of storage.

Covers: the public names; a reader's file is loaded when its name is first used.
Does not cover: reading.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.read.arrays import from_tensor_slices, read_numpy
    from penstock.read.csv import read_csv
    from penstock.read.generator import from_generator
    from penstock.read.hdf5 import read_hdf5
    from penstock.read.images import read_images
    from penstock.read.json import read_json
    from penstock.read.named import from_ray, from_torch, list_files
    from penstock.read.parquet import read_parquet
    from penstock.read.sql import read_sql
    from penstock.read.text import read_text
    from penstock.read.tfrecord import read_tfrecords
    from penstock.read.webdataset import read_webdataset
    from penstock.read.zarr import read_zarr

_FILE_OF = {
    "from_generator": "generator",
    "from_ray": "named",
    "from_tensor_slices": "arrays",
    "from_torch": "named",
    "list_files": "named",
    "read_csv": "csv",
    "read_hdf5": "hdf5",
    "read_images": "images",
    "read_json": "json",
    "read_numpy": "arrays",
    "read_parquet": "parquet",
    "read_sql": "sql",
    "read_text": "text",
    "read_tfrecords": "tfrecord",
    "read_webdataset": "webdataset",
    "read_zarr": "zarr",
}

__all__ = [
    "from_generator",
    "from_ray",
    "from_tensor_slices",
    "from_torch",
    "list_files",
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
]


def __getattr__(name: str) -> Any:
    if name in _FILE_OF:
        return getattr(importlib.import_module(f"penstock.read.{_FILE_OF[name]}"), name)
    raise AttributeError(f"module 'penstock.read' has no attribute {name!r}")
