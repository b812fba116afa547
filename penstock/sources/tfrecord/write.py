"""Write TFRecord files of tf.train.Example without TensorFlow.

Covers: frames with their checksums, the wire format of Example and SequenceExample, plain and GZIP files.
Does not cover: sharding, atomic and resumable writing of whole datasets.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, cast

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.wire_format import delimited, varint
from penstock.native.crc32c import masked_crc32c


def frame(record: bytes) -> bytes:
    """A record with its length and both checksums."""
    length = struct.pack("<Q", len(record))
    checksums = [struct.pack("<I", masked_crc32c(part)) for part in (length, bytes(record))]
    return b"".join((length, checksums[0], record, checksums[1]))


def encode_example(sample: Mapping[str, Any]) -> bytes:
    """A sample as tf.train.Example: floats, integers, bytes, text, and arrays and lists of them (flattened)."""
    return delimited(1, _features(sample))


def encode_sequence_example(context: Mapping[str, Any], steps: Mapping[str, Sequence[Any]]) -> bytes:
    """A SequenceExample: features of the whole, and lists with one feature a step."""
    lists = b""
    for name, values in steps.items():
        inner = b"".join(delimited(1, _feature(name, value)) for value in values)
        lists += delimited(1, delimited(1, name.encode()) + delimited(2, inner))
    return delimited(1, _features(context)) + delimited(2, lists)


def write_records(path: str, records: Iterable[bytes], *, compress: bool = False) -> int:
    """Write records to a local file; how many there were."""
    count = 0
    with cast(BinaryIO, gzip.open(path, "wb") if compress else open(path, "wb")) as file:
        for record in records:
            file.write(frame(record))
            count += 1
    return count


def _features(sample: Mapping[str, Any]) -> bytes:
    return b"".join(
        delimited(1, delimited(1, name.encode()) + delimited(2, _feature(name, value)))
        for name, value in sample.items()
    )


def _feature(name: str, value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview, str)):
        value = [value]
    if isinstance(value, (list, tuple)) and not len(value):
        return b""  # of no kind: an unset feature, which readers take as missing
    if isinstance(value, (list, tuple, np.ndarray)) and len(value) and isinstance(value[0], (bytes, str)):
        stored = [v.encode() if isinstance(v, str) else bytes(v) for v in value]
        return delimited(1, b"".join(delimited(1, v) for v in stored))
    array = np.asarray(value).reshape(-1)
    if array.dtype.kind == "f":
        return delimited(2, delimited(1, array.astype("<f4").tobytes()))
    if array.dtype.kind in "iub":
        return delimited(3, delimited(1, b"".join(varint(int(n) & (2**64 - 1)) for n in array)))
    raise InvalidInput(f"Column {name!r} of dtype {array.dtype} cannot be stored in a tf.train.Example.")
