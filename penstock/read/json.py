"""`read_json`: JSON lines.

Covers: checking the call.
Does not cover: reading (sources/json/source.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from penstock.core.sizes import Size, parse_size
from penstock.core.source import OnError
from penstock.dataset import Dataset
from penstock.sources.csv.types import arrow_type
from penstock.sources.json.source import JsonSource
from penstock.sources.storage import files as storage
from penstock.sources.tables.blocks import TableShape
from penstock.sources.text.lines import LineFiles

SUFFIXES = tuple(f".{kind}{packed}" for kind in ("jsonl", "ndjson", "json") for packed in ("", ".gz", ".bz2", ".zst"))


def read_json(
    paths: storage.Paths,
    *,
    features: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    matrix: bool | None = None,
    dtype: Any = None,
    dtypes: Mapping[str, Any] | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    fill: Mapping[str, Any] | float | str | None = None,
    max_line: Size = "64MB",
    on_error: Literal["raise", "skip"] = "raise",
    max_errors: float | None = None,
) -> Dataset:
    """Read JSON lines (plain, gzip, bz2, zstd) of any size, split by byte ranges.

    Samples are dicts of fields, nested ones under dotted names such as "user.id"; `columns=` chooses some, and the
    rest is skipped. With `label=` or `features=` samples are `(x, y)` or x, as in `read_csv`. Types come from samples
    of the files; `dtypes={"score": "float64"}` sets some. A line of more than `max_line` is refused by name.

    >>> row = next(iter(read_json("logs.jsonl", columns=["user.id", "text"])))
    >>> int(row["user.id"]), row["text"]
    (0, 'hello')
    """
    types = {name: arrow_type(name, given) for name, given in (dtypes or {}).items()}
    shape = TableShape(features, label, matrix, dtype, columns, fill=fill, categories=dict(categories or {}))
    files = LineFiles(storage.expand(paths, suffixes=SUFFIXES), parse_size(max_line))
    return Dataset.of(JsonSource(files, shape, types, OnError(on_error, max_errors)))
