"""Writing the protocol buffer wire format, as far as records and summaries need it.

Covers: variable-length numbers and length-delimited fields.
Does not cover: reading it (native/example/read.py), what the fields mean.
"""

from __future__ import annotations


def delimited(field: int, data: bytes) -> bytes:
    """A length-delimited field: text, bytes or a message."""
    return bytes([field << 3 | 2]) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """A number of variable length."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
