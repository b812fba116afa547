"""What this machine can do at most: copying memory, reading these files, decoding them.

Covers: each of them alone, at full width, for a given time; emptying the page cache of some files.
Does not cover: the pipeline (measure.py).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from penstock.bench.sample import SampledRows
from penstock.core.source import UnitSource
from penstock.engine.buffers.batch import rows_of
from penstock.engine.pipe import cores, pipe
from penstock.sources.storage import files as storage

READERS = 8
"""Threads that read at once: one does not keep an SSD busy, far more gain nothing."""

PIECE_NBYTES = 4_000_000
HELD_NBYTES = 32_000_000
"""Bytes that a measurement holds to use them again and again."""

_ROWS_AT_A_TIME = 8
_LIBC = ctypes.CDLL(None)


@contextmanager
def leased(nbytes: int, who: str) -> Iterator[None]:
    """Bytes of the data budget for a measurement that buffers outside of a run."""
    context, running = pipe().open()
    try:
        with context.budget.force(nbytes, who=who):
            yield
    finally:
        if context.places is not None:
            context.places.close()
        context.pool.close()
        context.slabs.close()
        if context.buffers is not None:
            context.buffers.close()
        if context.arrays is not None:
            context.arrays.close()
        pipe().close(running)


def copy_rate(seconds: float = 0.2) -> float:
    """Bytes a second that one core copies between arrays larger than its caches."""
    with leased(2 * HELD_NBYTES, "bench memcpy"):
        source = np.ones(HELD_NBYTES, np.uint8)
        target = np.zeros_like(source)
        done, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds or not done:
            np.copyto(target, source)
            done += source.nbytes
        return done / took if took > 0 else done / 1e-9


def forget(files: Sequence[str]) -> bool:
    """Put local files out of the page cache; False where pages stay, as on a memory file system."""
    if any(storage.is_remote(path) for path in files):
        return True  # a store has no page cache here
    looked_at = files[:: max(1, len(files) // 16)]
    for sync in (False, True):  # a page that is not on disk yet stays; waiting for the disk is slow, so only if needed
        for path in files:
            _drop(path, sync=sync)
        if sum(map(_resident, looked_at)) <= len(looked_at) // 4:
            return True
    return False


def _drop(path: str, *, sync: bool) -> None:
    handle = os.open(storage.local_path(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        if sync:
            os.fdatasync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def _resident(path: str) -> bool:
    """Whether more than half of a file is in memory. Asking by mincore reads nothing, unlike any kind of read."""
    with open(storage.local_path(path), "rb") as file:
        nbytes = os.fstat(file.fileno()).st_size
        if not nbytes:
            return False
        with mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_COPY) as mapped:
            first = ctypes.c_char.from_buffer(mapped)
            pages = (ctypes.c_ubyte * -(-nbytes // mmap.PAGESIZE))()
            failed = _LIBC.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(nbytes), pages)
            del first  # the mapping cannot be closed while it is referred to
    return not failed and sum(page & 1 for page in pages) * 2 > len(pages)


def read_rate(files: Sequence[str], seconds: float) -> float | None:
    """Bytes a second that several threads read from these files, spread over all of them; each byte at most once."""
    pieces = _pieces(files)
    if not pieces:
        return None
    lock, done = threading.Lock(), [0]
    began = time.perf_counter()
    todo = iter(pieces)

    def read() -> None:
        while True:
            with lock:
                piece = next(todo, None) if not done[0] or time.perf_counter() - began < seconds else None
            if piece is None:
                return
            got = len(storage.read_range(*piece)) if piece[2] else len(storage.read_file(piece[0]))
            with lock:
                done[0] += got

    with leased(READERS * PIECE_NBYTES, "bench read"):
        in_threads(read, READERS)
    took = time.perf_counter() - began
    return done[0] / took if took > 0 else None


def _pieces(files: Sequence[str]) -> list[tuple[str, int, int]]:
    """Small files whole (length 0), large ones in pieces, in an order that visits all of them early."""
    found: list[tuple[str, int, int]] = []
    for path in files:
        nbytes = storage.file_size(path)
        if nbytes <= PIECE_NBYTES:
            found.append((path, 0, 0))
        else:
            found += [(path, at, min(PIECE_NBYTES, nbytes - at)) for at in range(0, nbytes, PIECE_NBYTES)]
    order = np.random.default_rng(0).permutation(len(found))
    return [found[i] for i in order]


def decode_rate(source: SampledRows | UnitSource, seconds: float) -> float:
    """Rows a second that all cores decode or parse when nothing else is done and no byte has to be waited for."""
    work = _decoding(source) if isinstance(source, SampledRows) else _parsing(source)
    held = HELD_NBYTES if isinstance(source, SampledRows) else cores() * source.unit_nbytes(0)
    lock, done = threading.Lock(), [0]

    def loop(number: int) -> None:
        for rows in work(number):
            with lock:
                done[0] += rows
            if time.perf_counter() - began > seconds:
                return

    with leased(held, "bench decode"):
        next(iter(work(0)), 0)  # buffers, compiled kernels, the page cache
        began = time.perf_counter()
        in_threads(loop, cores(), numbered=True)
        took = time.perf_counter() - began
    return done[0] / took if took > 0 else 0.0


Work = Callable[[int], Iterator[int]]


def _decoding(source: SampledRows) -> Work:
    """Bytes fetched once, decoded again and again: into a buffer where rows are of one size, as the engine does."""
    schema = source.schema()
    each = max(1, source.fetch_nbytes(_ROWS_AT_A_TIME))
    groups = max(1, min(HELD_NBYTES // each, -(-source.num_rows() // _ROWS_AT_A_TIME)))
    order = np.random.default_rng(0).permutation(source.num_rows())[: groups * _ROWS_AT_A_TIME]
    fetched = [(len(rows), source.fetch(rows)) for rows in np.array_split(order, groups) if len(rows)]

    def work(number: int) -> Iterator[int]:
        out: dict[str, np.ndarray] = {}
        if schema.fixed:
            out = {f.name: np.empty((_ROWS_AT_A_TIME + 1, *f.shape), f.dtype) for f in schema}  # type: ignore[arg-type]
        at = number
        while True:
            count, data = fetched[at % len(fetched)]
            if out:
                source.decode_into(data, rows_of(out, 0, count))
            else:
                count = source.decode(data).nrows
            yield count
            at += 1

    return work


def _parsing(source: UnitSource) -> Work:
    def work(number: int) -> Iterator[int]:
        unit = number
        while True:
            for block in source.open(unit % source.num_units()):
                yield block.nrows
            unit += cores()

    return work


def in_threads(function: Callable[..., Any], count: int, *, numbered: bool = False) -> None:
    """Run a function in so many threads and wait for all; what one raises is raised."""
    with ThreadPoolExecutor(count, thread_name_prefix="penstock-bench") as threads:
        for job in [threads.submit(function, *((number,) if numbered else ())) for number in range(count)]:
            job.result()
