"""Names of files sorted without a Python object each.

Covers: sorting more names than memory should hold, cutting a stream of names into lists of bounded length.
Does not cover: finding the names (shard_files.py, sample_files.py), keeping them (packed_names.py).
"""

from __future__ import annotations

import bisect
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

CHUNK = 65536
SORT_NBYTES = 64_000_000
"""Names sorted in memory; more than this goes through a temporary file."""

T = TypeVar("T")


def chunks(names: Iterable[T], length: int = CHUNK) -> Iterator[list[T]]:
    """A stream in lists of at most so many."""
    stream = iter(names)
    while chunk := list(itertools.islice(stream, length)):
        yield chunk


class NameSorter:
    """Sorts names without a Python object each; beyond `limit_nbytes` through an unnamed temporary file."""

    def __init__(self, limit_nbytes: int = SORT_NBYTES) -> None:
        self.count = 0
        self._limit = limit_nbytes
        self._chunks: list[np.ndarray] = []
        self._parts: list[np.ndarray] = []

    def add(self, names: Sequence[bytes]) -> None:
        """Take in some names."""
        if not names:
            return
        self._chunks.append(np.array(names, dtype=bytes))
        self.count += len(names)
        if sum(map(len, self._chunks)) * max(chunk.itemsize for chunk in self._chunks) > self._limit:
            self._spill()

    def _merge_chunks(self) -> np.ndarray:
        joined = np.concatenate(self._chunks)
        self._chunks = []
        joined.sort()
        return joined

    def _spill(self) -> None:
        names = self._merge_chunks()
        with tempfile.TemporaryFile(prefix="penstock-names-") as file:
            names.tofile(file)
            self._parts.append(np.memmap(file, dtype=names.dtype, mode="r", shape=names.shape))

    def sorted(self) -> Iterator[np.ndarray]:
        """All names in byte order, in arrays of bounded size. Once only."""
        if not self._parts:
            if self._chunks:
                yield self._merge_chunks()
            return
        if self._chunks:
            self._spill()
        # Split all parts at the same names, so that each stretch between two of them can be sorted for itself.
        pieces = 2 * len(self._parts)
        sample = np.sort(np.concatenate([part[:: max(1, len(part) // 1000)] for part in self._parts]))
        cuts = [bytes(sample[i * len(sample) // pieces]) for i in range(1, pieces)]
        bounds = [[0, *(bisect.bisect_left(part, cut) for cut in cuts), len(part)] for part in self._parts]
        for i in range(pieces):
            stretch = np.concatenate([part[b[i] : b[i + 1]] for part, b in zip(self._parts, bounds, strict=True)])
            stretch.sort()
            yield stretch
