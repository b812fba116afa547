"""One way to read files, local or remote.

Covers: whole reads, ranged reads, file objects and stamps, for plain paths and URLs alike.
Does not cover: finding files (sources/listing/), remote stores and retrying (remote.py).

Every function takes a path as `expand` returns it: a local path, or a URL with a scheme. All are thread safe.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, cast
from urllib.parse import unquote

from penstock.core.byte_cache import ByteCache, CachedUrl
from penstock.core.errors import BadData, DataError, InvalidInput, NotFound
from penstock.core.sizes import size
from penstock.memory.giant import LEAST_NBYTES, refuse_giant
from penstock.sources.listing import shard_files
from penstock.sources.listing.packed_names import PathIndex
from penstock.sources.listing.shared import listed_once
from penstock.sources.listing.sorter import chunks
from penstock.sources.storage import remote, remote_file

_PROBES = 6
"""Ranges of a read that are looked for in memory, before the kernel is asked for all of them."""

MAX_OPEN = 64
"""Shard files kept open for ranged reads."""

MERGE_GAP = 64 * 1024
"""Two ranges nearer than this are read as one: over a network, 64 KB cost less than a request."""

MERGE_NBYTES = 16 * 1024 * 1024
"""A merged read grows no larger than this, so that merging does not decide how much memory is held."""

PathLike = str | os.PathLike[str]
Paths = PathLike | Sequence[PathLike]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*(::[^:]*)*://")


def is_remote(path: PathLike) -> bool:
    """Whether a path is a URL that goes through fsspec (`file://` is local)."""
    text = os.fspath(path)
    return _SCHEME.match(text) is not None and not text.startswith("file://")


def any_remote(paths: Iterable[str]) -> bool:
    """Whether one of the files has to be fetched from a store."""
    return any(map(is_remote, paths))


def local_path(path: PathLike) -> str:
    """A plain path out of `~/x`, `file:///x` or a path object."""
    text = os.fspath(path)
    if text.startswith("file://"):
        return unquote(text[len("file://") :])
    return os.path.expanduser(text) if text.startswith("~") else text


def through(paths: Sequence[str], cache: ByteCache) -> Sequence[str]:
    """The same paths, files of remote stores to be read through a cache."""
    if isinstance(paths, PathIndex):
        return paths.through(cache)
    return [CachedUrl(path, cache) if is_remote(path) else path for path in paths]


def expand(paths: Paths | Iterable[PathLike], *, suffixes: tuple[str, ...] | None = None) -> Sequence[str]:
    """Turn a path, glob, folder, URL or a list of them into file paths; globs and folders come out sorted.

    Folders are walked whole; names starting with "." or "_" in them are left out, and so is everything that does not
    end in one of `suffixes`. Files that were named or matched by a glob are taken whatever their suffix. Many names
    are not held: the sequence is then a mapped index.
    """
    if not isinstance(paths, (str, os.PathLike, Iterable)):
        raise InvalidInput(f"A path, glob, folder or a list of them is needed, not {paths!r}.")
    if not isinstance(paths, (str, os.PathLike)):
        return shard_files.pack(found(paths, suffixes))
    if is_remote(paths):
        names = chunks(found([paths], suffixes), shard_files.FEW)
        shared = listed_once(f"{os.fspath(paths)} {suffixes}", lambda writer: shard_files.write(writer, names))
        if shared is not None:
            return shared
    return shard_files.pack(found([paths], suffixes))


def found(entries: Iterable[PathLike], suffixes: tuple[str, ...] | None = None) -> Iterator[str]:
    """As `expand`, one after the other, for callers that keep the names themselves."""
    for entry in entries:
        if not isinstance(entry, (str, os.PathLike)):
            raise InvalidInput(f"A path must be text or a path object, not {type(entry).__name__}.")
        text = os.fspath(entry)
        yield from (
            shard_files.remote_files(text, suffixes)
            if is_remote(text)
            else shard_files.local_files(local_path(text), suffixes)
        )


def file_size(path: str) -> int:
    """Bytes of a file."""
    if is_remote(path):
        return remote.file_size(path)
    with explained(path):
        return os.stat(local_path(path)).st_size


def stamp(path: str) -> str:
    """A cheap identity that changes when the file does: size and time, or a remote store's tag."""
    if is_remote(path):
        return remote.stamp(path)
    with explained(path):
        status = os.stat(local_path(path))
    return f"{status.st_size}-{status.st_mtime_ns}"


def read_file(path: str, *, limit_nbytes: int | None = None) -> bytes:
    """All bytes of a file, without keeping it open: for many small files. BadData if there are more than the limit."""
    if is_remote(path):
        data = remote.read_file(path, limit_nbytes)
        _within(path, len(data), limit_nbytes)
        return data
    with explained(path):
        handle = os.open(local_path(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            nbytes = os.fstat(handle).st_size
            _within(path, nbytes, limit_nbytes)
            return _pread(handle, nbytes, 0)
        finally:
            os.close(handle)


def read_files(paths: Sequence[str], *, limit_nbytes: int | None = None) -> list[bytes | DataError]:
    """Several small files, remote ones in parallel. One that is missing or too large stands there as its error."""

    def read(path: str) -> bytes | DataError:
        try:
            return read_file(path, limit_nbytes=limit_nbytes)
        except (NotFound, BadData) as error:
            return error

    if not paths or not is_remote(paths[0]):
        return [read(path) for path in paths]
    kept = dict(zip(paths, remote.kept_files(paths), strict=True))
    others = [path for path in paths if (data := kept[path]) is None or len(data) > (limit_nbytes or len(data))]
    found = dict(zip(others, remote.in_parallel(read, others) if others else [], strict=True))
    return [found[path] if path in found else cast(bytes, kept[path]) for path in paths]


def _within(path: str, nbytes: int, limit_nbytes: int | None) -> None:
    if limit_nbytes is not None and nbytes > limit_nbytes:
        raise BadData(path, f"the file has more than the {size(limit_nbytes)} that are read at once")


def read_range(path: str, offset: int, length: int) -> bytes:
    """Bytes `offset` to `offset + length` of a file; fewer where it ends before."""
    if offset < 0 or length < 0:
        raise InvalidInput(f"Cannot read {length} bytes at {offset} of {path}: both must be 0 or more.")
    if is_remote(path):
        return remote.read_range(path, offset, length)
    with explained(path), _open_files.use(local_path(path)) as handle:
        if length > LEAST_NBYTES:
            refuse_giant(min(length, os.fstat(handle).st_size - offset), who=f"reading {path} at {offset}")
        return _pread(handle, length, offset)


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Several `(offset, length)` ranges of one file, near ones in one read, remote ones in parallel."""
    if len(ranges) == 1:
        return [read_range(path, *ranges[0])]
    groups = merge_ranges(ranges)
    spans = [(start, stop - start) for start, stop, _ in groups]
    if is_remote(path):
        pieces = remote.read_many(path, spans)
    else:
        _advise(path, spans)
        pieces = [read_range(path, *span) for span in spans]
    out = [b""] * len(ranges)
    for (start, _, members), piece in zip(groups, pieces, strict=True):
        for i in members:
            offset, length = ranges[i]
            # A slice of the whole of a bytes object is the object itself: a range read alone is not copied.
            out[i] = piece[offset - start : offset - start + length]
    return out


def each_range(path: str, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """As `read_ranges`, those of a local file one after the other: nobody has to keep what was read before."""
    if is_remote(path):
        yield from read_ranges(path, ranges)
        return
    _advise(path, ranges)
    with explained(path), _open_files.use(local_path(path)) as handle:
        for offset, length in ranges:
            yield _pread(handle, length, offset)


def merge_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int, list[int]]]:
    """Group ranges into `(start, stop, members)` reads so that near or overlapping ones share a read."""
    groups: list[tuple[int, int, list[int]]] = []
    for i in sorted(range(len(ranges)), key=lambda i: ranges[i]):
        offset, length = ranges[i]
        end = offset + length
        if groups:
            start, stop, members = groups[-1]
            if offset <= stop + MERGE_GAP and (max(stop, end) - start <= MERGE_NBYTES or end <= stop):
                groups[-1] = (start, max(stop, end), [*members, i])
                continue
        groups.append((offset, end, [i]))
    return groups


def open_file(path: str) -> BinaryIO:
    """A seekable binary file, local or remote; remote ones read ahead once they are read in sequence."""
    if is_remote(path):
        return remote_file.open_file(path)
    with explained(path):
        return cast(BinaryIO, open(local_path(path), "rb"))


def close_files() -> None:
    """Close the local files kept open for ranged reads and forget remote connections."""
    _open_files.close()
    remote.close()


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn the operating system's errors into ours, which name the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{path!r} does not exist.") from error
    except PermissionError as error:
        raise NotFound(f"{path!r} cannot be read: permission denied.") from error
    except IsADirectoryError as error:
        raise NotFound(f"{path!r} is a folder, not a file.") from error
    except OSError as error:
        raise DataError(f"{path!r} cannot be read: {error.strerror or error}.") from error


def _pread(handle: int, length: int, offset: int) -> bytes:
    """pread until `length` bytes or the end: one call may return less (2 GB limit, signals, network mounts)."""
    data = os.pread(handle, min(length, 1 << 30), offset)
    if len(data) == length or not data:
        return data
    pieces = [data]
    done = len(data)
    while done < length:
        data = os.pread(handle, min(length - done, 1 << 30), offset + done)
        if not data:
            break
        pieces.append(data)
        done += len(data)
    return b"".join(pieces)


def _advise(path: str, spans: Sequence[tuple[int, int]]) -> None:
    """Ask the kernel for all ranges at once, so that a disk works on them together."""
    with explained(path), _open_files.use(local_path(path)) as handle:
        if _in_memory(handle, [offset for offset, _ in spans[:: 1 + len(spans) // _PROBES]]):
            return  # asking would take a tenth of the time of reading
        for offset, length in spans:
            os.posix_fadvise(handle, offset, length, os.POSIX_FADV_WILLNEED)


def _in_memory(handle: int, offsets: Sequence[int]) -> bool:
    """Whether bytes at all of these places can be read without waiting for a disk; False if nobody can say."""
    byte = bytearray(1)
    try:
        for offset in offsets:
            os.preadv(handle, [byte], offset, os.RWF_NOWAIT)
    except OSError:
        return False
    return True


class _Handle:
    """An open file, the number of readers in it, and which file it is."""

    __slots__ = ("fd", "identity", "users", "wanted")

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self.fd)
        self.identity = (status.st_dev, status.st_ino)
        self.users = 0
        self.wanted = True


class OpenFiles:
    """A bounded set of open files, least recently used out first; a file being read is closed by its last reader."""

    def __init__(self, limit: int = MAX_OPEN) -> None:
        self.limit = limit
        self._handles: OrderedDict[str, _Handle] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._handles)

    @contextmanager
    def use(self, path: str) -> Iterator[int]:
        """The file's descriptor, good for `os.pread` within the block."""
        handle = self._acquire(path)
        try:
            yield handle.fd
        finally:
            with self._lock:
                handle.users -= 1
                self._close_unused(handle)

    def _acquire(self, path: str) -> _Handle:
        # One stat a read (about 1 us) so that a file replaced under its name is not read from its old copy.
        status = os.stat(path)
        with self._lock:
            handle = self._handles.get(path)
            if handle is not None and handle.identity != (status.st_dev, status.st_ino):
                self._drop(path)
                handle = None
            if handle is None:
                handle = self._handles[path] = _Handle(path)
            self._handles.move_to_end(path)
            handle.users += 1
            while len(self._handles) > self.limit:
                self._drop(next(iter(self._handles)))
        return handle

    def _drop(self, path: str) -> None:
        handle = self._handles.pop(path)
        handle.wanted = False
        self._close_unused(handle)

    @staticmethod
    def _close_unused(handle: _Handle) -> None:
        if not handle.wanted and handle.users == 0:
            os.close(handle.fd)

    def close(self) -> None:
        """Close every file that nobody reads at the moment; the others close when their reader is done."""
        with self._lock:
            for path in list(self._handles):
                self._drop(path)

    def after_fork(self) -> None:
        """In a forked child: readers of the parent do not exist here, nor does the thread that held the lock."""
        self._lock = threading.Lock()
        for handle in self._handles.values():
            os.close(handle.fd)
        self._handles = OrderedDict()


_open_files = OpenFiles()
os.register_at_fork(after_in_child=_open_files.after_fork)
