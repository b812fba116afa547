"""`read_parquet`.

Covers: the arguments users see.
Does not cover: reading (sources/parquet/source.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from penstock.core.source import OnError
from penstock.dataset import Dataset
from penstock.sources.parquet.source import ParquetSource
from penstock.sources.storage import files as storage
from penstock.sources.tables.blocks import TableShape


def read_parquet(
    paths: storage.Paths,
    *,
    features: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    matrix: bool | None = None,
    dtype: Any = None,
    filters: Any = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    fill: Mapping[str, Any] | float | str | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    max_errors: float | None = None,
) -> Dataset:
    """Read Parquet files, row group by row group; giant row groups are read in slices.

    Samples are dicts of columns; with `label=` or `features=` they are `(x, y)` or x, where x is one float32 row (or
    `dtype=`) if all features are numbers. `filters=` takes a PyArrow expression or `[("column", ">", 3)]`: row groups
    that cannot match are not read. `categories={"column": ["a", "b"]}` gives integer codes, `fill=` replaces missing
    values; without it, integer columns that have missing values become float64.

    >>> ds = read_parquet("train.parquet", columns=["a", "label"], filters=[("label", "=", 1)])
    >>> {int(row["label"]) for row in ds}
    {1}
    """
    files = storage.expand(paths, suffixes=(".parquet", ".pq", ".parq"))
    shape = TableShape(
        features=features,
        label=label,
        matrix=matrix,
        dtype=dtype,
        columns=columns,
        fill=fill,
        categories=dict(categories or {}),
    )
    return Dataset.of(ParquetSource(files, shape, filters, OnError(on_error, max_errors)))
