"""The sizes in a Parquet footer, read without the library that dies of a damaged one.

Covers: rows of each row group, and stored bytes, decoded bytes and missing values of each of its columns.
Does not cover: data pages and schemas (PyArrow reads those, and raises an error where they are damaged).

PyArrow ends the process (an exception in C++ that nobody catches) when a column's entry in the footer contradicts the
schema: one flipped bit is enough. So these entries are read here, from Thrift's compact protocol, in which a field is
a byte of kind and distance to the last field's number, and numbers are of variable length.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import BadData
from penstock.sources.storage import files as storage

MAGIC = b"PAR1"
DEEPEST = 32
"""Structures within structures: a Parquet footer has six levels."""

STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)

ROW_GROUPS, COLUMNS, META, ROWS = 4, 1, 3, 3
PATH, DECODED, STORED, STATISTICS, NULLS = 3, 6, 7, 12, 3
DATA_AT, DICTIONARY_AT, PAGE_DECODED, PAGE_STORED = 9, 11, 2, 3
"""Numbers of the fields that are looked at: of the file, a row group, a column's chunk and its metadata."""


@dataclass(frozen=True)
class ColumnSizes:
    """One column in one row group. `nulls` is None where the footer does not tell."""

    path: str
    stored: int
    decoded: int
    nulls: int | None
    offset: int = 0
    """Where its first page begins."""


@dataclass(frozen=True)
class GroupSizes:
    """One row group."""

    rows: int
    columns: tuple[ColumnSizes, ...]


def group_sizes(path: str) -> list[GroupSizes]:
    """The row groups of a file. `BadData` if its footer is damaged."""
    nbytes = storage.file_size(path)
    tail = storage.read_range(path, max(0, nbytes - 8), 8)
    length = int.from_bytes(tail[:4], "little")
    if len(tail) < 8 or tail[4:] != MAGIC or length > nbytes - 8:
        raise BadData(path, "its Parquet footer is missing")
    return parse_sizes(storage.read_range(path, nbytes - 8 - length, length), path)


def parse_sizes(footer: bytes, path: str) -> list[GroupSizes]:
    """The row groups that a footer tells of."""
    try:
        whole = _Reader(footer).struct(0)
        return [_group(group) for group in _list(whole, ROW_GROUPS)]
    except (IndexError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadData(path, f"its Parquet footer is damaged ({error})") from error


def _group(group: Mapping[int, Any]) -> GroupSizes:
    rows, columns = group[ROWS], tuple(_column(chunk[META]) for chunk in _list(group, COLUMNS))
    if not isinstance(rows, int) or rows < 0:
        raise ValueError(f"a row group of {rows} rows")
    return GroupSizes(rows, columns)


def _column(meta: Mapping[int, Any]) -> ColumnSizes:
    name = b".".join(_list(meta, PATH)).decode()
    nulls = meta.get(STATISTICS, {}).get(NULLS)
    stored, decoded = meta[STORED], meta[DECODED]
    if min(stored, decoded) < 0:
        raise ValueError(f"column {name!r} of {min(stored, decoded)} bytes")
    offset = min(meta[DATA_AT], meta.get(DICTIONARY_AT) or meta[DATA_AT])
    return ColumnSizes(name, stored, decoded, nulls, offset)


HEADER_NBYTES, SLACK = 4096, 1_000_000
"""Bytes read for a page's header, and by which writers may be wrong about a column (some leave headers out)."""


def largest_page(path: str, column: ColumnSizes, few: int | None = None, harmless: int = 0) -> int:
    """Bytes of the largest page of a column, stored and decoded together: a reader holds each page whole.

    The pages' own headers tell, and have to keep what the footer promised: `BadData` if they do not. After `few` pages
    the walk ends as soon as all that is left of the column is `harmless` in one page.
    """
    at, end, largest, total = column.offset, column.offset + column.stored, 0, 0
    for number in itertools.count():
        left = end - at + max(0, column.decoded - total)
        if at >= end or (few is not None and number >= few and left <= harmless):
            break
        header, nbytes = _page_header(path, at, end)
        stored, decoded = header.get(PAGE_STORED), header.get(PAGE_DECODED)
        if not isinstance(stored, int) or not isinstance(decoded, int) or min(stored, decoded) < 0:
            raise BadData(f"{path}, byte {at}", f"column {column.path!r} has a damaged page")
        total += nbytes + decoded
        if total > 2 * column.decoded + SLACK:
            raise BadData(
                f"{path}, byte {at}",
                f"the pages of column {column.path!r} are larger than the {column.decoded} bytes that the footer tells",
            )
        largest = max(largest, stored + decoded)
        at += nbytes + stored
    return largest


def _page_header(path: str, at: int, end: int) -> tuple[dict[int, Any], int]:
    """A page's header, and its own bytes; one with long statistics takes a second look."""
    for nbytes in (HEADER_NBYTES, 256 * HEADER_NBYTES):
        reader = _Reader(storage.read_range(path, at, min(nbytes, end - at)))
        try:
            return reader.struct(0), reader.at
        except (IndexError, ValueError) as error:
            failure = error
    raise BadData(f"{path}, byte {at}", f"a page's header is damaged ({failure})") from failure


def _list(found: Mapping[int, Any], field: int) -> list[Any]:
    values = found[field]
    if not isinstance(values, list):
        raise ValueError(f"field {field} is no list")
    return values


class _Reader:
    """Walks a buffer; whatever points outside of it raises."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def at(self) -> int:
        return self._at

    def struct(self, depth: int) -> dict[int, Any]:
        """Fields by number."""
        if depth > DEEPEST:
            raise ValueError("nested too deeply")
        found: dict[int, Any] = {}
        number, data = 0, self._data
        while True:
            head = data[self._at]
            self._at += 1
            if head == STOP:
                return found
            kind, step = head & 15, head >> 4
            number = number + step if step else self._signed()
            found[number] = self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> Any:
        if I16 <= kind <= I64:
            return self._signed()
        if kind == BINARY:
            return self._take(self._varint())
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind in (LIST, SET):
            return self._items(depth)
        if kind == BYTE:
            return self._byte()
        if kind == DOUBLE:
            return self._take(8)
        if kind == MAP:
            return self._map(depth)
        raise ValueError(f"a value of kind {kind}")

    def _items(self, depth: int) -> list[Any]:
        head = self._byte()
        count, kind = head >> 4, head & 15
        count = self._varint() if count == 15 else count
        if count > len(self._data) - self._at:
            raise ValueError(f"a list of {count} values")
        if kind in (TRUE, FALSE):  # in lists, a byte each
            return [self._byte() == TRUE for _ in range(count)]
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _map(self, depth: int) -> dict[Any, Any]:
        count = self._varint()
        if count > len(self._data) - self._at:
            raise ValueError(f"a map of {count} values")
        kinds = self._byte() if count else 0
        return {repr(self._value(kinds >> 4, depth + 1)): self._value(kinds & 15, depth + 1) for _ in range(count)}

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _take(self, count: int) -> bytes:
        at = self._at
        if count > len(self._data) - at:
            raise ValueError(f"{count} bytes where {len(self._data) - at} are left")
        self._at = at + count
        return self._data[at : at + count]

    def _varint(self) -> int:
        data, at = self._data, self._at
        value = data[at]
        if value < 128:  # nearly all: a footer has thousands of numbers, and all files have one
            self._at = at + 1
            return value
        value, shift = value & 127, 7
        while True:
            at += 1
            byte = data[at]
            value |= (byte & 127) << shift
            if byte < 128:
                self._at = at + 1
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
