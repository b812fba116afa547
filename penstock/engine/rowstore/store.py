"""The row store of a source: found where an earlier run or another rank left it, or filled now.

Covers: naming, waiting for another process that fills it, the limit of all stores together.
Does not cover: files (log.py), filling (fill.py), when a shuffle wants a store (engine/arrange.py).
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.errors import DiskTooSmall, Stopped
from penstock.core.sizes import parse_size
from penstock.core.source import UnitSource
from penstock.core.user.folder import user_folder
from penstock.engine.cache.folder import CacheFolder, Entry
from penstock.engine.cache.key import cache_key
from penstock.engine.cache.source import CachedUnits
from penstock.engine.rowstore.fill import fill
from penstock.engine.rowstore.log import RunReader, RunWriter, finished
from penstock.engine.rowstore.source import StoredRows
from penstock.engine.streams.stream import Context

LIMIT_NAME = "PENSTOCK_CACHE_LIMIT"
"""The environment variable that says how many bytes the row stores in the user's cache folder may take."""

_POLL_S = 0.1
_FORMAT = 2
"""Raised when files of an earlier version cannot be read any more; those are evicted like any store."""

_ONCE = "once-"
"""How the names of stores for one process begin."""

_THIS_PROCESS = f"{os.getpid()}-{time.time_ns()}"
_held: dict[str, Entry] = {}
"""Stores that live as long as this process: held open, so that no other process takes them for abandoned."""


def stored_rows(
    context: Context, source: UnitSource, folder: str | None, limit: int | None, share: float
) -> StoredRows:
    """The source's rows in random buckets on disk. Without a folder of its own it may use `share` of what is free."""
    where = stores_folder() if folder is None else folder
    key = cache_key(source, ())
    if isinstance(source, CachedUnits):
        key, source = cache_key(source.source, source.transforms), source.unkept()
    once = _changes_unseen(source)
    name = f"{_ONCE}{key}-{_THIS_PROCESS}" if once else f"rows{_FORMAT}-{key}"
    try:
        kept = CacheFolder(where, limit)
        kept.remove_abandoned(_ONCE)
        if folder is None:
            kept.limit, kept.idle_s = _limit(kept, share), 0.0
        entry = Entry(kept, name, source.label)
        if once and name not in _held:
            _held[name] = Entry(kept, name, source.label)
            atexit.register(shutil.rmtree, os.path.dirname(entry.path("data")), ignore_errors=True)
    except OSError as error:
        raise DiskTooSmall(who=f"shuffle of {source.label}", folder=where, needed=0, free=0) from error
    with _alone(entry, context):
        facts = finished(entry)
        if facts is None:
            context.events.emit("rowstore.began", source.label, folder=where)
            writer = RunWriter(entry, f"shuffle of {source.label}")
            try:
                facts = fill(context, source, writer)
            except OSError as error:
                if isinstance(error, FileNotFoundError):
                    raise
                raise writer.refuse(writer.nbytes, entry.free_nbytes()) from error
            finally:
                writer.close()
            context.events.emit("rowstore.complete", source.label, rows=facts.rows, nbytes=facts.nbytes, folder=where)
    return StoredRows(source, RunReader(entry, facts))


def stores_folder() -> str:
    """Where row stores lie that were given no folder of their own."""
    return os.path.join(user_folder(), "rows")


def _limit(folder: CacheFolder, share: float) -> int:
    """Bytes that all stores in the folder may take: what was set, or a share of what the disk has left for them."""
    with folder.locked() as note:
        disk = folder.recount(note) + shutil.disk_usage(folder.path).free
    asked = os.environ.get(LIMIT_NAME)
    return int(disk * share) if not asked else min(parse_size(asked), disk)


def _changes_unseen(source: UnitSource) -> bool:
    """Whether nothing shows that rows have changed (a database): they are kept for this process alone."""
    inner: object = source
    while inner is not None:
        if getattr(inner, "changes_unseen", False):
            return True
        inner = getattr(inner, "source", None)
    return False


@contextmanager
def _alone(entry: Entry, context: Context) -> Iterator[None]:
    """One process fills a store; the others wait for it, and notice when their stream is closed meanwhile.

    The lock ends with its process: when that is killed, one of those that wait goes on from where it was.
    """
    waiting = False
    file = os.open(entry.path("filling"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if context.pool.closed:
                    raise Stopped("The stream is closed.") from None
                if not waiting:
                    context.events.emit("rowstore.waiting", entry.label, folder=os.path.dirname(entry.path("data")))
                waiting = True
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(file)
