"""CSV files that name images and their labels.

Covers: reading such a file in blocks into a packed index, whatever its length.
Does not cover: tables of training data (sources/csv/source.py).
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.sources.listing.packed_names import IndexWriter, PathIndex, open_if_current
from penstock.sources.storage import files as storage
from penstock.sources.storage.index_folder import cache_folder, written

BLOCK_NBYTES = 4_000_000


def list_manifest(path: str, *, path_column: str, label_column: str | None, root: str | None = None) -> PathIndex:
    """The index of a manifest's rows. Paths in it are relative to `root`, or else to the manifest's folder.

    Labels that are whole numbers stay as they are, numbers with fractions too; text becomes the number of its class.
    """
    if not storage.is_remote(path):
        path = os.path.abspath(storage.local_path(path))
    base = root if root is not None else os.path.dirname(path)
    if not storage.is_remote(base):
        base = os.path.abspath(storage.local_path(base))
    key = repr((path, storage.stamp(path), path_column, label_column, base))
    name = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    kept = os.path.join(cache_folder(), f"listing-{name}")
    index = open_if_current(kept)
    if index is None:
        with written(kept) as file:
            _pack(path, (path_column, label_column), base, IndexWriter(file))
        index = PathIndex(kept)
    return index


def _pack(path: str, columns: tuple[str, str | None], base: str, writer: IndexWriter) -> None:
    path_column, label_column = columns
    wanted = [name for name in columns if name is not None]
    text = {path_column: pa.string()}
    codes: dict[Any, int] = {}
    labels: list[np.ndarray] = []
    with storage.open_file(path) as file:
        try:
            reader = pacsv.open_csv(
                file,
                read_options=pacsv.ReadOptions(block_size=BLOCK_NBYTES, use_threads=False),
                convert_options=pacsv.ConvertOptions(
                    column_types=text, include_columns=wanted, strings_can_be_null=False
                ),
            )
            for batch in reader:
                writer.add(_names(batch.column(path_column), base))
                if label_column is not None:
                    labels.append(_codes(batch.column(label_column), codes, path))
        except KeyError as error:
            raise _no_column(path, wanted) from error
        except pa.ArrowInvalid as error:
            raise BadData(path, str(error).splitlines()[0]) from error
    if not writer.rows:
        raise NotFound(f"Manifest {path!r} holds no row.")
    classes: tuple[str, ...] = ()
    joined = np.concatenate(labels) if labels else None
    if codes and joined is not None:
        classes = tuple(sorted(codes))
        place = {name: i for i, name in enumerate(classes)}
        joined = np.array([place[name] for name in codes], np.int32)[joined]
    writer.finish(root="", classes=classes, labels=joined)


def _names(column: pa.Array, base: str) -> np.ndarray:
    """Absolute paths, as bytes."""
    lead = os.path.join(base, "")
    texts = column.to_pylist()
    if not all(texts):
        raise InvalidInput(
            f"The manifest has an empty path (row {texts.index(next(t for t in texts if not t))} of a block)."
        )
    whole = (t if t.startswith("/") or "://" in t else lead + t for t in texts)
    return np.array([os.fsencode(t) for t in whole], dtype=bytes)


def _codes(column: pa.Array, codes: dict[Any, int], path: str) -> np.ndarray:
    if column.null_count:
        raise BadData(path, "the label column has an empty value")
    if pa.types.is_integer(column.type):
        return np.asarray(column, np.int64)
    if pa.types.is_floating(column.type):
        return np.asarray(column, np.float32)
    encoded = pc.dictionary_encode(pc.cast(column, pa.string()))
    order = np.array([codes.setdefault(name, len(codes)) for name in encoded.dictionary.to_pylist()], np.int32)
    return np.take(order, np.asarray(encoded.indices))


def _no_column(path: str, wanted: list[str]) -> NotFound:
    with storage.open_file(path) as file:
        there = pacsv.open_csv(file).schema.names
    missing = next((name for name in wanted if name not in there), wanted[0])
    return NotFound(f"Manifest {path!r} has no column {missing!r}. It has: {', '.join(there)}.")
