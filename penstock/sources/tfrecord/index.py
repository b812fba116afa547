"""Where the frames of TFRecord files lie.

Covers: walking a file for its index, cutting a stream into blocks of whole frames, telling compression apart.
Does not cover: keeping indexes (sources/records/span_index.py), what is in the records (columns.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.core.errors import BadData
from penstock.core.sizes import size
from penstock.memory.giant import refuse_giant
from penstock.native import tfrecord as kernel
from penstock.native.crc32c import masked_crc32c
from penstock.native.tfrecord import FRAME, HEADER
from penstock.sources.records.span_index import entries, place
from penstock.sources.storage import files as storage
from penstock.sources.storage.inflate import GZIP, PLAIN, ZLIB, pieces
from penstock.sources.tfrecord.columns import Frames

CHUNK = 4 << 20


@dataclass(frozen=True)
class FrameWalk:
    """Walks TFRecord files. `check` compares each length with its checksum; records above `longest` are refused."""

    check: bool = True
    longest: int = 1_000_000_000

    @property
    def key(self) -> str:
        return f"tfrecord-{self.check}-{self.longest}"

    def reason(self, code: int) -> str:
        """A code of the walk in words."""
        if code == kernel.BAD_LENGTH:
            return "the length of a record does not match its checksum, so the rest of the file cannot be read"
        if code == kernel.TOO_LONG:
            return f"a record claims more than max_record={size(self.longest)}, so the rest of the file is not read"
        return "the file ends in the middle of a record"

    def spans(self, path: str) -> Iterator[np.ndarray]:
        """The frames of a plain file: read in chunks, or skipping from one frame to the next where they are larger."""
        nbytes, at, code = storage.file_size(path), 0, 0
        offsets, lengths = np.empty(CHUNK // FRAME + 1, np.int64), np.empty(CHUNK // FRAME + 1, np.int64)
        with storage.open_file(path) as file:
            while at < nbytes and not code:
                file.seek(at)
                buf = np.frombuffer(file.read(CHUNK), np.uint8)
                found, after, code = kernel.walk(buf, nbytes - at, self.check, self.longest, offsets, lengths)
                if found:
                    yield entries(offsets[:found], lengths[:found], at)
                elif not code:
                    code = kernel.TRUNCATED  # the file shrank while it was read
                at += after
        yield entries(np.array([at]), np.array([code]))


def compression_of(path: str) -> str:
    """How a file is compressed, by its first bytes; a plain one begins with a length and its checksum."""
    head = storage.read_range(path, 0, HEADER)
    if len(head) == HEADER and masked_crc32c(head[:8]) == int.from_bytes(head[8:], "little"):
        return PLAIN
    if head[:2] == b"\x1f\x8b":
        return GZIP
    zlib_header = len(head) >= 2 and head[0] == 0x78 and int.from_bytes(head[:2], "big") % 31 == 0
    return ZLIB if zlib_header and head[1] in (0x01, 0x5E, 0x9C, 0xDA) else PLAIN


def stream(path: str, compression: str, walk: FrameWalk, *, nbytes: int, rows: int) -> Iterator[Frames]:
    """Blocks of whole frames of a file read from its start; damage raises after the blocks before it.

    A block ends with the frame that brings it to `nbytes` or `rows`, however the bytes arrived.
    """
    words = "" if compression == PLAIN else " of the inflated data"
    source = pieces(path, compression)
    pending, base, more, error = bytearray(), 0, True, None
    offsets, lengths = np.empty(rows, np.int64), np.empty(rows, np.int64)
    try:
        while True:
            data = bytes(pending)
            buf = np.frombuffer(data, np.uint8)
            found, after, code = kernel.walk(buf, kernel.UNKNOWN, walk.check, walk.longest, offsets, lengths)
            ends = offsets[:found] + lengths[:found] + FRAME
            whole = int(np.searchsorted(ends, len(data), side="right"))
            cut = min(int(np.searchsorted(ends[:whole], nbytes)) + 1, whole)
            full = cut and (cut == rows or ends[cut - 1] >= nbytes)
            if more and not full and not code:
                wanted = min(after, walk.longest + FRAME)
                refuse_giant(wanted, who=f"the record in {place(path, base)}")
                try:
                    more = _take(source, pending, max(CHUNK, wanted - len(data)))
                except BadData as damage:
                    more, error = False, damage
                continue
            if cut:
                after = int(ends[cut - 1])
                ready = [_frames(path, words, base, (data, offsets[:cut].copy(), lengths[:cut].copy()))]
                del data, buf, pending[:after]  # the holder of the frames decides how long they live
                yield ready.pop()
                base += after
                continue
            if code or error or pending:
                where = place(path, base) + words
                raise BadData(where, walk.reason(code or kernel.TRUNCATED)) if error is None or code else error
            return
    finally:
        source.close()  # type: ignore[attr-defined]


def _take(source: Iterator[bytes], pending: bytearray, nbytes: int) -> bool:
    """Add about so many bytes of a stream; whether there were any. What came before an error stays."""
    wanted, before = len(pending) + nbytes, len(pending)
    while len(pending) < wanted and (piece := next(source, None)) is not None:
        pending += piece
    return len(pending) > before


def _frames(path: str, words: str, base: int, found: tuple[bytes, np.ndarray, np.ndarray]) -> Frames:
    data, offsets, lengths = found
    return Frames(
        np.frombuffer(data, np.uint8), offsets, lengths, lambda row: place(path, base + int(offsets[row])) + words
    )
