"""Readers: each returns a dataset over one kind of storage."""

from penstock.read.arrays import from_tensor_slices, read_numpy
from penstock.read.csv import read_csv
from penstock.read.generator import from_generator
from penstock.read.hdf5 import read_hdf5
from penstock.read.images import read_images
from penstock.read.json import read_json
from penstock.read.named import from_torch, list_files
from penstock.read.parquet import read_parquet
from penstock.read.sql import read_sql
from penstock.read.text import read_text
from penstock.read.tfrecord import read_tfrecords
from penstock.read.webdataset import read_webdataset
from penstock.read.zarr import read_zarr

__all__ = [
    "from_generator",
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
