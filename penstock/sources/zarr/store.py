"""A Zarr store over the paths that all readers understand, read only.

Covers: keys of a store as files below a folder or a URL, with the retries and the byte cache that other readers have.
Does not cover: arrays (source.py), zip archives.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from typing import Any

from penstock.core.byte_cache import below
from penstock.core.errors import DataError, InvalidInput, MissingExtra, NotFound
from penstock.sources.storage import files as storage
from penstock.sources.storage import remote

try:
    from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
except ImportError as error:
    raise MissingExtra(what="read_zarr", extra="hdf5") from error


class ReadOnlyStore(Store):
    """Files below `root`. What is not there is not there: Zarr takes the fill value then."""

    supports_writes = False
    supports_deletes = False
    supports_listing = True

    def __init__(self, root: str) -> None:
        super().__init__(read_only=True)
        self.root = root.rstrip("/") if root.endswith("/") else root

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadOnlyStore) and other.root == self.root

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"ReadOnlyStore({self.root!r})"

    def _path(self, key: str) -> str:
        if ".." in key.split("/"):
            raise DataError(f"{self.root} asks for {key!r}, which lies outside of it.")
        return below(self.root, key) if key else self.root

    def _read(self, key: str, part: Any) -> bytes | None:
        path = self._path(key)
        try:
            if part is None:
                return storage.read_file(path)
            if isinstance(part, RangeByteRequest):
                return storage.read_range(path, part.start, part.end - part.start)
            nbytes = storage.file_size(path)
            start = part.offset if isinstance(part, OffsetByteRequest) else max(0, nbytes - _suffix(part))
            return storage.read_range(path, start, max(0, nbytes - start))
        except NotFound:
            return None

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """The bytes of a key, or None."""
        from zarr.core.buffer import default_buffer_prototype

        data = await asyncio.to_thread(self._read, key, byte_range)
        return None if data is None else (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> list[Any]:
        """Several stretches of several keys."""
        return list(await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Whether there is such a file."""
        try:
            await asyncio.to_thread(storage.file_size, self._path(key))
        except NotFound:
            return False
        return True

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names right below a folder."""
        for name in await asyncio.to_thread(self._names, prefix.rstrip("/")):
            yield name

    def _names(self, prefix: str) -> list[str]:
        path = self._path(prefix)
        if storage.is_remote(path):
            fs, inside = remote.filesystem(path)
            found = remote.retried(path, lambda: fs.ls(inside, detail=False))
            return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)
        try:
            return sorted(os.listdir(storage.local_path(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """All keys below a folder."""
        for name in await asyncio.to_thread(self._names, prefix.rstrip("/")):
            key = f"{prefix.rstrip('/')}/{name}".lstrip("/")
            if await self.exists(key):
                yield key
            else:
                async for inner in self.list_prefix(key):
                    yield inner

    async def list(self) -> AsyncIterator[str]:
        """All keys."""
        async for key in self.list_prefix(""):
            yield key

    async def set(self, key: str, value: Any) -> None:
        raise InvalidInput(f"{self.root} is opened for reading.")

    async def delete(self, key: str) -> None:
        raise InvalidInput(f"{self.root} is opened for reading.")


def _suffix(part: Any) -> int:
    return int(part.suffix) if isinstance(part, SuffixByteRequest) else 0
