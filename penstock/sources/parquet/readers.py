"""Open Parquet files that wait for their next row group.

Covers: lending a reader to one caller at a time, keeping some of those given back, bounded in bytes.
Does not cover: which row group is read (source.py), facts of all files (survey.py).

A parsed footer takes ten times its stored bytes (measured: 1.1 MB for 40 columns and 32 row groups), and a reader keeps
its footer. So what is kept counts by that, and does not grow with the number of files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow.parquet as pq

KEPT_NBYTES = 4_000_000
"""For all readers that are kept. The first read of a new one costs 2 ms more (41 columns), a tenth of a row group."""

_PARSED, _READER_NBYTES = 10, 700_000
"""Bytes of a parsed footer for each stored byte, and what a reader that has read holds besides."""


class Readers:
    """Readers by file number. Pickled without any: what is open stays where it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[int, pq.ParquetFile]] = []

    def __reduce__(self) -> tuple[type[Readers], tuple[()]]:
        return Readers, ()

    @contextmanager
    def use(self, file: int, make: Callable[[], pq.ParquetFile], *, keep: bool) -> Iterator[pq.ParquetFile]:
        """A reader of a file for one caller; afterwards it is kept if the caller asks for that and nothing failed."""
        reader = self._take(file)
        if reader is None:
            reader = make()
        try:
            yield reader
        except BaseException:
            reader.close(force=True)
            raise
        if keep:
            self._give_back(file, reader)
        else:
            reader.close(force=True)

    def _take(self, file: int) -> pq.ParquetFile | None:
        with self._lock:
            at = next((i for i, (owner, _) in enumerate(self._idle) if owner == file), None)
            return None if at is None else self._idle.pop(at)[1]

    def _give_back(self, file: int, reader: pq.ParquetFile) -> None:
        surplus = []
        with self._lock:
            self._idle.append((file, reader))
            held = sum(nbytes_of(one) for _, one in self._idle)
            while held > KEPT_NBYTES and len(self._idle) > 1:
                surplus.append(self._idle.pop(0)[1])
                held -= nbytes_of(surplus[-1])
        for one in surplus:
            one.close(force=True)


def nbytes_of(reader: pq.ParquetFile) -> int:
    """About what a reader holds."""
    return _PARSED * int(reader.metadata.serialized_size) + _READER_NBYTES
