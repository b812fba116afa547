"""Pictures whose decoding takes much memory: refused by name before it is taken, or decoded as there is room.

Covers: what decoding takes, by the header; TooLarge for what can never fit; as many large ones at a time as fit.
Does not cover: pictures with more pixels than `max_pixels` (decode.py), buffers of usual pictures.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from penstock.core.errors import TooLarge
from penstock.core.source import Buffers
from penstock.memory.limits import current_limit
from penstock.memory.watchdog import default_reserve
from penstock.sources.images.header import Header, is_deep, jpeg_frame

LARGE_NBYTES = 64_000_000
"""Decoding that takes less is as usual: buffers are leased by what a batch of rows needs."""

_OTHERS, _COEFFICIENTS = 8, 2
"""Bytes a pixel, measured on 90 megapixels: OpenCV holds PNG, WebP, GIF and TIFF twice, one of the two with alpha, and
Pillow holds inks so; libjpeg holds the coefficients of a whole progressive JPEG, so many for each component."""

_change = threading.Condition()
_in_use = 0


def _after_fork() -> None:
    global _change, _in_use
    _change, _in_use = threading.Condition(), 0


os.register_at_fork(after_in_child=_after_fork)


def decoding_nbytes(data: bytes, header: Header, channels: int) -> int:
    """The most memory that decoding takes beside the encoded bytes."""
    pixels = header.height * header.width
    if header.kind != "JPEG":
        return pixels * _OTHERS * (2 if header.kind in ("PNG", "TIFF") and is_deep(data) else 1)
    components, progressive = jpeg_frame(data, header)
    shown = channels if components < 4 else _OTHERS
    return pixels * (shown + (_COEFFICIENTS * components if progressive else 0))


def decoding(
    data: bytes, header: Header, channels: int, where: str, buffers: Buffers
) -> AbstractContextManager[object]:
    """Memory to decode in. Raises TooLarge if there can never be enough."""
    if header.height * header.width * 2 * _OTHERS < LARGE_NBYTES:
        return nullcontext()
    nbytes = decoding_nbytes(data, header, channels)
    return nullcontext() if nbytes < LARGE_NBYTES else _in_turn(nbytes, header, where, buffers)


@contextmanager
def _in_turn(nbytes: int, header: Header, where: str, buffers: Buffers) -> Iterator[None]:
    limit = current_limit().nbytes
    room = limit - default_reserve(limit)
    if nbytes > room:
        raise TooLarge(
            who=f"{where}: decoding this {header.kind} of {header.width} x {header.height} pixels",
            nbytes=nbytes,
            limit=room,
            change="Store it smaller",
        )
    with _taken(nbytes, room):
        lease = buffers.lease(nbytes, who="decode")
        try:
            yield
        finally:
            if lease is not None:
                lease.close()


@contextmanager
def _taken(nbytes: int, room: int) -> Iterator[None]:
    """Wait until large pictures that are being decoded leave room for another."""
    global _in_use
    with _change:
        while _in_use and _in_use + nbytes > room:
            _change.wait()
        _in_use += nbytes
    try:
        yield
    finally:
        with _change:
            _in_use -= nbytes
            _change.notify_all()
