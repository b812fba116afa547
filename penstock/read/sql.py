"""`read_sql`: the result of a query in PostgreSQL, SQLite or DuckDB.

Covers: checking the call.
Does not cover: reading (sources/sql/source.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from penstock.core.errors import InvalidInput
from penstock.core.source import OnError
from penstock.dataset import Dataset
from penstock.sources.images.decode import ImageOptions
from penstock.sources.sql.connect import Database
from penstock.sources.sql.source import SqlSource
from penstock.sources.tables.blocks import TableShape

PARTITIONS = 32


def read_sql(
    uri: str,
    query: str,
    *,
    partition_on: str | None = None,
    partitions: int | Sequence[Any] | None = None,
    features: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    images: Mapping[str, Mapping[str, Any]] | None = None,
    matrix: bool | None = None,
    dtype: Any = None,
    fill: Mapping[str, Any] | float | str | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    max_errors: float | None = None,
) -> Dataset:
    """Stream a query's rows (or a table, by its name) without ever holding the whole result, here or on the server.

    `partition_on` names a column, best a unique and indexed one, whose ranges are read in parallel and shuffled; a lost
    connection then goes on from the last key. `partitions` is their number, or a list of borders (which saves the pass
    over the keys that finds even ones). Without it the rows come as one stream, in the query's order.
    `images={"jpeg": {"size": (224, 224)}}` decodes image bytes in a column, with the options of `read_images`.

    >>> ds = read_sql("sqlite:///points.db", "select id, x, y from points", partition_on="id", columns=["x", "y"])
    >>> len(list(ds))
    10
    """
    if not isinstance(query, str) or not query.strip():
        raise InvalidInput("query must be the text of a select, or the name of a table.")
    if partitions is not None and partition_on is None:
        raise InvalidInput("partitions= needs partition_on=: the column whose ranges they are.")
    options = {name: _image_options(name, dict(given)) for name, given in (images or {}).items()}
    shape = TableShape(features, label, matrix, dtype, columns, fill=fill)
    source = SqlSource(
        Database(uri),
        query,
        shape,
        partition_on=partition_on,
        partitions=PARTITIONS if partitions is None else partitions,
        images=options,
        on_error=OnError(on_error, max_errors),
    )
    return Dataset.of(source)


def _image_options(name: str, given: dict[str, Any]) -> ImageOptions:
    size = given.pop("size", None)
    size = (size, size) if isinstance(size, int) else size
    if size is None or len(size) != 2:
        raise InvalidInput(
            f"images={{{name!r}: ...}} needs size=(height, width): rows of one array must agree in shape."
        )
    try:
        return ImageOptions(size=tuple(size), **given)
    except TypeError as error:
        raise InvalidInput(f"images={{{name!r}: ...}} has an unknown option: {error}") from error
