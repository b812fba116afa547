"""PostgreSQL rows as record batches: a binary COPY, parsed by a kernel.

Covers: the connection (libpq's, by psycopg: passwords, services, encryption), which types the kernel knows, the buffers
of a batch, Arrow arrays over them, `numeric`.
Does not cover: the kernel (native/copy_rows.py), other types (ADBC, in connect.py).
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.errors import DataError, MissingExtra
from penstock.native import copy_rows as kernel
from penstock.sources.sql.types import refuse_rounded
from penstock.sources.tables.column import EXACT

WINDOW_NBYTES = 262_144
"""Bytes of rows that are parsed together: small enough to stay in the processor's cache until then."""

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""How a binary COPY begins: a signature, flags and an extension, of which there are none."""

NUMERIC = 1700

TYPES: dict[int, tuple[int, pa.DataType]] = {
    16: (kernel.BYTE, pa.bool_()),
    21: (kernel.SHORT, pa.int16()),
    23: (kernel.WORD, pa.int32()),
    20: (kernel.LONG, pa.int64()),
    700: (kernel.WORD, pa.float32()),
    701: (kernel.LONG, pa.float64()),
    1082: (kernel.DAY, pa.date32()),
    1114: (kernel.MOMENT, pa.timestamp("us")),
    1184: (kernel.MOMENT, pa.timestamp("us", tz="UTC")),
    25: (kernel.OPEN, pa.string()),
    1042: (kernel.OPEN, pa.string()),
    1043: (kernel.OPEN, pa.string()),
    17: (kernel.OPEN, pa.binary()),
    NUMERIC: (kernel.OPEN, pa.float64()),
}
"""By PostgreSQL's number of a type: the kernel's kind, and the Arrow type, the same that reading through ADBC gives."""


class CopyError(Exception):
    """The server's complaint, with its code; or, without one, a connection that broke."""

    def __init__(self, message: str, sqlstate: str = "") -> None:
        self.sqlstate = sqlstate
        super().__init__(message)


@dataclass(frozen=True)
class CopyColumn:
    """A column of a result: its name and its type's number in PostgreSQL's catalogue."""

    name: str
    oid: int


PLAIN_STRINGS = "set standard_conforming_strings = on"
"""Keys stand in queries as quoted text, in which a backslash must be a backslash, whatever the server's default."""


class CopyConnection:
    """An open connection. Waiting for the server never holds the interpreter's lock."""

    def __init__(self, uri: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise MissingExtra(what="read_sql on PostgreSQL", extra="sql") from error
        self._error = psycopg.Error
        self._diagnostics, self._status = psycopg.pq.DiagnosticField, psycopg.pq.ExecStatus
        try:
            self._connection: Any = psycopg.connect(uri, autocommit=True, client_encoding="UTF8")
            self._connection.execute(PLAIN_STRINGS)
        except psycopg.Error as error:
            raise CopyError(str(error), error.sqlstate or "08001") from None
        self._libpq = self._connection.pgconn

    def close(self) -> None:
        """Tell the server, and close."""
        self._connection.close()

    def describe(self, query: str) -> list[CopyColumn]:
        """The columns that a query gives, without running it."""
        try:
            self._libpq.send_prepare(b"", query.encode())
            self._finish()
            self._libpq.send_describe_prepared(b"")
            found = self._finish()
        except self._error as error:
            raise CopyError(f"connection broken: {error}", "08006") from None
        return [CopyColumn(found.fname(i).decode(), found.ftype(i)) for i in range(found.nfields)]

    def rows(self, query: str) -> Iterator[bytes]:
        """The rows of a query in COPY's binary form, many at a time."""
        try:
            self._libpq.send_query(f"copy ({query}\n) to stdout (format binary)".encode())
            self._checked(self._result(), self._status.COPY_OUT)
            yield from self._messages()
            self._finish()
        except self._error as error:
            raise CopyError(f"connection broken: {error}", "08006") from None

    def _messages(self) -> Iterator[bytes]:
        held: list[Any] = []
        nbytes, skip = 0, len(SIGNATURE)
        while True:
            got, data = self._libpq.get_copy_data(1)
            if not got:
                self._wait()
                continue
            if got > 0:
                held.append(data)
                nbytes += got
                if nbytes < WINDOW_NBYTES:
                    continue
            joined = b"".join(held)
            if got < 0 and not joined:  # nothing came, or nothing more: the last result says why
                return
            if skip and joined[:skip] != SIGNATURE:
                raise CopyError("the server's COPY begins in a way that is not known")
            yield joined[skip:]
            if got < 0:
                return
            held, nbytes, skip = [], 0, 0

    def _finish(self) -> Any:
        """The last result of a command that is over. Raises if the server had something to complain about."""
        last = None
        while (found := self._result()) is not None:
            last = found
            if found.status == self._status.FATAL_ERROR:
                while self._result() is not None:  # the connection can be used again
                    pass
        return self._checked(last, self._status.COMMAND_OK)

    def _result(self) -> Any:
        while self._libpq.flush():
            select.select([], [self._libpq.socket], [])
        while self._libpq.is_busy():
            self._wait()
        return self._libpq.get_result()

    def _wait(self) -> None:
        # Not for ever: what is decrypted already makes the socket of an encrypted connection ready no more.
        select.select([self._libpq.socket], [], [], 0.1)
        self._libpq.consume_input()

    def _checked(self, result: Any, wanted: Any) -> Any:
        if result is not None and result.status == wanted:
            return result
        if result is None:
            raise CopyError("the server ended the connection", "08006")
        message = result.error_field(self._diagnostics.MESSAGE_PRIMARY) or result.error_message
        severity = result.error_field(self._diagnostics.SEVERITY) or b"ERROR"
        state = result.error_field(self._diagnostics.SQLSTATE) or b"08006"
        raise CopyError(f"{severity.decode()}: {message.decode('utf-8', 'replace')}", state.decode())


def known(columns: list[CopyColumn]) -> bool:
    """Whether the kernel can read all columns."""
    return bool(columns) and all(column.oid in TYPES for column in columns)


def batches(data: Iterator[bytes], columns: list[CopyColumn], rows: int, nbytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of a COPY with these columns, as batches of at most `rows` rows and `nbytes` in each open column."""
    batch, rest, why = CopyBatch(columns, rows, nbytes), b"", kernel.MORE
    for piece in data:
        piece, at = rest + piece, 0
        while why != kernel.OVER:
            at, why = batch.take(piece, at)
            if why == kernel.DAMAGED:
                raise DataError("PostgreSQL's COPY stream is damaged, or its types changed while it was read.")
            if why != kernel.FULL:
                break
            if batch.filled:
                yield batch.arrow()
                batch = CopyBatch(columns, rows, nbytes)
            else:  # one row that is larger than the room gets a batch for itself
                batch = CopyBatch(columns, 1, len(piece) - at)
        rest = piece[at:]
    if why != kernel.OVER:
        raise DataError("PostgreSQL's COPY stream ends in the middle.")
    yield batch.arrow()


class CopyBatch:
    """Room for one batch."""

    def __init__(self, columns: list[CopyColumn], rows: int, nbytes: int) -> None:
        self._columns = columns
        self._buffers = [kernel.buffers(TYPES[column.oid][0], rows, nbytes) for column in columns]
        self._taker = kernel.RowTaker(self._buffers, rows)

    @property
    def filled(self) -> int:
        """Rows that are in it."""
        return self._taker.filled

    def take(self, data: bytes, start: int) -> tuple[int, int]:
        """Store whole rows from `data[start:]` on: the place after them, and why no more (see the kernel)."""
        return self._taker.take(data, start)

    def arrow(self) -> pa.RecordBatch:
        """The rows that are in it."""
        arrays = [self._array(i) for i in range(len(self._columns))]
        return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in self._columns])

    def _array(self, i: int) -> pa.Array:
        kind, own, rows = TYPES[self._columns[i].oid][1], self._buffers[i], self.filled
        valid = None
        if self._taker.nulls(i):
            valid = pa.py_buffer(np.packbits(own.valid[:rows], bitorder="little"))
        if self._columns[i].oid == NUMERIC:
            return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(_floats(own, rows, self._columns[i].name))])
        if pa.types.is_boolean(kind):
            bits = np.packbits(own.values[:rows], bitorder="little")
            return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(bits)])
        if own.kind == kernel.OPEN:
            return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(own.values), pa.py_buffer(own.data)])
        return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(own.values)])


def _floats(column: kernel.ColumnBuffers, rows: int, name: str) -> np.ndarray:
    found = kernel.numeric_to_float(column, rows)
    if found is None:
        raise DataError("PostgreSQL's COPY stream holds a damaged numeric.")
    out, odd = found
    for row in odd:
        out[row] = numeric(bytes(column.data[column.values[row] : column.values[row + 1]]))
    with np.errstate(invalid="ignore"):
        large = np.flatnonzero(np.isfinite(out) & (np.abs(out) >= EXACT))
    for row in large.tolist():
        value = bytes(column.data[column.values[row] : column.values[row + 1]])
        if value:  # not NULL
            refuse_rounded(name, _decimal(value))
    return out


def numeric(value: bytes) -> float:
    """PostgreSQL's binary `numeric` as the nearest float."""
    sign = int.from_bytes(value[4:6], "big")
    if sign & 0xC000 == 0xC000:
        return {0xD000: float("inf"), 0xF000: float("-inf")}.get(sign, float("nan"))
    return float(_decimal(value))


def _decimal(value: bytes) -> Decimal:
    digits, weight, sign = (int.from_bytes(value[i : i + 2], "big", signed=i == 2) for i in (0, 2, 4))
    whole = 0
    for i in range(digits):
        whole = whole * 10_000 + int.from_bytes(value[8 + 2 * i : 10 + 2 * i], "big")
    return Decimal(f"{'-' if sign else ''}{whole}e{4 * (weight - digits + 1)}")
