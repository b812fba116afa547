"""The cache that reads of remote files go through in the current context.

Covers: the context variable that puts a cache between a source and its store.
Does not cover: storing bytes (engine/cache/pages.py), reading from the store (sources/storage/remote.py).

A context variable, because two datasets of one process may have different caches and be read at the same time. A
thread that reads on behalf of another needs that thread's context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

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


current_cache: ContextVar[ByteCache | None] = ContextVar("penstock_byte_cache", default=None)


@contextmanager
def cached_by(cache: ByteCache | None) -> Iterator[None]:
    """Remote reads inside the block go through `cache`."""
    token = current_cache.set(cache)
    try:
        yield
    finally:
        current_cache.reset(token)
