"""Caches of remote bytes, and URLs that are read through one.

Covers: what a cache answers, `CachedUrl`, which carries its cache to every read of that file.
Does not cover: storing bytes (engine/cache/pages.py), reading from the store (sources/storage/remote.py).

A cache belongs to a dataset: two of one process may have different ones and be read at the same time, by threads of
their own. So it travels with the file's name, through every function and thread that the name is given to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self, runtime_checkable

Fetch = Callable[[str, int, int], bytes]
"""Asks the store: (url, offset, length) -> bytes, fewer where the file ends before."""


class ByteCache(Protocol):
    """Keeps bytes of remote files on this machine."""

    def info(self, url: str, ask: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """What the store says about a file."""

    def whole(self, url: str, fetch: Callable[[], bytes], limit_nbytes: int | None) -> bytes:
        """All bytes of a small file; more than the limit is not the whole file, so that it is not kept."""

    def kept_whole(self, url: str) -> bytes | None:
        """All bytes of a small file, if they are in the cache."""

    def has_range(self, url: str, tag: str, span: tuple[int, int]) -> bool:
        """Whether these bytes are in the cache."""

    def range(self, url: str, tag: str, span: tuple[int, int], fetch: Fetch) -> bytes:
        """Bytes `offset` to `offset + length` of the file with this tag; fewer where it ends before."""


class CachedUrl(str):
    """The URL of a file that is read through a cache. Pickled, it is a plain URL: a cache stays in its process."""

    __slots__ = ("cache",)
    cache: ByteCache

    def __new__(cls, url: str, cache: ByteCache) -> Self:
        made = super().__new__(cls, url)
        made.cache = cache
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def cache_of(url: str) -> ByteCache | None:
    """The cache that a file is read through."""
    return url.cache if isinstance(url, CachedUrl) else None


def below(url: str, *names: str) -> str:
    """A file below a folder, read through the folder's cache."""
    path, cache = "/".join((url, *names)), cache_of(url)
    return path if cache is None else CachedUrl(path, cache)


@runtime_checkable
class ReadsThrough(Protocol):
    """A source of files that may lie in a remote store."""

    def through(self, cache: ByteCache) -> Any:
        """The same source with files of its own, the remote ones read through a cache."""
