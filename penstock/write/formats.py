"""Shard files: blocks in, one file out.

Covers: Parquet, TFRecord and tar shards, written once from front to back, and counting their rows again.
Does not cover: compressing samples (encode.py), names, manifests and resuming (run.py).
"""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.block import Block
from penstock.core.errors import DataError
from penstock.write.arrow import arrow_table, joined
from penstock.write.columns import has_stored, named, shown_columns

SUFFIX = {"parquet": ".parquet", "webdataset": ".tar", "tfrecord": ".tfrecord"}

GROUP_NBYTES = 8_000_000
"""Values that a Parquet row group holds: what a reader must have in memory at once, and the writer too."""

GROUP_COST = 5
"""Times its values that writing a row group takes: columns, levels of nested lists, pages before and after zstd."""

_READ_NBYTES = 1 << 20


class Digested:
    """A file that only grows, with a running checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = _digest()
        self.nbytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.write(view)
        self._digest.update(view)
        self.nbytes += len(view)
        return len(view)

    def tell(self) -> int:
        return self.nbytes

    def flush(self) -> None:
        self._file.flush()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    @property
    def digest(self) -> str:
        return str(self._digest.hexdigest())


class ShardFile(Protocol):
    """One file being written."""

    nbytes: int
    """About so many bytes are in the file or on their way."""

    def add(self, block: Block, hold: object) -> None:
        """Append rows; `hold` pays for them and is kept as long as they are."""

    def finish(self) -> None: ...


class RecordShard:
    """TFRecord frames."""

    def __init__(self, file: Digested) -> None:
        self._file = file
        self.nbytes = 0

    def add(self, block: Block, hold: object) -> None:
        self.nbytes += self._file.write(b"".join(block.columns["record"]))

    def finish(self) -> None:
        """A TFRecord file has no end mark."""


class TarShard:
    """Members named by the sample's number; no times and owners, so that the same data gives the same bytes."""

    def __init__(self, file: Digested, first: int) -> None:
        self._file, self._next = file, first
        self.nbytes = 0

    def add(self, block: Block, hold: object) -> None:
        parts: list[bytes] = []
        for row in range(block.nrows):
            for extension, column in block.columns.items():
                data = column[row]
                if data is not None:
                    parts += (tar_head(f"{self._next:09d}.{extension}", len(data)), data)
                    parts.append(bytes(-len(data) % tarfile.BLOCKSIZE))
            self._next += 1
        self.nbytes += self._file.write(b"".join(parts))

    def finish(self) -> None:
        self._file.write(bytes(2 * tarfile.BLOCKSIZE))


_EMPTY_HEAD = tarfile.TarInfo("").tobuf(tarfile.USTAR_FORMAT)
_SUM = slice(148, 156)


def tar_head(name: str, nbytes: int) -> bytes:
    """A member's header: name, size and sum put into an empty one, a tenth of the time that making one takes."""
    stored = name.encode()
    if len(stored) > 100 or nbytes >= 8**11:  # neither fits a plain header
        info = tarfile.TarInfo(name)
        info.size = nbytes
        return info.tobuf(tarfile.GNU_FORMAT)
    head = bytearray(_EMPTY_HEAD)
    head[: len(stored)] = stored
    head[124:136] = b"%011o\0" % nbytes
    head[_SUM] = b" " * 8
    head[_SUM] = b"%06o\0 " % sum(head)
    return bytes(head)


class ParquetShard:
    """Row groups of bounded size. Arrays become lists of fixed size, ragged ones lists, images bytes."""

    def __init__(self, file: Digested, schema: pa.Schema | None, *, tight: bool = False) -> None:
        self._file, self.schema, self._tight = file, schema, tight
        self._writer: pq.ParquetWriter | None = None
        self._tables: list[pa.Table] = []
        self._holds: list[object] = []
        self._pictures: set[str] = set()
        self._held = 0
        self.nbytes = 0

    def add(self, block: Block, hold: object) -> None:
        columns = named(shown_columns(block))
        if self._writer is None and not self._tables:
            self._pictures = {name for name, column in columns.items() if has_stored(column)}
        self._tables.append(arrow_table(columns))
        self._holds.append(hold)
        self._held += block.nbytes
        self.nbytes = self._file.nbytes + self._held
        if self._held >= GROUP_NBYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._tables:
            return
        table = joined(self._tables, self.schema)
        self.schema = table.schema
        self._tables, self._held = [], 0
        if self._writer is None:
            self._writer = pq.ParquetWriter(pa.PythonFile(self._file, mode="w"), table.schema, **self._options(table))
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._holds = []
        self.nbytes = self._file.nbytes
        if self._tight:  # Arrow keeps what it has freed; elsewhere that saves page faults, here it may cost the process
            del table
            pa.default_memory_pool().release_unused()

    def _options(self, table: pa.Table) -> dict[str, Any]:
        """Dictionaries for text only, where they pay; pictures are compressed already."""
        text = [f.name for f in table.schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        if not self._pictures:
            return {"compression": "zstd", "use_dictionary": text or False}
        others = {
            f.name: "zstd" for f in table.schema if f.name not in self._pictures and not pa.types.is_nested(f.type)
        }
        return {"compression": others or "none", "use_dictionary": text or False}

    def finish(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()


def count_rows(file: BinaryIO, format: str) -> int:
    """Rows of a finished shard, by reading it."""
    if format == "parquet":
        return int(pq.read_metadata(file).num_rows)
    if format == "tfrecord":
        return sum(1 for _ in _frames(file))
    # A local file is skipped through by seeking; a remote one is read on, which takes fewer requests.
    local = isinstance(getattr(file, "raw", None), io.FileIO)
    with tarfile.open(fileobj=file, mode="r:" if local else "r|", bufsize=_READ_NBYTES) as tar:
        return len({member.name.partition(".")[0] for member in tar})


def _frames(file: BinaryIO) -> Iterator[int]:
    while head := file.read(12):
        (length,) = struct.unpack("<Q", head.ljust(12, b"\xff")[:8])
        left = length + 4
        while left > 0:
            got = len(file.read(min(left, _READ_NBYTES)))
            if not got:
                raise DataError("The last record of a shard is cut off.")
            left -= got
        yield length


def digest_of(file: BinaryIO) -> str:
    """The checksum of a file from here to its end."""
    digest = _digest()
    while data := file.read(_READ_NBYTES):
        digest.update(data)
    return str(digest.hexdigest())


def _digest() -> Any:
    return hashlib.blake2b(digest_size=16)
