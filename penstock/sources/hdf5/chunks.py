"""Rows of HDF5 datasets read by address: the library finds the chunks once, then only preads and inflates remain.

Covers: chunk addresses, reading row ranges and single rows past the library's global lock, gzip and byte shuffle.
Does not cover: text and exotic layouts (read by the library in source.py), which rows to read when.
"""

from __future__ import annotations

import itertools
import math
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from penstock.core.errors import BadData
from penstock.core.source import NEW_MEMORY, Buffers
from penstock.sources.hdf5.compound import VALUE
from penstock.sources.hdf5.survey import DEFLATE, SHUFFLE, Dataset5, opened, reason
from penstock.sources.storage import files as storage


class Addresses:
    """Where the chunks of one dataset lie: 16 bytes a chunk (24 if some chunks were never written)."""

    def __init__(self, grid: tuple[int, ...], offsets: np.ndarray, sizes: np.ndarray, cells: np.ndarray | None) -> None:
        self.grid, self.offsets, self.sizes, self.cells = grid, offsets, sizes, cells

    def find(self, cell: int) -> tuple[int, int] | None:
        """Offset and stored size of a chunk, or None where the file holds only the fill value."""
        place = cell
        if self.cells is not None:
            place = int(np.searchsorted(self.cells, cell))
            if place >= len(self.cells) or int(self.cells[place]) != cell:
                return None
        return int(self.offsets[place]), int(self.sizes[place])

    def offsets_of(self, first: int, stop: int) -> np.ndarray:
        """Offsets of neighbouring chunks, -1 where the file holds only the fill value."""
        if self.cells is None:
            return self.offsets[first:stop]
        begin, end = np.searchsorted(self.cells, (first, stop))
        found = np.full(stop - first, -1, np.int64)
        found[self.cells[begin:end] - first] = self.offsets[begin:end]
        return found


def find_addresses(path: str, fact: Dataset5) -> Addresses:
    """Ask the library where the chunks of a dataset are; of one without any, the survey has told it."""
    if fact.storage == "contiguous":
        return Addresses((1,), np.array([fact.offset]), np.array([0]), None)
    with opened(path) as file:
        try:
            return _chunk_addresses(file[fact.name], fact)
        except (OSError, RuntimeError, ValueError, KeyError, OverflowError) as error:
            raise BadData(path, f"the chunk index of {fact.name!r} is damaged: {reason(error)}") from error


def _chunk_addresses(node: Any, fact: Dataset5) -> Addresses:
    chunk = fact.chunk or fact.shape
    grid = tuple(-(-n // c) for n, c in zip(fact.shape, chunk, strict=True))
    found: list[tuple[int, int, int]] = []

    def visit(info: Any) -> None:
        cell = 0
        for start, c, n in zip(info.chunk_offset, chunk, grid, strict=True):
            if start % c or start // c >= n:
                raise ValueError(f"a chunk is said to begin at {info.chunk_offset}, which is no place of the grid")
            cell = cell * n + start // c
        # A mask marks chunks whose filters were left out (incompressible ones): its bits tell which.
        found.append((cell, info.byte_offset, info.size | info.filter_mask << 40))

    node.id.chunk_iter(visit)
    table = np.array(sorted(found), np.int64).reshape(-1, 3)
    if len(np.unique(table[:, 0])) < len(table):
        raise ValueError("two chunks are said to begin at the same place")
    cells = math.prod(grid)
    dense = len(table) == cells and bool((table[:, 0] == np.arange(cells)).all())
    return Addresses(grid, table[:, 1].copy(), table[:, 2].copy(), None if dense else table[:, 0].copy())


_files = storage.OpenFiles()
os.register_at_fork(after_in_child=_files.after_fork)


def read_pieces(path: str, pieces: Iterable[tuple[int, memoryview]]) -> None:
    """Fill each buffer with the file's bytes from its offset on; a local file is looked up once for all of them."""
    if storage.is_remote(path):
        wanted = list(pieces)
        for (offset, out), data in zip(wanted, _remote(path, wanted), strict=True):
            out[: len(data)] = data
            _complete(path, offset, len(out), len(data))
        return
    try:
        with _files.use(storage.local_path(path)) as handle:
            for offset, out in pieces:
                _complete(path, offset, len(out), _pread_into(handle, offset, out))
    except (OSError, OverflowError) as error:
        raise BadData(path, f"reading failed: {error}") from error


def _remote(path: str, wanted: list[tuple[int, memoryview]]) -> list[bytes]:
    return storage.read_ranges(path, [(offset, len(out)) for offset, out in wanted]) if wanted else []


def _pread_into(handle: int, offset: int, out: memoryview) -> int:
    done = os.preadv(handle, [out[: 1 << 30]], offset)
    while 0 < done < len(out):
        count = os.preadv(handle, [out[done : done + (1 << 30)]], offset + done)
        if count == 0:
            break
        done += count
    return done


def _complete(path: str, offset: int, wanted: int, got: int) -> None:
    if got < wanted:
        raise BadData(path, f"the file is truncated: of {wanted} bytes at {offset} only {got} are there")


class RowReader:
    """Reads rows of one dataset in one file by address."""

    def __init__(self, path: str, fact: Dataset5) -> None:
        self.path, self.fact = path, fact
        self.addresses = find_addresses(path, fact)

    def read(self, start: int, stop: int, buffers: Buffers = NEW_MEMORY) -> np.ndarray:
        """Rows start..stop as a new array as the file holds them; of a compound value, the records asked for."""
        fact = self.fact
        out = buffers.empty((stop - start, *fact.shape[1:]), fact.raw)
        self.read_into(start, out)
        return np.ascontiguousarray(out[VALUE]) if fact.raw.names == (VALUE,) else out

    def read_into(self, start: int, out: np.ndarray) -> None:
        """Fill a C-contiguous array of the file's dtype with rows from `start` on."""
        if not out.size:
            return
        if self.fact.storage == "packed":
            self._read_packed(start, out)
        else:
            read_pieces(self.path, self.pieces(start, out))

    def pieces(self, start: int, out: np.ndarray) -> Iterator[tuple[int, memoryview]]:
        """What to read where for unfiltered rows: each stretch goes straight to its place.

        Chunks that follow each other in the file are one stretch: a read lets go of the GIL, and to have it back costs
        more than the copy of a chunk while other threads want it.
        """
        fact = self.fact
        if fact.storage == "contiguous":
            yield int(self.addresses.offsets[0]) + start * fact.stride, _bytes(out)
            return
        assert fact.chunk is not None
        step = fact.chunk[0]
        first, last = start // step, (start + len(out) - 1) // step
        tops = np.arange(first, last + 2) * step
        rows = np.clip(tops - start, 0, len(out))  # where each chunk's rows begin in `out`, and the end
        places = self.addresses.offsets_of(first, last + 1)
        wanted = places + (rows[:-1] + start - tops[:-1]) * fact.stride
        there = places >= 0
        follows = there[1:] & there[:-1] & (wanted[1:] == wanted[:-1] + np.diff(rows[:-1]) * fact.stride)
        begins = np.concatenate(([0], np.flatnonzero(~follows) + 1))
        ends = np.append(begins[1:], len(places))
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            target = out[rows[begin] : rows[end]]
            if there[begin]:
                yield int(wanted[begin]), _bytes(target)
            else:
                target[...] = self._fill()

    def _read_packed(self, start: int, out: np.ndarray) -> None:
        """Chunks that tile the array: each one that touches the rows is read and inflated once."""
        fact, grid = self.fact, self.addresses.grid
        chunk = fact.chunk
        assert chunk is not None
        stop = start + len(out)
        inner = math.prod(grid[1:])
        for strip in range(start // chunk[0], -(-stop // chunk[0])):
            top = strip * chunk[0]
            low, high = max(start, top), min(stop, top + chunk[0])
            for tile, where in enumerate(itertools.product(*(range(n) for n in grid[1:]))):
                target, part = [slice(low - start, high - start)], [slice(low - top, high - top)]
                for place, step, end in zip(where, chunk[1:], fact.shape[1:], strict=True):
                    target.append(slice(place * step, min((place + 1) * step, end)))
                    part.append(slice(0, min(step, end - place * step)))
                values = self._chunk(strip * inner + tile)
                out[tuple(target)] = self._fill() if values is None else values[tuple(part)]

    def _fill(self) -> np.ndarray:
        return np.frombuffer(self.fact.fill, self.fact.raw)[0]  # type: ignore[no-any-return]

    def _chunk(self, cell: int) -> np.ndarray | None:
        """One chunk, inflated and unshuffled; zlib lets go of the GIL."""
        found = self.addresses.find(cell)
        if found is None:
            return None
        fact, offset = self.fact, found[0]
        nbytes, mask = found[1] & (1 << 40) - 1, found[1] >> 40
        if nbytes > 2 * fact.chunk_nbytes + 1_000_000:
            raise BadData(self.path, f"a chunk of {fact.name!r} claims {nbytes} stored for {fact.chunk_nbytes} bytes")
        data: bytes | bytearray = bytearray(nbytes)
        read_pieces(self.path, [(offset, memoryview(data))])
        for number in reversed(range(len(fact.filters))):
            if mask >> number & 1:
                continue
            if fact.filters[number] == DEFLATE:
                data = self._inflate(data, offset)
            elif fact.filters[number] == SHUFFLE:
                data = _unshuffle(data, fact.raw.itemsize)
        if len(data) != fact.chunk_nbytes:
            raise BadData(
                self.path, f"a chunk of {fact.name!r} at byte {offset} has {len(data)} of {fact.chunk_nbytes} bytes"
            )
        return np.frombuffer(data, fact.raw).reshape(fact.chunk or ())

    def _inflate(self, data: bytes | bytearray, offset: int) -> bytes:
        expected = self.fact.chunk_nbytes
        engine = zlib.decompressobj()
        try:
            # One byte more than expected tells a chunk that inflates without end from a whole one.
            return engine.decompress(data, expected + 1)
        except zlib.error as error:
            raise BadData(
                self.path, f"a chunk of {self.fact.name!r} at byte {offset} does not inflate: {error}"
            ) from error


def _unshuffle(data: bytes | bytearray, item: int) -> bytes | bytearray:
    """Undo the byte shuffle: the first bytes of all values stand first, then the second ones; a rest stays as it is."""
    count = len(data) // item
    if item == 1 or count < 2:
        return data
    flat = np.frombuffer(data, np.uint8)
    out = bytearray(len(data))
    target = np.frombuffer(out, np.uint8)
    planes = target[: count * item].reshape(count, item)
    source = flat[: count * item].reshape(item, count)
    for byte in range(item):  # plane by plane: four times as fast as one transposed copy
        planes[:, byte] = source[byte]
    target[count * item :] = flat[count * item :]
    return out


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
