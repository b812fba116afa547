"""A cache turns the chain below it into a source again: rows or units that are read and prepared once.

Covers: which kind of cached source a chain becomes, filling and using it, caches kept in memory between epochs.
Does not cover: how bytes are kept (row_store.py, unit_store.py), by which name (key.py).

Right behind a reader of remote files, a folder keeps their bytes as they are (remote_bytes.py). Elsewhere a chain
over single rows whose functions look at one row at a time becomes `CachedRows`: any row can be read alone, so a
shuffle above is still exact. Everything else becomes `CachedUnits`. Functions below a cache run once per row, not once
per epoch; an `rng` argument there is fixed by the row alone.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.core.block import Block
from penstock.core.errors import InvalidInput
from penstock.core.events import events
from penstock.core.schema import Schema
from penstock.core.source import NEW_MEMORY, Buffers, RowSource, Source, UnitSource
from penstock.core.wrapped_source import Wrapped, WrappedUnits
from penstock.engine.cache.codec import NotCacheable, decode_block, encode_block
from penstock.engine.cache.folder import CacheFolder, Entry
from penstock.engine.cache.key import cache_key
from penstock.engine.cache.remote_bytes import kept_bytes
from penstock.engine.cache.row_store import FileLog, RamLog, RowStore
from penstock.engine.cache.rows import CachedRows
from penstock.engine.cache.unit_store import FileUnits, RamUnits, UnitStore, UnitWriter
from penstock.engine.streams.stream import Context
from penstock.engine.streams.transform import Fused
from penstock.order.permutation import Key
from penstock.plan import steps
from penstock.plan.descend import descend
from penstock.plan.steps import Node

Apply = Callable[[Fused, Block, Key], Block]

_UNIT_ROWS = 512
_UNIT_NBYTES = 8_000_000
"""A stretch of single rows that block functions get and that is kept as one unit."""


def cached_source(node: Node, source_at: Callable[[Node], Source | None], context: Context | None) -> Source:
    """The source that a cache step stands for; without a context it is only looked at, and nothing is kept."""
    step = node.step
    assert isinstance(step, steps.Cache)
    found, below = descend(node.input, (steps.Map, steps.Filter, steps.MapBatches))
    source = source_at(below)
    if source is None:
        raise InvalidInput(
            f"cache: it cannot keep what comes out of {below.step.describe()}. "
            "Put .cache() right after reading and the maps and filters that belong to it."
        )
    if _keeps_bytes(step, source, found):
        kept: Source = _kept(step, functools.partial(kept_bytes, source, step.folder or "", step.limit))
        return kept
    fused = Fused(tuple(found))
    if isinstance(source, RowSource) and any(isinstance(s, steps.MapBatches) for s in found):
        source = RowStretches(source)
    apply = context.apply if context is not None else _plainly
    if isinstance(source, RowSource):
        rows = _kept(step, lambda: _row_store(step, source, fused, context)) if context is not None else None
        return CachedRows(source, fused, rows, apply)
    units = _kept(step, lambda: _unit_store(step, source, fused, context)) if context is not None else None
    return CachedUnits(source, fused, units, apply, step)


def _keeps_bytes(step: steps.Cache, source: Source, found: list[steps.Step]) -> bool:
    """Whether remote bytes are kept and not what became of them."""
    remote = bool(getattr(source, "remote", False))
    if step.what != "bytes":
        return step.what == "auto" and step.folder is not None and remote and not found
    if found:
        raise InvalidInput(
            f"cache: what='bytes' keeps files as they are, so that it belongs before {found[0].describe()}, right "
            "behind the reader."
        )
    if not remote:
        raise InvalidInput(f"cache: {source.label} reads no remote files, so that there are no bytes to keep.")
    return True


def _plainly(fused: Fused, block: Block, key: Key) -> Block:
    return fused(block, key)


class RowStretches(Wrapped[RowSource]):
    """Single rows seen as units of consecutive rows, for functions that want blocks."""

    def __init__(self, source: RowSource) -> None:
        super().__init__(source)
        self.rows = max(1, min(_UNIT_ROWS, _UNIT_NBYTES // max(1, source.schema().row_nbytes)))

    def num_units(self) -> int:
        return -(-self.source.num_rows() // self.rows)

    def num_rows(self) -> int | None:
        return self.source.num_rows()

    def unit_nbytes(self, unit: int) -> int:
        return self.source.fetch_nbytes(self.rows) + self.rows * self.schema().row_nbytes

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        first = unit * self.rows
        rows = np.arange(first, min(first + self.rows, self.source.num_rows()))
        if part == 0:
            yield self.source.decode(self.source.fetch(rows), buffers)

    def fingerprint(self) -> str:
        return f"{self.source.fingerprint()}/{self.rows}"


class CachedUnits(WrappedUnits):
    """A `UnitSource` that keeps the prepared blocks of whole units."""

    remote = False

    def __init__(
        self,
        source: UnitSource,
        fused: Fused,
        store: UnitStore | None,
        apply: Apply,
        kept_in: steps.Cache | None = None,
    ) -> None:
        super().__init__(source)
        self._fused, self._store, self._apply = fused, store, apply
        self.kept_in = kept_in
        self._schema: Schema | None = None

    @property
    def label(self) -> str:
        return f"cache of {self.source.label}"

    @property
    def transforms(self) -> tuple[steps.Step, ...]:
        """What is done to rows before they are kept."""
        return self._fused.steps

    def unkept(self) -> CachedUnits:
        """The same rows without keeping them here, where another store keeps them."""
        return CachedUnits(self.source, self._fused, None, self._apply, self.kept_in)

    def one_block(self, unit: int) -> bool:
        """Unknown: a unit has to be read to its end before it is kept."""
        return False

    def schema(self) -> Schema:
        if not self._fused.steps:
            return self.source.schema()
        if self._schema is None:
            blocks = (b for unit in range(self.num_units()) for b in self.open(unit) if b.nrows)
            first = next(blocks, None)
            self._schema = self.source.schema() if first is None else first.schema
        return self._schema

    def num_rows(self) -> int | None:
        return self.source.num_rows() if self._fused.counts_rows else None

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """Blocks from the cache; where it has not got them or they are damaged, from the source."""
        if self._store is not None:
            stored = self._store.read(unit, part)
            ended = False
            while True:
                try:
                    data = next(stored)
                except StopIteration as end:
                    ended = bool(end.value)
                    break
                yield self._named(decode_block(data), unit)
                part += 1
            if ended:
                return
        yield from self._read_through(unit, part, buffers)

    def _named(self, block: Block, unit: int) -> Block:
        block.origin = lambda i: f"{self.label}, unit {unit}, row {i} of a block"
        return block

    def _read_through(self, unit: int, part: int, buffers: Buffers) -> Iterator[Block]:
        writer = self._store.writer(unit) if self._store is not None and part == 0 else None
        blocks = self.source.open(unit, part, buffers)
        errors = self.on_error.count
        try:
            for number, block in enumerate(blocks, start=part):
                prepared = self._apply(self._fused, block, ("cache", unit, number)) if self._fused.steps else block
                # Before it is handed over: the consumer may write to it.
                if writer is not None and not self._add(writer, prepared):
                    writer = None
                yield prepared
            # A unit with damaged rows is not kept: each epoch shall count them, as without a cache.
            if writer is not None and self.on_error.count == errors:
                writer.commit()
        finally:
            if writer is not None:
                writer.abandon()
            close = getattr(blocks, "close", None)
            if close is not None:
                close()

    def _add(self, writer: UnitWriter, block: Block) -> bool:
        try:
            data = encode_block(block)
        except NotCacheable as error:
            writer.abandon()
            events.emit("cache.refused", self.label, reason=str(error))
            return False
        return writer.add(data)


# Stores outlive an epoch: they belong to the cache step of a chain and go with it.

_stores: dict[int, tuple[int, Any]] = {}
_making = threading.Lock()


def _kept(step: steps.Cache, make: Callable[[], Any]) -> Any:
    """The store of a cache step: made once a process, closed when the chain is gone."""
    with _making:
        pid, store = _stores.get(id(step), (0, None))
        if pid != os.getpid():  # a forked child shares neither locks nor leases with its parent
            known = id(step) in _stores
            store = make()
            _stores[id(step)] = (os.getpid(), store)
            if not known:
                weakref.finalize(step, _close, id(step)).atexit = False
        return store


def _close(number: int) -> None:
    pid, store = _stores.pop(number, (0, None))
    if store is not None and pid == os.getpid():
        store.close()


def _row_store(step: steps.Cache, source: RowSource, fused: Fused, context: Context | None) -> RowStore | None:
    assert context is not None
    if step.folder is None:
        return RowStore(RamLog(source.num_rows(), context.budget, source.label), source.label)
    entry = _entry(step, source, fused)
    try:
        return None if entry is None else RowStore(FileLog(entry, source.num_rows()), source.label)
    except OSError as error:
        assert entry is not None
        entry.close()
        _tell_unusable(step, source, error)
        return None


def _unit_store(step: steps.Cache, source: UnitSource, fused: Fused, context: Context | None) -> UnitStore | None:
    assert context is not None
    if step.folder is None:
        return RamUnits(context.budget, source.label)
    entry = _entry(step, source, fused)
    return None if entry is None else FileUnits(entry)


def _entry(step: steps.Cache, source: Source, fused: Fused) -> Entry | None:
    assert step.folder is not None
    key = cache_key(source, fused.steps)
    try:
        return Entry(CacheFolder(step.folder, step.limit), key, source.label)
    except OSError as error:
        _tell_unusable(step, source, error)
        return None


def _tell_unusable(step: steps.Cache, source: Source, error: OSError) -> None:
    events.emit("cache.unusable", source.label, folder=step.folder, reason=error.strerror or str(error))


def _in_memory() -> list[Any]:
    found = [getattr(store, "log", store) for _, store in tuple(_stores.values())]
    return [store for store in found if isinstance(store, (RamLog, RamUnits))]


def drop_cached() -> None:
    """A rung of the watchdog's ladder: caches in memory give everything back."""
    for store in _in_memory():
        store.pause()


def keep_again() -> None:
    """The way back up: caches in memory fill again."""
    for store in _in_memory():
        store.go_on()


def _after_fork() -> None:
    """Threads of the parent that were making a store do not exist here."""
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
