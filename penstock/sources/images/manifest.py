"""CSV files that name images and their labels.

Covers: reading such a file in blocks into a packed index, whatever its length.
Does not cover: tables of training data (sources/csv/source.py).
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as pt

from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.sources.listing.packed_names import IndexWriter, PathIndex, open_if_current
from penstock.sources.storage import files as storage
from penstock.sources.storage.index_folder import cache_folder, written
from penstock.sources.tables.column import EXACT, loses_digits

BLOCK_NBYTES = 4_000_000

_MISSING = pa.array(pacsv.ConvertOptions().null_values)
_WHOLE = "^-?[0-9]+$"


def list_manifest(path: str, *, path_column: str, label_column: str | None, root: str | None = None) -> PathIndex:
    """The index of a manifest's rows. Paths in it are relative to `root`, or else to the manifest's folder.

    Labels that are whole numbers stay as they are, numbers with fractions too; text becomes the number of its class.
    Whole numbers that their type cannot hold are refused.
    """
    if not storage.is_remote(path):
        path = os.path.abspath(storage.local_path(path))
    base = root if root is not None else os.path.dirname(path)
    if not storage.is_remote(base):
        base = os.path.abspath(storage.local_path(base))
    key = repr(("labels as written", path, storage.stamp(path), path_column, label_column, base))
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
    text = dict.fromkeys(wanted, pa.string())
    labels = _Labels(path)
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
                    labels.add(batch.column(label_column))
        except KeyError as error:
            raise _no_column(path, wanted) from error
        except pa.ArrowInvalid as error:
            raise BadData(path, str(error).splitlines()[0]) from error
    if not writer.rows:
        raise NotFound(f"Manifest {path!r} holds no row.")
    classes, joined = labels.finish()
    writer.finish(root="", classes=classes, labels=joined)


class _Labels:
    """The labels of a manifest, block by block. The first block says whether they are numbers or names of classes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._kind: pa.DataType | None = None
        self._codes: dict[str, int] = {}
        self._blocks: list[np.ndarray] = []

    def add(self, cells: pa.Array) -> None:
        """The labels of a block, as they are written."""
        missing = pc.is_in(cells, value_set=_MISSING)
        if self._kind is None:
            self._kind = _kind_of(cells.filter(pc.invert(missing)))
        if pt.is_string(self._kind):
            encoded = pc.dictionary_encode(cells)
            order = [self._codes.setdefault(name, len(self._codes)) for name in encoded.dictionary.to_pylist()]
            self._blocks.append(np.take(np.array(order, np.int32), np.asarray(encoded.indices)))
            return
        if pc.any(missing).as_py():
            raise BadData(self._path, "the label column has an empty value")
        self._blocks.append(_numbers(pc.utf8_trim_whitespace(cells), self._kind, self._path))

    def finish(self) -> tuple[tuple[str, ...], np.ndarray | None]:
        """The classes, sorted, and all labels; None if the manifest has none."""
        joined = np.concatenate(self._blocks) if self._blocks else None
        if not self._codes or joined is None:
            return (), joined
        classes = tuple(sorted(self._codes))
        place = {name: i for i, name in enumerate(classes)}
        return classes, np.array([place[name] for name in self._codes], np.int32)[joined]


def _kind_of(cells: pa.Array) -> pa.DataType:
    """Whole numbers, other numbers, or names, which 0x1f is as well; null if there is no label at all."""
    words = pc.utf8_trim_whitespace(cells)
    if not len(words):
        return pa.null()
    if pc.all(pc.match_substring_regex(words, _WHOLE)).as_py():
        return pa.int64()
    try:
        pc.cast(words, pa.float64())
    except pa.ArrowInvalid:
        return pa.string()
    return pa.float64()


def _numbers(words: pa.Array, kind: pa.DataType, path: str) -> np.ndarray:
    """Labels as int64 or float32. Raises for whole numbers that would be others."""
    whole = pc.match_substring_regex(words, _WHOLE)
    if pt.is_int64(kind):
        if not pc.all(whole).as_py():
            other = words.filter(pc.invert(whole))[0].as_py()
            raise BadData(path, f"the labels are whole numbers, but one is {other[:40]!r}")
        try:
            return np.asarray(pc.cast(words, kind), np.int64)
        except pa.ArrowInvalid:
            large = next(word for word in words.to_pylist() if not -(2**63) <= int(word[:4000]) < 2**63)
            raise BadData(
                path, f"the label {large[:40]} is beyond int64. With a letter before it, it names a class"
            ) from None
    values = np.asarray(pc.cast(words, kind))
    for row in np.flatnonzero((np.abs(values) >= EXACT) & np.asarray(whole.to_numpy(zero_copy_only=False))).tolist():
        word = words[row].as_py()
        if loses_digits(int(word[:4000])):
            raise BadData(
                path, f"some labels are not whole numbers, so they are float32, which would change {word[:40]}"
            )
    return values.astype(np.float32)


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


def _no_column(path: str, wanted: list[str]) -> NotFound:
    with storage.open_file(path) as file:
        there = pacsv.open_csv(file).schema.names
    missing = next((name for name in wanted if name not in there), wanted[0])
    return NotFound(f"Manifest {path!r} has no column {missing!r}. It has: {', '.join(there)}.")
