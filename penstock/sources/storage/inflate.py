"""Compressed files as a stream of bounded pieces.

Covers: gzip (several members too) and zlib, inflated piece by piece, so that a bomb costs time but no memory.
Does not cover: what is in the stream.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

from penstock.core.errors import BadData
from penstock.sources.storage import files as storage

PIECE = 1 << 20

AUTO, GZIP, ZLIB, PLAIN = "auto", "GZIP", "ZLIB", ""


def pieces(path: str, compression: str) -> Iterator[bytes]:
    """The contents of a file, inflated, in pieces of at most 1 MB. Closing the iterator closes the file."""
    with storage.open_file(path) as file:
        if compression == PLAIN:
            while piece := file.read(PIECE):
                yield piece
        else:
            yield from _inflated(file, path)


def _inflated(file: BinaryIO, path: str) -> Iterator[bytes]:
    inflate = zlib.decompressobj(32 + zlib.MAX_WBITS)  # 32: zlib tells gzip and zlib apart by their headers
    made, begun = 0, False
    data = file.read(PIECE)
    while data:
        begun = True
        try:
            piece = inflate.decompress(data, PIECE)
        except zlib.error as error:
            raise BadData(path, f"the compressed data is damaged after {made} bytes inflated: {error}") from error
        made += len(piece)
        if piece:
            yield piece
        data = inflate.unconsumed_tail
        if inflate.eof:
            data = inflate.unused_data.lstrip(b"\0") or file.read(PIECE).lstrip(b"\0")
            inflate, begun = zlib.decompressobj(32 + zlib.MAX_WBITS), False
        data = data or file.read(PIECE)
    while begun and not inflate.eof:
        # Output may still wait inside zlib when the last input has been taken.
        piece = inflate.decompress(b"", PIECE)
        if not piece:
            raise BadData(path, f"the compressed data ends too early, after {made} bytes inflated")
        made += len(piece)
        yield piece
