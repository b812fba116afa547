"""The HDF5 files of a dataset: a few packed numbers each, and what they have in common once.

Covers: surveying every file, leaving out damaged ones, `Files5`: paths, rows and facts by file number.
Does not cover: what is in one file (survey.py), reading it (source.py).

Files of one dataset have the same columns, so what differs is numbers: rows, where a dataset begins, how it is cut into
chunks. They stand in one array, a line a file; the rest is a `Dataset5` for each kind of file, of which there are few.
"""

from __future__ import annotations

import copy
import dataclasses
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import numpy as np

from penstock.core.byte_cache import ByteCache
from penstock.core.errors import BadData, SchemaChanged
from penstock.core.schema import OBJECT
from penstock.core.source import BLOCK_NBYTES, OnError
from penstock.sources.hdf5.chunks import RowReader
from penstock.sources.hdf5.heap import lengths
from penstock.sources.hdf5.survey import Dataset5, survey
from penstock.sources.storage import files as storage
from penstock.sources.storage.unchanged import Unchanged

Facts = Mapping[str, Dataset5]

SAMPLED_ROWS = 64

_FACTS_KEPT = 64
"""Files whose facts stay put together: those that are being read."""

_HEAD = 3
"""Numbers that a line begins with: the file's place among the paths, its kind, its rows."""


class Files5(Sequence[tuple[str, Facts]]):
    """The files that can be read, each as its path and facts."""

    def __init__(self, paths: Sequence[str], kinds: Sequence[Facts], lines: np.ndarray, unchanged: Unchanged) -> None:
        self.paths, self._kinds, self._lines, self._unchanged = paths, list(kinds), lines, unchanged
        self._facts: dict[int, Facts] = {}

    def through(self, cache: ByteCache) -> Self:
        """The same files, the remote ones read through a cache."""
        other = copy.copy(self)
        other.paths = storage.through(self.paths, cache)
        return other

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, file: int) -> tuple[str, Facts]:  # type: ignore[override]  # no slices
        return self.path(file), self.facts(file)

    def path(self, file: int) -> str:
        """The path of a file."""
        return self.paths[int(self._lines[file, 0])]

    def check(self, file: int) -> None:
        """Raise `FileChanged` if a file is not the one that was surveyed."""
        number = int(self._lines[file, 0])
        self._unchanged.check(number, self.paths[number])

    @property
    def rows(self) -> np.ndarray:
        """Rows of each file."""
        return self._lines[:, 2]

    @property
    def kinds(self) -> Sequence[Facts]:
        """What there is to tell apart but for numbers: one for the files of each kind."""
        return self._kinds

    def facts(self, file: int) -> Facts:
        """The facts of a file, put together of its kind and its numbers."""
        found = self._facts.get(file)
        if found is None:
            _, kind, rows, *numbers = self._lines[file].tolist()
            found = {column: _whole(fact, rows, numbers) for column, fact in self._kinds[kind].items()}
            if len(self._facts) >= _FACTS_KEPT:
                self._facts.clear()
            self._facts[file] = found
        return found

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_facts": {}}


def _bare(fact: Dataset5) -> Dataset5:
    """What is left of the facts without the numbers that differ from file to file."""
    chunk = None if fact.chunk is None else (0,) * len(fact.chunk)
    return dataclasses.replace(fact, shape=(0, *fact.shape[1:]), chunk=chunk, value_nbytes=0, offset=0)


def _numbers(fact: Dataset5) -> Iterator[int]:
    """As many for each file, whatever its kind."""
    yield fact.value_nbytes
    yield fact.offset
    yield from fact.chunk or (0,) * len(fact.shape)


def _whole(bare: Dataset5, rows: int, numbers: list[int]) -> Dataset5:
    """Facts again; takes their numbers off the list."""
    rank = len(bare.shape)
    value_nbytes, offset, *chunk = numbers[: 2 + rank]
    del numbers[: 2 + rank]
    return dataclasses.replace(
        bare,
        shape=(rows, *bare.shape[1:]),
        chunk=None if bare.chunk is None else tuple(chunk),
        value_nbytes=value_nbytes,
        offset=offset,
    )


def survey_all(paths: Sequence[str], wanted: Mapping[str, str], on_error: OnError) -> Files5:
    """Facts of every file. Damaged files go to `on_error`; files that disagree with the first raise `SchemaChanged`."""
    kinds: dict[tuple[Dataset5, ...], int] = {}
    lines, first, width, unchanged = array("q"), "", 0, Unchanged(len(paths))
    for number, path in enumerate(paths):
        unchanged.check(number, path)
        try:
            facts = survey(path, wanted)
        except BadData as error:
            on_error.bad(error)
            continue
        facts = {c: _measured(path, f) if f.stored == OBJECT else f for c, f in facts.items()}
        kind = tuple(_bare(fact) for fact in facts.values())
        if kind not in kinds:
            if kinds:
                _agree(first, next(iter(kinds)), path, facts)
            kinds[kind] = len(kinds)
        first = first or path
        line = [number, kinds[kind], next(iter(facts.values())).rows]
        line += [value for fact in facts.values() for value in _numbers(fact)]
        width = len(line)
        lines.extend(line)
    if not kinds:
        raise BadData(paths[0], f"none of {len(paths)} files could be read as HDF5; the last error: {on_error.last}")
    table = np.array(lines, np.int64).reshape(-1, width)
    return Files5(paths, [dict(zip(wanted, kind, strict=True)) for kind in kinds], table, unchanged)


def _measured(path: str, fact: Dataset5) -> Dataset5:
    """The facts with the mean size of a few values of open length, their objects included."""
    if not fact.in_heap:
        return fact
    try:
        records = RowReader(path, fact).read(0, min(fact.rows, SAMPLED_ROWS))
    except BadData:  # reading will meet the damage again, and report it with its rows
        return fact
    mean = float(np.minimum(lengths(records.reshape(-1), fact.item), BLOCK_NBYTES).mean())
    return dataclasses.replace(fact, value_nbytes=64 + int(mean))


def _agree(first_path: str, first: Sequence[Dataset5], path: str, facts: Facts) -> None:
    for (column, fact), other in zip(facts.items(), first, strict=True):
        here, there = fact.field(column), other.field(column)
        if here != there:
            raise SchemaChanged(f"{path}: dataset {fact.name!r} is {here}, but in {first_path} it is {there}.")


def row_addressable(files: Files5) -> bool:
    """Whether each row of each file can be read for itself."""
    return all(
        f.storage in ("contiguous", "chunked") and f.raw.kind not in "SV" for kind in files.kinds for f in kind.values()
    )
