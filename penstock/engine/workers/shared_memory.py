"""Values on their way to another process: raw bytes in a file that has no name, and short messages about them.

Covers: taking blocks apart into buffers and putting them together again, the shared memory, the framing of messages.
Does not cover: the processes (processes.py), what they do with a block (child.py).

Arrays travel as raw bytes beside a small pickle (protocol 5), Arrow arrays as Arrow's own stream, other objects inside
the pickle. The memory is a memfd: it vanishes with the last process that has it open, however that process ends, and
the size of /dev/shm does not bound it.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import struct
import tempfile
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from penstock.core.block import Column
from penstock.core.schema import OBJECT

_LENGTH = struct.Struct("<Q")
_PAGE = mmap.PAGESIZE

Opened = tuple[Any, np.ndarray]
"""A column ready to travel: what it is ('array', 'arrow', or a dtype of times) and its data."""


def pack(value: object) -> list[np.ndarray]:
    """A value as buffers: a pickle first, then the arrays it refers to, not copied where they are contiguous."""
    found: list[pickle.PickleBuffer] = []
    try:
        head = pickle.dumps(value, protocol=5, buffer_callback=found.append)
    except Exception:  # classes and functions that cannot be imported by name: by value
        found = []
        head = cloudpickle.dumps(value, protocol=5, buffer_callback=found.append)
    return [np.frombuffer(head, np.uint8), *(np.frombuffer(part.raw(), np.uint8) for part in found)]


def pack_function(value: object) -> list[np.ndarray]:
    """As `pack`, for what holds users' functions: those of scripts and notebooks go by value."""
    found: list[pickle.PickleBuffer] = []
    head = cloudpickle.dumps(value, protocol=5, buffer_callback=found.append)
    return [np.frombuffer(head, np.uint8), *(np.frombuffer(part.raw(), np.uint8) for part in found)]


def unpack(buffers: Sequence[np.ndarray]) -> Any:
    """The inverse of both."""
    return pickle.loads(buffers[0].data, buffers=buffers[1:])


def packed_nbytes(buffers: Sequence[np.ndarray]) -> int:
    return sum(buffer.nbytes for buffer in buffers)


def open_columns(columns: dict[str, Column]) -> dict[str, Opened]:
    """Columns ready to be pickled: contiguous, and Arrow's as streams (a pickled slice carries its whole parent)."""
    return {name: _open(column) for name, column in columns.items()}


def shut_columns(columns: dict[str, Opened]) -> dict[str, Column]:
    """The inverse of `open_columns`."""
    return {name: _shut(column) for name, column in columns.items()}


def _open(column: Column) -> Opened:
    if not isinstance(column, np.ndarray):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([("c", column.type)])) as writer:
            writer.write_batch(pa.record_batch([column], names=["c"]))
        return "arrow", np.frombuffer(sink.getvalue(), np.uint8)
    if column.dtype.kind in "mM":  # these do not lend their buffer
        return column.dtype, np.ascontiguousarray(column).view(np.int64)
    return "array", column if column.dtype == OBJECT else np.ascontiguousarray(column)


def _shut(opened: Opened) -> Column:
    kind, data = opened
    if isinstance(kind, str):
        return data if kind == "array" else pa.ipc.open_stream(pa.py_buffer(data)).read_all().column(0).combine_chunks()
    return data.view(kind)


class Store:
    """Shared memory that grows as needed. One side writes it, the other reads it, never both at once."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None

    @classmethod
    def make(cls) -> Store:
        """New memory without a name; where there is no memfd, a file that is deleted already."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("penstock", os.MFD_CLOEXEC))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def write(self, buffers: Sequence[np.ndarray]) -> list[int]:
        """Put buffers one after the other; returns their sizes."""
        memory = self._mapped(packed_nbytes(buffers), grow=True)
        at = 0
        for buffer in buffers:
            np.copyto(memory[at : at + buffer.nbytes], buffer)  # lets go of the GIL
            at += buffer.nbytes
        return [buffer.nbytes for buffer in buffers]

    def read(self, sizes: Sequence[int]) -> list[np.ndarray]:
        """Buffers of the given sizes, copied: a user's function may keep what it got."""
        memory = self._mapped(sum(sizes), grow=False)
        found, at = [], 0
        for size in sizes:
            found.append(memory[at : at + size].copy())
            at += size
        return found

    def free(self) -> None:
        """Give the pages back to the system; the size stays, so the other side's map stays good."""
        if self._map is not None:
            if hasattr(mmap, "MADV_REMOVE"):
                self._map.madvise(mmap.MADV_REMOVE)
            self._map = None

    def close(self) -> None:
        self._map = None
        os.close(self.fd)

    def _mapped(self, nbytes: int, *, grow: bool) -> np.ndarray:
        if self._map is None or len(self._map) < nbytes:
            length = max(_PAGE, -(-nbytes // _PAGE) * _PAGE)
            if grow and os.fstat(self.fd).st_size < length:
                os.ftruncate(self.fd, length)
            self._map = mmap.mmap(self.fd, max(length, os.fstat(self.fd).st_size))
        return np.frombuffer(self._map, np.uint8)


class Link:
    """Short messages both ways over a socket; `receive` gives None when the other side is gone."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: tuple[Any, ...]) -> None:
        data = pickle.dumps(message)
        self._end.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> tuple[Any, ...] | None:
        length = self._exactly(_LENGTH.size)
        data = None if length is None else self._exactly(_LENGTH.unpack(length)[0])
        return None if data is None else pickle.loads(data)

    def end_sending(self) -> None:
        """Tell the other side that no more will come."""
        try:
            self._end.shutdown(socket.SHUT_WR)
        except OSError:  # the other side is gone already
            return

    def close(self) -> None:
        self._end.close()

    def _exactly(self, nbytes: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < nbytes:
            try:
                part = self._end.recv(nbytes - len(parts))
            except ConnectionError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)
