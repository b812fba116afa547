"""Who keeps the bytes that are read from remote stores, for the reads made here and now.

Covers: the one variable by which a cache of bytes stands between a source and its store.
Does not cover: keeping (engine/cache/pages.py), asking the store (sources/storage/remote.py).

It is a context variable: two datasets of one process may have different caches, and their reads run side by side. A
thread that is started to read for another has to be given the context of that other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

Fetch = Callable[[str, int, int], bytes]
"""Asks the store: (url, offset, length) -> bytes, fewer where the file ends before."""


class ByteCache(Protocol):
    """Remote bytes by way of local ones."""

    def info(self, url: str, ask: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """What the store says about a file."""

    def whole(self, url: str, fetch: Callable[[], bytes], limit_nbytes: int | None) -> bytes:
        """All bytes of a small file; more than the limit is not the whole file, so that it is not kept."""

    def kept_whole(self, url: str) -> bytes | None:
        """All bytes of a small file that need not be asked for."""

    def has_range(self, url: str, tag: str, span: tuple[int, int]) -> bool:
        """Whether these bytes need not be asked for."""

    def range(self, url: str, tag: str, span: tuple[int, int], fetch: Fetch) -> bytes:
        """Bytes `offset` to `offset + length` of the file with this tag; fewer where it ends before."""


current_cache: ContextVar[ByteCache | None] = ContextVar("penstock_byte_cache", default=None)


@contextmanager
def cached_by(cache: ByteCache | None) -> Iterator[None]:
    """Remote reads of this block go by way of `cache`."""
    token = current_cache.set(cache)
    try:
        yield
    finally:
        current_cache.reset(token)
