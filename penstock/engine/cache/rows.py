"""Cached rows: each row of a `RowSource` is prepared once and can be read again in any order.

Covers: taking rows from the store and the rest from the source, in the order asked for.
Does not cover: how the store keeps them (row_store.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.block import Block
from penstock.core.errors import SchemaChanged
from penstock.core.schema import Schema
from penstock.core.source import NEW_MEMORY, Buffers, OnError, RowSource
from penstock.core.wrapped_source import WrappedRows
from penstock.engine.cache.codec import NotCacheable, RecordLayout, decode_block, encode_block
from penstock.engine.cache.row_store import RowStore
from penstock.engine.streams.transform import Fused, draws
from penstock.order.permutation import Key

_LOOKED_AT = 4
"""Rows that show whether functions make rows of one size."""

_DROPPED = b"-"
"""Kept for a row that a filter drops: it need not be looked at again."""


@dataclass
class FetchedRows:
    """Rows that the store has, and the source's bytes for the others."""

    rows: np.ndarray
    there: np.ndarray
    packed: np.ndarray | None
    records: list[bytes | None]
    missing: list[tuple[np.ndarray, Any]]


class CachedRows(WrappedRows):
    """A `RowSource` that keeps prepared rows."""

    remote = False

    def __init__(
        self, source: RowSource, fused: Fused, store: RowStore | None, apply: Callable[[Fused, Block, Key], Block]
    ) -> None:
        super().__init__(source)
        self._fused, self._store, self._apply = fused, store, apply
        self._drops = not fused.counts_rows
        # Rows are handled one by one where one may vanish, or where its random numbers must be its own.
        self._singly = self._drops or source.on_error.mode == "skip" or any(draws(step) for step in fused.steps)
        self._policy = OnError("skip") if self._drops and source.on_error.mode == "raise" else source.on_error
        policies = [source.on_error, *(getattr(step, "on_error", None) or OnError() for step in fused.steps)]
        # What was skipped as damaged is not remembered: each epoch shall count it, as without a cache.
        self._remembers_drops = all(policy.mode == "raise" for policy in policies)
        self._lock = threading.Lock()
        self._schema: Schema | None = None
        self._layout: RecordLayout | None = None
        self._known = None if store is None else store.schema

    @property
    def label(self) -> str:
        return f"cache of {self.source.label}"

    @property
    def on_error(self) -> OnError:
        return self._policy

    def schema(self) -> Schema:
        """The source's, or what its first rows become; functions that keep one size for all rows are noticed."""
        with self._lock:
            if self._schema is None:
                self._schema = self._known or (self._find_schema() if self._fused.steps else self.source.schema())
                if self._store is not None:
                    self._store.schema = self._schema
                if self._schema.fixed and not self._drops:
                    self._layout = RecordLayout(self._schema)
            return self._schema

    def _find_schema(self) -> Schema:
        total = self.num_rows()
        count = 1 if self.source.schema().fixed and not self._drops else _LOOKED_AT
        seen: list[Schema] = []
        for row in np.unique(np.linspace(0, total - 1, count).astype(np.int64)) if total else ():
            rows = np.array([row])
            block = self._prepared(rows, self.source.fetch(rows))
            if block.nrows:
                seen.append(block.schema)
        if not seen:
            return self.source.schema()
        return seen[0] if all(schema == seen[0] for schema in seen) else Block.concat(self._some(total)).schema

    def _some(self, total: int) -> list[Block]:
        picked = np.unique(np.linspace(0, total - 1, _LOOKED_AT).astype(np.int64))
        blocks = [self._prepared(np.array([row]), self.source.fetch(np.array([row]))) for row in picked]
        return [block for block in blocks if block.nrows]

    def fetch_nbytes(self, rows: int) -> int:
        return self.source.fetch_nbytes(rows) + rows * self.schema().row_nbytes

    def fetch(self, rows: np.ndarray) -> FetchedRows:
        """Stored bytes of the rows, from the store or the source."""
        self.schema()
        there = np.zeros(len(rows), dtype=bool)
        packed: np.ndarray | None = None
        records: list[bytes | None] = []
        if self._store is not None and self._layout is not None:
            if self._store.has(rows).any():
                there, packed = self._store.get_equal(rows, self._layout.nbytes)
        elif self._store is not None:
            records = self._store.get(rows)
            there = np.array([record is not None for record in records], dtype=bool)
        wanted = rows[~there]
        groups = [wanted[i : i + 1] for i in range(len(wanted))] if self._singly else [wanted] if len(wanted) else []
        return FetchedRows(rows, there, packed, records, [(group, self.source.fetch(group)) for group in groups])

    def decode(self, fetched: FetchedRows, buffers: Buffers = NEW_MEMORY) -> Block:
        """The rows in order; what was not kept is prepared now and kept."""
        fresh = [(group, self._prepared(group, data, buffers)) for group, data in fetched.missing]
        self._keep(fresh)
        if self._layout is None:
            return self._joined(fetched, fresh)
        if fresh and not fetched.there.any():
            return Block.concat([block for _, block in fresh])
        if fetched.packed is None:  # no row was asked for
            return _no_rows(self.schema())
        return self._mixed(fetched, fresh)

    def decode_into(self, fetched: FetchedRows, out: Mapping[str, np.ndarray], buffers: Buffers = NEW_MEMORY) -> None:
        """The rows into the given arrays, without a copy in between where all or none were kept."""
        if not fetched.missing:
            assert fetched.packed is not None and self._layout is not None
            for name, array in out.items():
                np.copyto(array[: len(fetched.rows)], self._layout.column(fetched.packed, name))
        elif not self._fused.steps and not fetched.there.any() and len(fetched.missing) == 1:
            self.source.decode_into(fetched.missing[0][1], out, buffers)
            if self._store is not None and self._layout is not None:
                self._put_packed(fetched.rows, {name: array[: len(fetched.rows)] for name, array in out.items()})
        else:
            block = self.decode(fetched, buffers)
            for name, array in out.items():
                np.copyto(array[: block.nrows], block.columns[name], casting="same_kind")

    def _prepared(self, rows: np.ndarray, fetched: Any, buffers: Buffers = NEW_MEMORY) -> Block:
        block = self.source.decode(fetched, buffers)
        if self._fused.steps and block.nrows:
            block = self._apply(self._fused, block, ("cache", int(rows[0])))
        return block

    def _keep(self, fresh: list[tuple[np.ndarray, Block]]) -> None:
        """Write prepared rows to the store, and refuse rows that break the promise of one size."""
        if self._layout is not None:
            for rows, block in fresh:
                if block.nrows and not self._layout.fits(block):
                    raise SchemaChanged(
                        f"cache: {block.where(0)} became {block.schema} where other rows are {self._layout.schema}. "
                        "Let the functions before .cache() return one shape and dtype, or move .cache() before them."
                    )
                if self._store is not None and block.nrows == len(rows):
                    self._put_packed(rows, block.columns)
        elif self._store is not None:
            self._put_free(fresh)

    def _put_packed(self, rows: np.ndarray, columns: Mapping[str, Any]) -> None:
        assert self._layout is not None and self._store is not None
        packed = self._layout.pack(dict(columns))
        self._store.put(rows, np.full(len(rows), self._layout.nbytes, dtype=np.uint64), packed)

    def _put_free(self, fresh: list[tuple[np.ndarray, Block]]) -> None:
        assert self._store is not None
        kept: list[int] = []
        records: list[bytes] = []
        for rows, block in fresh:
            if block.nrows != len(rows) and not self._remembers_drops:
                continue
            try:
                found = [encode_block(block.slice(i, i + 1)) for i in range(block.nrows)] or [_DROPPED]
            except NotCacheable as error:
                self._store.tell("cache.refused", reason=str(error))
                return
            kept += rows.tolist()
            records += found
        if kept:
            sizes = np.array([len(record) for record in records], dtype=np.uint64)
            self._store.put(np.array(kept, dtype=np.int64), sizes, b"".join(records))

    def _joined(self, fetched: FetchedRows, fresh: list[tuple[np.ndarray, Block]]) -> Block:
        """Rows of no fixed size, in the order asked for."""
        made: dict[int, Block] = {}
        for rows, block in fresh:
            if block.nrows == len(rows):
                made.update({int(row): block.slice(i, i + 1) for i, row in enumerate(rows)})
        blocks, origins = [], []
        records = fetched.records or [None] * len(fetched.rows)
        for row, record in zip(fetched.rows.tolist(), records, strict=True):
            found = made.get(row) if record is None else None if record == _DROPPED else decode_block(record)
            if found is not None:
                blocks.append(found)
                origins.append(row)
        if not blocks:
            return _no_rows(self.schema())
        block = Block.concat(blocks)
        block.origin = lambda i: f"{self.label}, row {origins[i]}"
        return block

    def _mixed(self, fetched: FetchedRows, fresh: list[tuple[np.ndarray, Block]]) -> Block:
        """Rows of a fixed size, some kept and some new, in the order asked for."""
        assert self._layout is not None and fetched.packed is not None
        good = fetched.there.copy()
        new = np.flatnonzero(~fetched.there)
        at = 0
        made = []
        for rows, block in fresh:
            if block.nrows == len(rows):
                good[new[at : at + len(rows)]] = True
                made.append(block)
            at += len(rows)
        if made:
            fetched.packed[good & ~fetched.there] = self._layout.pack(dict(Block.concat(made).columns))
        rows = fetched.rows[good]
        block = self._layout.block(fetched.packed if good.all() else fetched.packed[good])
        block.origin = lambda i: f"{self.label}, row {rows[i]}"
        return block


def _no_rows(schema: Schema) -> Block:
    return Block({f.name: np.empty((0, *(n or 0 for n in f.shape)), f.dtype) for f in schema}, schema.tree)
