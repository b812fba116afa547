"""The members of tar files, and the samples they make.

Covers: headers (ustar, GNU long names, pax, sizes beyond 8 GB), walking plain and compressed files, grouping members
that share a key into samples, the index of a file's samples.
Does not cover: keeping indexes (sources/records/span_index.py), decoding members (source.py).

A sample is a run of neighbouring members with one key, so that it is a single stretch of the file: the index holds its
offset and length, and reading it is one read. Names are keys only; nothing is ever written to disk under them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Protocol

import numpy as np

from penstock.core.errors import BadData
from penstock.memory.giant import refuse_giant
from penstock.sources.records.span_index import entries, place
from penstock.sources.storage import files as storage
from penstock.sources.storage.inflate import PLAIN, pieces

BLOCK = 512

NOTE_NBYTES = 1 << 20
"""The longest name or pax header that is believed."""

OVERSIZED = 0xFFFFFFFF
"""Length of a sample that does not fit an index entry."""

BAD_HEADER, TRUNCATED = 1, 2

REGULAR = (b"0", b"\0", b"7")

BATCH = 4096

MEMBERS = 4096
"""Members of one sample that are held."""


@dataclass(frozen=True)
class Member:
    """A file inside a tar: where its first header and its data begin, and the data if it was asked for."""

    name: str
    header: int
    start: int
    size: int
    data: memoryview | bytes | None = None

    @property
    def key(self) -> tuple[str, str] | None:
        """Key and extension: the name up to the first dot after its folders, and what follows it."""
        folder, slash, name = self.name.rpartition("/")
        stem, dot, extension = name.partition(".")
        if not dot or not stem or (name.startswith("__") and name.endswith("__")):
            return None
        return folder + slash + stem, extension.lower()


class TarError(Exception):
    """The tar cannot be read on from `offset`."""

    def __init__(self, offset: int, code: int) -> None:
        self.offset, self.code = offset, code
        super().__init__(REASONS[code])


REASONS = {
    BAD_HEADER: "this is no tar header, or it does not match its checksum; the rest of the file cannot be read",
    TRUNCATED: "the file ends in the middle of a member",
}


class Reader(Protocol):
    """Bytes from a place on."""

    at: int

    def read(self, nbytes: int) -> bytes | memoryview: ...

    def skip(self, nbytes: int) -> bool:
        """Go on by so many bytes; False if the data ends before."""


class FileReader:
    """Reads headers of a plain file in windows, and jumps over the data."""

    WINDOW = 1 << 16

    def __init__(self, file: BinaryIO, nbytes: int) -> None:
        self.file, self.nbytes, self.at = file, nbytes, 0
        self._window, self._first = b"", 0

    def read(self, nbytes: int) -> bytes:
        inside = self.at - self._first
        if inside < 0 or inside + nbytes > len(self._window):
            self.file.seek(self.at)
            self._window, self._first, inside = self.file.read(max(self.WINDOW, nbytes)), self.at, 0
        data = self._window[inside : inside + nbytes]
        self.at += len(data)
        return data

    def skip(self, nbytes: int) -> bool:
        self.at += nbytes
        return self.at <= self.nbytes


class MemoryReader:
    """Reads a stretch that is in memory; what it reads are views."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = memoryview(data), 0

    def read(self, nbytes: int) -> memoryview:
        found = self.data[self.at : self.at + nbytes]
        self.at += len(found)
        return found

    def skip(self, nbytes: int) -> bool:
        self.at += nbytes
        return self.at <= len(self.data)


class StreamReader:
    """Reads a stream of pieces; what was skipped is never held."""

    def __init__(self, source: Iterator[bytes], path: str = "") -> None:
        self.source, self.path, self.at = source, path, 0
        self._pending = memoryview(b"")

    def read(self, nbytes: int) -> bytes:
        refuse_giant(nbytes, who=f"the member in {place(self.path, self.at)}")
        found = bytearray()
        while len(found) < nbytes:
            piece = self._piece(nbytes - len(found))
            if not piece:
                break
            found += piece
        return bytes(found)

    def skip(self, nbytes: int) -> bool:
        while nbytes:
            piece = self._piece(nbytes)
            if not piece:
                return False
            nbytes -= len(piece)
        return True

    def _piece(self, nbytes: int) -> memoryview:
        if not self._pending:
            self._pending = memoryview(next(self.source, b""))
        piece, self._pending = self._pending[:nbytes], self._pending[nbytes:]
        self.at += len(piece)
        return piece


def members(reader: Reader, *, nbytes: int | None = None, longest: int | None = None) -> Iterator[Member]:
    """The regular files of a tar. `nbytes` is its length if known; data up to `longest` is read along, if given."""
    name, size = "", -1
    first = reader.at
    while True:
        here = reader.at
        head = bytes(reader.read(BLOCK))
        if not head or head == bytes(BLOCK):
            return
        if len(head) < BLOCK:
            raise TarError(here, TRUNCATED)
        kind, length = _header(head, here)
        noted = kind in (b"L", b"x", b"K", b"g")
        if noted:
            name, size = _note(reader, kind, length, here, (name, size))
            continue
        actual = size if size >= 0 else length
        start = reader.at
        if nbytes is not None and start + actual > nbytes:
            raise TarError(first, TRUNCATED)
        data: bytes | memoryview | None = None
        if longest is not None and actual <= longest and kind in REGULAR:
            data = reader.read(actual)
            if len(data) < actual:
                raise TarError(first, TRUNCATED)
        elif not reader.skip(actual):
            raise TarError(first, TRUNCATED)
        if kind in REGULAR:
            yield Member(name or _name(head), first, start, actual, data)
        reader.skip(-actual % BLOCK)  # the last member's padding may be missing
        first, name, size = reader.at, "", -1


def _header(head: bytes, offset: int) -> tuple[bytes, int]:
    """Type and size of a member. The checksum counts its own field as spaces."""
    try:
        stored = int(head[148:156].strip(b"\0 ") or b"0", 8)
    except ValueError:
        raise TarError(offset, BAD_HEADER) from None
    if stored != sum(head) - sum(head[148:156]) + 8 * 32:
        raise TarError(offset, BAD_HEADER)
    field = head[124:136]
    try:
        size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else int(field.strip(b"\0 ") or b"0", 8)
    except ValueError:
        raise TarError(offset, BAD_HEADER) from None
    kind = head[156:157]
    # Links, devices and folders have no data, whatever their size field says.
    if size < 0 or size > 1 << 62:
        raise TarError(offset, BAD_HEADER)
    return kind, 0 if kind in (b"1", b"2", b"3", b"4", b"5", b"6") else size


def _name(head: bytes) -> str:
    name = head[:100].split(b"\0", 1)[0]
    prefix = head[345:500].split(b"\0", 1)[0] if head[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "surrogateescape")


def _note(reader: Reader, kind: bytes, length: int, offset: int, known: tuple[str, int]) -> tuple[str, int]:
    """What an extra header says of the next member: its name and its size."""
    if length > NOTE_NBYTES:
        raise TarError(offset, BAD_HEADER)
    data = bytes(reader.read(length))
    if len(data) < length or not reader.skip(-length % BLOCK):
        raise TarError(offset, TRUNCATED)
    name, size = known
    if kind == b"L":
        return data.split(b"\0", 1)[0].decode("utf-8", "surrogateescape"), size
    if kind == b"x":
        found = _pax(data, offset)
        name = found.get(b"path", b"").decode("utf-8", "surrogateescape") or name
        digits = found.get(b"size", b"")
        if (digits and not digits.isdigit()) or len(digits) > 18:
            raise TarError(offset, BAD_HEADER)
        size = int(digits) if digits else size
    return name, size


def _pax(data: bytes, offset: int) -> dict[bytes, bytes]:
    """The records of a pax header: "length key=value" and a newline each."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data) and data[at]:
        digits, space, _ = data[at : at + 20].partition(b" ")
        if not space or not digits.isdigit() or not len(digits) + 2 < int(digits) <= len(data) - at:
            raise TarError(offset, BAD_HEADER)
        record = data[at + len(digits) + 1 : at + int(digits) - 1]
        key, _, value = record.partition(b"=")
        found[key] = value
        at += int(digits)
    return found


class Intact:
    """Members up to the damage, which is kept for later: the samples before it can be read."""

    def __init__(self, found: Iterator[Member]) -> None:
        self._found = found
        self.damage: TarError | None = None

    def __iter__(self) -> Iterator[Member]:
        try:
            yield from self._found
        except TarError as damage:
            self.damage = damage


def grouped(found: Iterable[Member], longest: int = OVERSIZED) -> Iterator[tuple[str, list[Member]]]:
    """Samples: neighbouring members of one key. Members without an extension are passed over.

    Of a sample of more than `longest` bytes or 4096 members only the outline is held: members without data.
    """
    key: str | None = None
    group: list[Member] = []
    total = 0
    for member in found:
        split = member.key
        if split is None:
            continue
        if split[0] != key and group and key is not None:
            yield key, group
            group, total = [], 0
        key = split[0]
        total += member.size
        if total > longest or len(group) >= MEMBERS:
            # The first member's header tells where the sample begins, the last one where it ends.
            group = [replace(m, data=None) for m in (group[:1] or [member])] + [replace(member, data=None)]
        else:
            group.append(member)
    if group and key is not None:
        yield key, group


@dataclass(frozen=True)
class SampleWalk:
    """Walks plain tar files for their samples."""

    @property
    def key(self) -> str:
        return "tar"

    def reason(self, code: int) -> str:
        return REASONS[code]

    def spans(self, path: str) -> Iterator[np.ndarray]:
        """The samples of a file. Headers are read, data is jumped over."""
        nbytes = storage.file_size(path)
        found: list[tuple[int, int]] = []
        code = 0
        with storage.open_file(path) as file:
            reader = FileReader(file, nbytes)
            walk = Intact(members(reader, nbytes=nbytes))
            for _, group in grouped(walk):
                last = group[-1]
                found.append((group[0].header, min(last.start + last.size - group[0].header, OVERSIZED)))
                if len(found) == BATCH:
                    yield _packed(found)
                    found = []
            end = reader.at
            if walk.damage is not None:
                end, code = walk.damage.offset, walk.damage.code
        yield _packed(found)
        yield _packed([(end, code)])


def _packed(found: Sequence[tuple[int, int]]) -> np.ndarray:
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return entries(pairs[:, 0], pairs[:, 1])


def stream_samples(path: str, compression: str, longest: int) -> Iterator[tuple[str, list[Member]]]:
    """The samples of a file read from its start, with the data of members up to `longest` bytes."""
    source = pieces(path, compression)
    words = "" if compression == PLAIN else " of the inflated data"
    try:
        walk = Intact(members(StreamReader(source, path), longest=longest))
        yield from grouped(walk, longest)
        if walk.damage is not None:
            raise BadData(place(path, walk.damage.offset) + words, REASONS[walk.damage.code])
    finally:
        source.close()  # type: ignore[attr-defined]
