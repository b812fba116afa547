"""Rows as bytes for a cache, without pickle: a cache folder may be shared, and bytes from it must not run code.

Covers: blocks and fixed-size rows to bytes and back, checksums of many rows at once.
Does not cover: where the bytes are kept (row_store.py).
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.block import Block, Column
from penstock.core.errors import DataError
from penstock.core.schema import OBJECT, Schema
from penstock.core.source import NEW_MEMORY, Buffers
from penstock.core.tree import tree_from_json, tree_to_json

_HEAD = struct.Struct("<I")
_GOLDEN = 0x9E3779B97F4A7C15

CACHED_NBYTES = 128_000
"""Packed rows that are taken apart at a time: what a core keeps at hand."""


class NotCacheable(DataError):
    """A value that has no form as plain bytes, such as an object of a user's own class."""


def checksums(rows: np.ndarray) -> np.ndarray:
    """One 32-bit checksum for each row of a (rows, bytes) array; never 0 for zeroes, so that a hole is seen.

    A dot product with odd weights: any change within one 8-byte word changes the sum. NumPy runs it at 8 GB/s
    (measured on one core), eight times as fast as zlib's crc32, in one call for many small rows.
    """
    nbytes = rows.shape[1]
    whole = nbytes // 8 * 8
    weights = _weights(nbytes // 8 + 8)
    total = np.full(len(rows), (nbytes * _GOLDEN + 1) % 2**64, dtype=np.uint64)
    if whole:
        total += np.ascontiguousarray(rows[:, :whole]).view("<u8") @ weights[: whole // 8]
    if whole < nbytes:
        total += rows[:, whole:].astype(np.uint64) @ weights[whole // 8 : whole // 8 + nbytes - whole]
    return ((total ^ (total >> np.uint64(32))) & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _weights(count: int) -> np.ndarray:
    # Of the next power of two: files all have lengths of their own, and weights of one length begin those of another.
    return _weights_of(1 << (count - 1).bit_length())[:count]


@functools.lru_cache(maxsize=8)
def _weights_of(count: int) -> np.ndarray:
    return (np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)) | np.uint64(1)


def checksum(data: bytes | memoryview) -> int:
    """The checksum of one piece, as `checksums` has it; in few calls, since small files are checked one by one."""
    nbytes = len(data)
    words = nbytes // 8
    weights = _weights(words + 8)
    total = nbytes * _GOLDEN + 1 + int(np.dot(np.frombuffer(data, "<u8", words), weights[:words]))
    for byte, weight in zip(data[words * 8 :], weights[words:].tolist(), strict=False):
        total += byte * weight
    total %= 2**64
    return (total ^ (total >> 32)) & 0xFFFFFFFF


class RecordLayout:
    """Rows of a fixed schema as records of equal size."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        # Positional names: a column may be called anything, a record's field may not.
        self.fields = {field.name: f"f{i}" for i, field in enumerate(schema)}
        shapes = [(f"f{i}", field.dtype, field.shape) for i, field in enumerate(schema)]
        self.dtype = np.dtype(shapes)

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize

    def pack(self, columns: dict[str, Column]) -> np.ndarray:
        """Columns as a (rows, bytes) array."""
        records = np.empty(len(next(iter(columns.values()))), dtype=self.dtype)
        for name, field in self.fields.items():
            records[field] = columns[name]
        return records.view(np.uint8).reshape(len(records), self.nbytes)

    def column(self, rows: np.ndarray, name: str) -> np.ndarray:
        """A view of one column in packed rows."""
        return rows.reshape(-1).view(self.dtype)[self.fields[name]]

    def block(self, rows: np.ndarray, buffers: Buffers = NEW_MEMORY) -> Block:
        """Packed rows as a block of its own arrays."""
        packed = [self.column(rows, name) for name in self.fields]
        own = [buffers.empty(column.shape, column.dtype) for column in packed]
        for part in self.parts(len(rows)):
            for column, out in zip(packed, own, strict=True):
                out[part] = column[part]
        columns: dict[str, Column] = dict(zip(self.fields, own, strict=True))
        return Block(columns, self.schema.tree)

    def parts(self, rows: int) -> Iterator[slice]:
        """Stretches of rows that stay in the processor's cache while column after column is copied."""
        step = max(1, CACHED_NBYTES // max(1, self.nbytes))
        return (slice(first, min(first + step, rows)) for first in range(0, rows, step))

    def fits(self, block: Block) -> bool:
        """Whether a block's rows have this layout, or can take it without loss."""
        if block.columns.keys() != self.fields.keys():
            return False
        return all(
            isinstance(column := block.columns[field.name], np.ndarray)
            and column.shape[1:] == field.shape
            and np.can_cast(column.dtype, field.dtype, "safe")
            for field in self.schema
        )


def encode_block(block: Block) -> bytes:
    """A block as bytes: a header in JSON, then its columns."""
    heads, bodies = [], []
    for name, column in block.columns.items():
        head, body = _encode_column(column)
        heads.append({"name": name, "nbytes": len(body), **head})
        bodies.append(body)
    header = json.dumps({"tree": tree_to_json(block.tree), "columns": heads}).encode()
    return b"".join([_HEAD.pack(len(header)), header, *bodies])


def decode_block(data: bytes) -> Block:
    """The inverse of `encode_block`; NumPy columns are copies that may be written to."""
    (length,) = _HEAD.unpack_from(data)
    at = _HEAD.size + length
    header = json.loads(data[_HEAD.size : at])
    columns: dict[str, Column] = {}
    for head in header["columns"]:
        columns[head["name"]] = _decode_column(head, memoryview(data)[at : at + head["nbytes"]])
        at += head["nbytes"]
    return Block(columns, tree_from_json(header["tree"]))


def _encode_column(column: Column) -> tuple[dict[str, Any], bytes]:
    if isinstance(column, np.ndarray) and column.dtype != OBJECT:
        return {"kind": "array", "dtype": column.dtype.str, "shape": list(column.shape)}, column.tobytes()
    if isinstance(column, np.ndarray):
        out: list[bytes] = []
        for value in column.reshape(-1):
            _encode_value(value, out)
        return {"kind": "objects", "shape": list(column.shape)}, b"".join(out)
    batch = pa.record_batch([column], names=["c"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return {"kind": "arrow"}, sink.getvalue().to_pybytes()


def _decode_column(head: dict[str, Any], body: memoryview) -> Column:
    if head["kind"] == "array":
        return np.frombuffer(body, dtype=head["dtype"]).reshape(head["shape"]).copy()
    if head["kind"] == "objects":
        values = np.empty(int(np.prod(head["shape"])), dtype=object)
        at = 0
        for i in range(len(values)):
            values[i], at = _decode_value(body, at)
        return values.reshape(head["shape"])
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        return reader.read_next_batch().column(0)


def _encode_value(value: Any, out: list[bytes]) -> None:
    """A tag, a length and the bytes of one value."""
    if value is None:
        out.append(_tagged(b"n", b""))
    elif isinstance(value, str):
        out.append(_tagged(b"s", value.encode("utf-8", "surrogatepass")))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        out.append(_tagged(b"b", bytes(value)))
    elif isinstance(value, (bool, int, float)):
        out.append(_tagged(b"j", json.dumps(value).encode()))
    elif isinstance(value, (np.ndarray, np.generic)) and value.dtype != OBJECT:
        head = json.dumps([value.dtype.str, list(value.shape)]).encode()
        tag = b"a" if isinstance(value, np.ndarray) else b"g"
        out.append(_tagged(tag, _HEAD.pack(len(head)) + head + value.tobytes()))
    elif isinstance(value, (np.ndarray, list)):
        inner: list[bytes] = []
        flat = value.reshape(-1) if isinstance(value, np.ndarray) else value
        for item in flat:
            _encode_value(item, inner)
        shape = list(value.shape) if isinstance(value, np.ndarray) else None
        head = json.dumps([shape, len(inner)]).encode()
        out.append(_tagged(b"o", _HEAD.pack(len(head)) + head + b"".join(inner)))
    else:
        raise NotCacheable(f"A value of type {type(value).__name__} cannot be kept in a cache; return arrays or text.")


def _tagged(tag: bytes, body: bytes) -> bytes:
    return tag + struct.pack("<Q", len(body)) + body


def _decode_value(data: memoryview, at: int) -> tuple[Any, int]:
    tag, (length,) = bytes(data[at : at + 1]), struct.unpack_from("<Q", data, at + 1)
    body = data[at + 9 : at + 9 + length]
    return _DECODERS[tag](body), at + 9 + length


def _decode_array(body: memoryview) -> Any:
    (length,) = _HEAD.unpack_from(body)
    dtype, shape = json.loads(bytes(body[4 : 4 + length]))
    return np.frombuffer(body[4 + length :], dtype=dtype).reshape(shape).copy()


def _decode_objects(body: memoryview) -> Any:
    (length,) = _HEAD.unpack_from(body)
    shape, count = json.loads(bytes(body[4 : 4 + length]))
    found, at = [], 4 + length
    for _ in range(count):
        value, at = _decode_value(body, at)
        found.append(value)
    if shape is None:
        return found
    out = np.empty(count, dtype=object)
    out[:] = found
    return out.reshape(shape)


_DECODERS: dict[bytes, Any] = {
    b"n": lambda body: None,
    b"s": lambda body: bytes(body).decode("utf-8", "surrogatepass"),
    b"b": bytes,
    b"j": lambda body: json.loads(bytes(body)),
    b"a": _decode_array,
    b"g": lambda body: _decode_array(body)[()],
    b"o": _decode_objects,
}
