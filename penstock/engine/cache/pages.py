"""Bytes of remote files kept on local disk, in pages.

Covers: which pages a read needs, fetching the missing ones in few requests, whole small files, and what a store said
about a file.
Does not cover: how pages are kept and limited (unit_store.py, cache_folder.py), whose reads go this way
(remote_bytes.py), requests and retries (sources/storage/remote.py).

Files that are read in parts are kept under their URL and the store's tag of their contents, so that a file that was
replaced is read anew by the next process. Files that are read whole (images) are kept under their URL alone: asking
for the tag would cost a request for each.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from penstock.core.byte_cache import Fetch
from penstock.core.events import events
from penstock.engine.cache.folder import CacheFolder, Entry
from penstock.engine.cache.unit_store import FileUnits

PAGE_NBYTES = 1 << 20
"""Large enough that 50 GB are 50,000 files, small enough that reading a header fetches no more than it takes to ask."""

RUN_PAGES = 8
"""Missing neighbours that are fetched with one request: what is held beside the result is bounded by it."""

PARALLEL = 16
"""Ranges of one fetch that are read together (sources/storage/remote.py)."""

KNOWN_FILES = 10_000
"""Files of which it is remembered what the store said."""


def held_nbytes(nbytes: int, reads: int = 1) -> int:
    """Bytes that reads of so many in all hold beside their result: the pages that they touch, or a run for each."""
    at_once = min(reads, PARALLEL)
    return min(nbytes + 2 * at_once * PAGE_NBYTES, max(RUN_PAGES, at_once) * PAGE_NBYTES)


class Pages:
    """Remote bytes by way of a folder. Nothing is opened before something remote is read."""

    def __init__(self, folder: str, limit: int | None) -> None:
        self._folder, self._limit = folder, limit
        self._stores: dict[str, FileUnits | None] = {}
        self._known: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def _store_of(self, url: str) -> FileUnits | None:
        """The entry of the URL's bucket or host; None if the folder cannot be used."""
        head = "/".join(url.split("/", 3)[:3])
        found = self._stores.get(head)
        if found is not None:
            return found
        with self._lock:
            if head not in self._stores:
                self._stores[head] = self._opened(head)
            return self._stores[head]

    def _opened(self, head: str) -> FileUnits | None:
        key = f"bytes-{hashlib.blake2b(head.encode(), digest_size=12).hexdigest()}"
        try:
            return FileUnits(Entry(CacheFolder(self._folder, self._limit), key, f"bytes of {head}"))
        except OSError as error:
            events.emit("cache.unusable", head, folder=self._folder, reason=error.strerror or str(error))
            return None

    def close(self) -> None:
        """Let go of the folder; what is kept stays."""
        with self._lock:
            stores, self._stores = self._stores, {}
        for store in stores.values():
            if store is not None:
                store.close()

    def info(self, url: str, ask: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """What the store says about a file, asked once a process."""
        with self._lock:
            found = self._known.get(url)
        if found is None:
            found = ask(url)
            with self._lock:
                self._known[url] = found
                while len(self._known) > KNOWN_FILES:
                    self._known.popitem(last=False)
        return found

    def whole(self, url: str, fetch: Callable[[], bytes], limit_nbytes: int | None) -> bytes:
        """All bytes of a small file. More than the limit is not the whole file, so that it is not kept."""
        kept = self.kept_whole(url)
        if kept is None:
            store = self._store_of(url)
            if store is None:
                return fetch()
            with store.entry.fetching([_number(url, "whole", 0)]):
                kept = self.kept_whole(url)
                if kept is None:
                    kept = fetch()
                    if limit_nbytes is None or len(kept) <= limit_nbytes:
                        _keep(store, _number(url, "whole", 0), kept)
        return kept

    def kept_whole(self, url: str) -> bytes | None:
        """All bytes of a small file, if it is there and sound."""
        store = self._store_of(url)
        return None if store is None else _kept(store, _number(url, "whole", 0))

    def has_range(self, url: str, tag: str, span: tuple[int, int]) -> bool:
        """Whether all pages of a read are there, sound or not."""
        store, (offset, length) = self._store_of(url), span
        pages = range(offset // PAGE_NBYTES, (offset + max(1, length) - 1) // PAGE_NBYTES + 1)
        return store is not None and all(store.has(_number(url, tag, page)) for page in pages)

    def range(self, url: str, tag: str, span: tuple[int, int], fetch: Fetch) -> bytes:
        """Bytes `offset` to `offset + length` of a file; fewer where it ends before."""
        store, (offset, length) = self._store_of(url), span
        if store is None or length <= 0:
            return fetch(url, offset, length)
        out = io.BytesIO()  # its value is taken without a copy, so that a read holds its result once
        page, last = offset // PAGE_NBYTES, (offset + length - 1) // PAGE_NBYTES
        while page <= last:
            data, count = _kept(store, _number(url, tag, page)), 1
            if data is None:
                data, count = _fetched(store, (url, tag), page, last, fetch)
            base = page * PAGE_NBYTES
            out.write(memoryview(data)[max(0, offset - base) : max(0, offset + length - base)])
            if len(data) < count * PAGE_NBYTES:  # the end of the file
                break
            page += count
        return out.getvalue()


def _fetched(store: FileUnits, file: tuple[str, str], page: int, last: int, fetch: Fetch) -> tuple[bytes, int]:
    """A page that is missing and its missing neighbours up to `last`, and how many; all of them are kept.

    Of several ranks that want the same bytes, one asks the store for them.
    """
    url, tag = file
    numbers = [_number(url, tag, p) for p in range(page, min(last + 1, page + RUN_PAGES))]
    with store.entry.fetching(numbers):
        data = _kept(store, numbers[0])
        if data is not None:
            return data, 1
        count = 1
        while count < len(numbers) and not store.has(numbers[count]):
            count += 1
        data = fetch(url, page * PAGE_NBYTES, count * PAGE_NBYTES)
        for i in range(min(count, len(data) // PAGE_NBYTES + 1)):  # up to the one in which the file ends
            _keep(store, numbers[i], data[i * PAGE_NBYTES : (i + 1) * PAGE_NBYTES])
    return data, count


def _number(url: str, tag: str, page: int) -> int:
    digest = hashlib.blake2b(f"{url}\0{tag}\0{page}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _kept(store: FileUnits, number: int) -> bytes | None:
    """A page, if it is there and sound."""
    frames = store.read(number, 0)
    data: bytes | None = None
    while True:
        try:
            data = next(frames)
        except StopIteration as end:
            return data if end.value else None


def _keep(store: FileUnits, number: int, data: bytes) -> None:
    writer = store.writer(number)
    if writer is None:
        return
    try:
        if writer.add(data):
            writer.commit()
    finally:
        writer.abandon()
