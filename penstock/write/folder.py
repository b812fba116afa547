"""Where shards go: a local folder, or one in a remote store.

Covers: files that appear complete or not at all, reading them back, keeping a second writer away.
Does not cover: what is in them (formats.py), when they are cut (run.py).

A remote store takes whole files: a shard is written to a temporary file here and sent when it is complete, so one shard
of local disk is needed. Stores have no locks: two writers to one remote folder are not noticed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from penstock.core.durable import replace_durably
from penstock.core.errors import InvalidInput, NotFound
from penstock.sources.storage import files as storage
from penstock.sources.storage import remote

_PARTIAL = ".partial-shard"


class Destination(Protocol):
    """What a writer needs of its destination."""

    def taken(self) -> contextlib.AbstractContextManager[str]:
        """Keep others out; yields the path of the local file in which the present shard is written."""

    def path(self, name: str) -> str:
        """A file as readers name it."""

    def read(self, name: str) -> bytes | None:
        """A small file; None if there is none."""

    def save(self, name: str, data: bytes) -> None:
        """Write a small file, all of it or nothing."""

    def publish(self, partial: str, name: str) -> None:
        """Give a complete local file its name."""

    def open(self, name: str) -> BinaryIO: ...

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""


def folder_of(path: storage.PathLike) -> Destination:
    """The destination that a path or URL names."""
    if not storage.is_remote(path):
        return LocalFolder(storage.local_path(path))
    url = os.fspath(path).rstrip("/")
    if url.startswith(("http://", "https://")):
        raise InvalidInput(f"write: {url!r} can only be read. Write to a folder or to a store such as s3:// or gs://.")
    return RemoteFolder(url)


class LocalFolder:
    """A folder on a file system."""

    def __init__(self, path: str) -> None:
        self._path = path

    @contextlib.contextmanager
    def taken(self) -> Iterator[str]:
        os.makedirs(self._path, exist_ok=True)
        lock = os.open(self.path("_lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InvalidInput(f"write: another process is writing to {self._path!r}.") from error
            yield self.path(_PARTIAL)
        finally:
            os.close(lock)

    def path(self, name: str) -> str:
        return os.path.join(self._path, name)

    def read(self, name: str) -> bytes | None:
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def save(self, name: str, data: bytes) -> None:
        with open(f"{self.path(name)}.new", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        replace_durably(f"{self.path(name)}.new", self.path(name))

    def publish(self, partial: str, name: str) -> None:
        replace_durably(partial, self.path(name))

    def open(self, name: str) -> BinaryIO:
        return open(self.path(name), "rb")

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))


class RemoteFolder:
    """A prefix in a store that fsspec can write to. Files there appear whole by themselves."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextlib.contextmanager
    def taken(self) -> Iterator[str]:
        here = tempfile.mkdtemp(prefix="penstock-write-")
        try:
            yield os.path.join(here, _PARTIAL)
        finally:
            shutil.rmtree(here, ignore_errors=True)

    def path(self, name: str) -> str:
        return f"{self._url}/{name}"

    def read(self, name: str) -> bytes | None:
        try:
            return storage.read_file(self.path(name))
        except (NotFound, FileNotFoundError):
            return None

    def save(self, name: str, data: bytes) -> None:
        url = self.path(name)
        fs, path = remote.filesystem(url)
        remote.retried(url, lambda: self._possible(lambda: fs.pipe_file(path, data)))

    def publish(self, partial: str, name: str) -> None:
        url = self.path(name)
        fs, path = remote.filesystem(url)
        remote.retried(url, lambda: self._possible(lambda: fs.put_file(partial, path)))
        os.unlink(partial)

    def _possible(self, send: object) -> None:
        try:
            send()  # type: ignore[operator]
        except NotImplementedError as error:
            raise InvalidInput(f"write: the store of {self._url!r} can only be read.") from error

    def open(self, name: str) -> BinaryIO:
        return storage.open_file(self.path(name))

    def remove(self, name: str) -> None:
        url = self.path(name)
        fs, path = remote.filesystem(url)
        with contextlib.suppress(NotFound, FileNotFoundError):
            remote.retried(url, lambda: fs.rm_file(path))
