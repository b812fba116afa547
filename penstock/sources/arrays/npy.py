"""Arrays in `.npy` and `.npz` files, row by row, without loading them.

Covers: finding where an array lies in its file, taking rows of it (mapped, or by ranged reads), joining files.
Does not cover: samples made of several arrays (source.py).
"""

from __future__ import annotations

import copy
import functools
import io
import itertools
import os
import shutil
import struct
import threading
import tokenize
import zipfile
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from penstock.core.byte_cache import ByteCache
from penstock.core.errors import BadData, FileChanged, InvalidInput, NotFound, SchemaChanged
from penstock.core.source import OnError
from penstock.native.mapped import take_rows
from penstock.sources.listing import shard_files
from penstock.sources.storage import files as storage
from penstock.sources.storage.index_folder import cache_folder, written
from penstock.sources.storage.unchanged import Unchanged

HEADER_NBYTES = 4096

MAPPED = 128
"""Files kept mapped, of those that make one array."""


@dataclass(frozen=True)
class StoredArray:
    """An array somewhere in a file: dtype, shape, and the offset of its first byte."""

    path: str
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool = False

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def row_nbytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @cached_property
    def mapped(self) -> np.ndarray:
        """The array as a mapping of its file: pages come and go with the page cache and count as no memory."""
        if len(self) == 0 or self.row_nbytes == 0:
            return np.empty(self.shape, self.dtype)
        order: Any = "F" if self.fortran else "C"
        return np.memmap(
            storage.local_path(self.path), self.dtype, mode="r", offset=self.offset, shape=self.shape, order=order
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "mapped"}

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The given rows, copied."""
        if not storage.is_remote(self.path):
            # A plain array: going through the memmap class costs Python for every call.
            found = take_rows(np.asarray(self.mapped), rows)
            if found is None:
                raise FileChanged(self.path, "it was cut short")
            return found
        if self.fortran:
            raise InvalidInput(f"{self.path} is stored column by column: its rows cannot be read from afar. Copy it.")
        size = self.row_nbytes
        pieces = storage.read_ranges(self.path, [(self.offset + int(row) * size, size) for row in rows])
        return np.frombuffer(b"".join(pieces), self.dtype).reshape(len(rows), *self.shape[1:])


class JoinedArrays:
    """Several stored arrays as one, along rows: 17 bytes for each, and its path where paths are kept."""

    def __init__(self, first: StoredArray, paths: Sequence[str], packed: Packed, unchanged: Unchanged) -> None:
        self.paths, self.offsets = paths, packed.offsets
        self._unchanged = unchanged
        self._first, self._fortran = first, packed.fortran
        self.ends = np.cumsum(packed.rows)
        self.dtype, self.shape = first.dtype, (int(self.ends[-1]), *first.shape[1:])
        self._clear()

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._recent: OrderedDict[int, StoredArray] = OrderedDict()

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def row_nbytes(self) -> int:
        return self._first.row_nbytes

    def through(self, cache: ByteCache) -> JoinedArrays:
        """The same arrays, those of remote files read through a cache."""
        other = copy.copy(self)
        other.paths = storage.through(self.paths, cache)
        return other

    def part(self, number: int) -> StoredArray:
        """One of the arrays; those of late are kept, since a mapping takes time to make and a descriptor to have."""
        with self._lock:
            found = self._recent.get(number)
            if found is None:
                rows = int(self.ends[number]) - self._start(number)
                offset, fortran = int(self.offsets[number]), bool(self._fortran[number])
                shape = (rows, *self.shape[1:])
                found = self._recent[number] = StoredArray(self.paths[number], offset, self.dtype, shape, fortran)
            self._recent.move_to_end(number)
            while len(self._recent) > MAPPED:
                self._recent.popitem(last=False)
            return found

    def _start(self, number: int) -> int:
        return int(self.ends[number - 1]) if number else 0

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The given rows, in that order, copied."""
        if len(self.ends) == 1:
            return self._take(0, rows)
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        which = np.searchsorted(self.ends, rows, side="right")
        for number in np.unique(which).tolist():
            mine = np.flatnonzero(which == number)
            out[mine] = self._take(number, rows[mine] - self._start(number))
        return out

    def _take(self, number: int, rows: np.ndarray) -> np.ndarray:
        part = self.part(number)
        with self._unchanged.reading(number, part.path):
            return part.take(rows)

    def where(self, row: int) -> str:
        """File and row, in words."""
        number = int(np.searchsorted(self.ends, row, side="right"))
        return f"{self.paths[number]}, row {row - self._start(number)}"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_recent")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._clear()


class Packed(NamedTuple):
    """Where arrays lie: their offsets, their rows, and whether they are stored column by column."""

    offsets: np.ndarray
    rows: np.ndarray
    fortran: np.ndarray


class Joining:
    """Takes in stored arrays one after the other and keeps their numbers."""

    def __init__(self) -> None:
        self._first: StoredArray | None = None
        self._offsets, self._rows, self._fortran = array("q"), array("q"), array("b")
        self._paths: list[str] = []
        self._unchanged = Unchanged()

    def add(self, part: StoredArray) -> None:
        """One more array, of the dtype and row shape of the first."""
        if self._first is None:
            self._first = part
        first = self._first
        if part.dtype != first.dtype or part.shape[1:] != first.shape[1:]:
            raise SchemaChanged(
                f"{part.path} holds rows of {part.dtype}{list(part.shape[1:])}, "
                f"{first.path} of {first.dtype}{list(first.shape[1:])}."
            )
        self._unchanged.check(len(self._rows), part.path)
        self._offsets.append(part.offset)
        self._rows.append(len(part))
        self._fortran.append(part.fortran)
        if len(self._paths) < shard_files.HELD:
            self._paths.append(part.path)

    def done(self, paths: Callable[[], Sequence[str]]) -> JoinedArrays:
        """All of them. `paths` tells theirs if there are more than are simply held."""
        if self._first is None:
            raise InvalidInput("There is no array to join.")
        held = self._paths if len(self._paths) == len(self._rows) else paths()
        packed = Packed(
            np.array(self._offsets, np.int64), np.array(self._rows, np.int64), np.array(self._fortran, np.bool_)
        )
        return JoinedArrays(self._first, held, packed, self._unchanged)


def joined_npy(paths: Sequence[str], on_error: OnError | None = None) -> JoinedArrays:
    """The arrays of `.npy` files, one after the other; damaged files go to `on_error`."""
    joining = Joining()
    kept = _each(paths, lambda path: joining.add(stored_npy(path)), on_error)
    return joining.done(lambda: paths if all(kept) else shard_files.pack(itertools.compress(paths, kept)))


def joined_npz(
    paths: Sequence[str], names: Sequence[str], cache: str | None = None, on_error: OnError | None = None
) -> dict[str, JoinedArrays]:
    """The named arrays of `.npz` files, one file after the other; damaged files go to `on_error`."""
    joinings = {name: Joining() for name in names}

    def add(path: str) -> None:
        for name, part in stored_npz(path, cache, names).items():
            joinings[name].add(part)

    kept = _each(paths, add, on_error)

    def lying(name: str) -> Sequence[str]:
        """Compressed members lie elsewhere, so that many archives are asked once more."""
        return shard_files.pack(stored_npz(path, cache, [name])[name].path for path in itertools.compress(paths, kept))

    return {name: joining.done(functools.partial(lying, name)) for name, joining in joinings.items()}


def _each(paths: Sequence[str], add: Callable[[str], None], on_error: OnError | None) -> bytearray:
    """Take in every file: which ones could be read, a byte each."""
    policy, kept = on_error or OnError(), bytearray(len(paths))
    for number, path in enumerate(paths):
        try:
            add(path)
            kept[number] = 1
        except BadData as error:
            policy.bad(error)
    if not any(kept):
        raise BadData(paths[0], f"none of {len(paths)} files could be read; the last error: {policy.last}")
    return kept


def stored_npy(path: str) -> StoredArray:
    """The array of a `.npy` file."""
    head = storage.read_range(path, 0, HEADER_NBYTES)
    return _whole(_described(path, head, 0))


def _whole(found: StoredArray) -> StoredArray:
    """The array, if its file is as long as it has to be."""
    need, have = found.offset + len(found) * found.row_nbytes, storage.file_size(found.path)
    if have < need:
        raise BadData(f"{found.path}, byte {have}", f"the file is cut short: {need} bytes are announced")
    return found


def _described(path: str, head: bytes, start: int, where: str = "") -> StoredArray:
    """What a header tells; `where` is what users call the place, if that is not the path."""
    where, others = where or path, " Name the arrays to read with features= and label=" if where else ""
    if head.startswith(b"PK"):
        raise BadData(path, "is an archive of arrays (.npz) where a single array (.npy) is wanted; read it for itself")
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError) as error:
        raise BadData(where, f"is not an array file of NumPy ({error})") from error
    if dtype.hasobject:
        told = "holds Python objects, which can only be loaded by running them; store plain arrays"
        raise BadData(where, told + (others and f".{others}"))
    if not shape:
        raise BadData(where, "holds a single value, which has no rows" + (others and f".{others}"))
    return StoredArray(path, start + stream.tell(), dtype, tuple(shape), fortran and len(shape) > 1)


def npz_names(path: str) -> list[str]:
    """Names of the arrays in a `.npz` file."""
    with _archive(path) as archive:
        return [member.filename.removesuffix(".npy") for member in archive.infolist()]


def stored_npz(path: str, cache: str | None = None, names: Sequence[str] | None = None) -> dict[str, StoredArray]:
    """The named arrays of a `.npz` file (else all). Compressed ones are unpacked once into a folder.

    Others may be what has no rows: single values and Python objects often lie beside arrays.
    """
    with _archive(path) as archive:
        there = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        for name in names or ():
            if name not in there:
                raise NotFound(f"{path} has no array {name!r}. There are: {', '.join(there)}.")
        return {name: _member(path, archive, there[name], cache) for name in (there if names is None else names)}


@contextmanager
def _archive(path: str) -> Iterator[zipfile.ZipFile]:
    """An archive that holds something, open; what is wrong with another."""
    try:
        with zipfile.ZipFile(storage.open_file(path)) as archive:
            if not archive.infolist():
                raise BadData(path, "is an archive without an array")
            yield archive
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
    ) as error:  # also: a method or password of another tool
        if storage.read_range(path, 0, 6) == b"\x93NUMPY":
            raise BadData(path, "is a single array (.npy) among archives (.npz); read it for itself") from error
        raise BadData(path, f"is not an archive of arrays ({error})") from error


def _member(path: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo, cache: str | None) -> StoredArray:
    if member.compress_type == zipfile.ZIP_STORED:
        return _stored_member(path, archive, member)
    return _unpacked_member(path, archive, member, cache)


def _stored_member(path: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> StoredArray:
    """An uncompressed member lies in the archive as it is: behind its local header."""
    local = storage.read_range(path, member.header_offset, 30)
    if len(local) < 30 or local[:4] != b"PK\x03\x04":
        raise BadData(f"{path}, byte {member.header_offset}", f"no header of member {member.filename!r}")
    name_nbytes, extra_nbytes = struct.unpack("<HH", local[26:30])
    start = member.header_offset + 30 + name_nbytes + extra_nbytes
    head = storage.read_range(path, start, min(HEADER_NBYTES, member.file_size))
    return _whole(_described(path, head, start, f"{path}, member {member.filename}"))


def _unpacked_member(path: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo, cache: str | None) -> StoredArray:
    """A compressed member has no row access: it is unpacked to a file beside others of its kind, once."""
    folder = os.path.join(cache_folder(), "npz") if cache is None else cache
    name = f"{os.path.basename(path)}-{storage.stamp(path)}-{member.CRC:08x}-{os.path.basename(member.filename)}"
    target = os.path.join(folder, name.replace(os.sep, "_"))
    if not os.path.exists(target):
        os.makedirs(folder, exist_ok=True)
        try:
            with archive.open(member) as source, written(target) as out:
                shutil.copyfileobj(cast(BinaryIO, source), out, 1 << 20)
        except (EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise BadData(f"{path}, member {member.filename}", f"cannot be unpacked ({error})") from error
    head = storage.read_range(target, 0, HEADER_NBYTES)
    return _whole(_described(target, head, 0, f"{path}, member {member.filename}"))
