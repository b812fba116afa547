"""PostgreSQL rows as record batches, parsed from the COPY stream by a compiled kernel.

Covers: which types it knows, the buffers of a batch, Arrow arrays over them, `numeric`.
Does not cover: messages (sources/sql_wire.py), the kernel itself (sources/sql_copy_kernel.py), other types (ADBC).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.errors import DataError
from penstock.sources.sql_wire import Wire, WireColumn

NUMERIC = 1700

TYPES: dict[int, tuple[int, pa.DataType]] = {
    16: (0, pa.bool_()),
    21: (1, pa.int16()),
    23: (2, pa.int32()),
    20: (3, pa.int64()),
    700: (2, pa.float32()),
    701: (3, pa.float64()),
    1082: (4, pa.date32()),
    1114: (5, pa.timestamp("us")),
    1184: (5, pa.timestamp("us", tz="UTC")),
    25: (6, pa.string()),
    1042: (6, pa.string()),
    1043: (6, pa.string()),
    17: (6, pa.binary()),
    NUMERIC: (6, pa.float64()),
}
"""By PostgreSQL's number of a type: the kernel's kind, and the Arrow type, the same that reading through ADBC gives."""

_log = logging.getLogger("penstock")


class Kernel:
    """The compiled functions of this process. Compiling starts at the first call; until it is done, ADBC reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._module: Any = None
        self._asked = False

    def get(self, wait: bool = False) -> Any:
        """The module with the kernels, or None while they are not there."""
        if self._module is None and wait:
            self._compile()
        with self._lock:
            if self._module is None and not self._asked:
                self._asked = True
                threading.Thread(target=self._compile, name="penstock-compile", daemon=True).start()
        return self._module

    def _compile(self) -> None:
        try:
            import psycopg  # noqa: F401  (without it there is no connection to read from)

            from penstock.sources import sql_copy_kernel as module

            run(module)
            self._module = module
        except Exception as error:  # a broken compiler costs speed, never the run
            _log.info("PostgreSQL is read through ADBC: %s", error)


def run(module: Any) -> None:
    """Call each kernel once, with nothing to do, so that it is compiled."""
    empty = np.empty(8, np.uint8)
    job = module.Job(np.zeros((1, module.COLUMN), np.int64), np.zeros(1, np.int64), 0)
    module.take_rows(empty, 0, 0, job, 0)
    module.numeric_to(empty, np.zeros(1, np.int32), POWERS, np.empty(0), np.empty(0, np.int64))


POWERS = 10.0 ** np.arange(23)

kernel = Kernel()
"""One per process."""


def known(columns: list[WireColumn]) -> bool:
    """Whether the kernel can read all columns."""
    return bool(columns) and all(column.oid in TYPES for column in columns)


def batches(
    wire: Wire, asked: tuple[str, list[WireColumn]], rows: int, nbytes: int, module: Any
) -> Iterator[pa.RecordBatch]:
    """The rows of a query with these columns, as batches of at most `rows` rows and `nbytes` in each open column."""
    query, columns = asked
    wire.copy(query)
    batch, filled, over = Batch(columns, rows, nbytes, module), 0, False
    while not over:
        filled, wire.start, code = module.take_rows(wire.buffer, wire.start, wire.end, batch.job, filled)
        if code == module.MORE:
            wire.more()
        elif code == module.CONTROL:
            over = wire.control()
        elif code == module.FULL and filled:
            yield batch.arrow(filled)
            batch, filled = Batch(columns, rows, nbytes, module), 0
        elif code == module.FULL:  # one row that is larger than the room gets a batch for itself
            batch = Batch(columns, 1, wire.message_nbytes(), module)
        else:
            raise DataError("PostgreSQL's COPY stream is damaged, or its types changed while it was read.")
    wire.finish()
    yield batch.arrow(filled)


class Batch:
    """Room for one batch: values, a byte a row that says whether there is one, and bytes of open length."""

    def __init__(self, columns: list[WireColumn], rows: int, nbytes: int, module: Any) -> None:
        self._columns, self._module = columns, module
        self._kinds = [TYPES[column.oid][0] for column in columns]
        many = len(columns)
        self._values = [
            np.zeros(rows + 1, np.int32) if kind == module.OPEN else np.empty(rows * module.WIDTHS[kind], np.uint8)
            for kind in self._kinds
        ]
        self._data = [np.empty(nbytes if kind == module.OPEN else 0, np.uint8) for kind in self._kinds]
        self._valid = np.ones((many, rows), np.uint8)
        self._nulls = np.zeros(many, np.int64)
        numbers = np.empty((many, module.COLUMN), np.int64)
        numbers[:, module.KIND] = self._kinds
        numbers[:, module.PLACE] = [v.ctypes.data for v in self._values]
        numbers[:, module.VALID] = self._valid.ctypes.data + np.arange(many) * rows
        numbers[:, module.NULLS] = self._nulls.ctypes.data + np.arange(many) * 8
        numbers[:, module.ROOM] = nbytes
        self.job = module.Job(numbers, np.array([d.ctypes.data for d in self._data], np.int64), rows)

    def arrow(self, rows: int) -> pa.RecordBatch:
        """The first `rows` rows."""
        arrays = [self._array(i, rows) for i in range(len(self._columns))]
        return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in self._columns])

    def _array(self, i: int, rows: int) -> pa.Array:
        kind, column, values = TYPES[self._columns[i].oid][1], self._columns[i], self._values[i]
        valid = None
        if self._nulls[i]:
            valid = pa.py_buffer(np.packbits(self._valid[i, :rows], bitorder="little"))
        if column.oid == NUMERIC:
            return self._numeric(i, rows, valid)
        if pa.types.is_boolean(kind):
            return pa.Array.from_buffers(
                kind, rows, [valid, pa.py_buffer(np.packbits(values[:rows], bitorder="little"))]
            )
        if self._kinds[i] == self._module.OPEN:
            return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(values), pa.py_buffer(self._data[i])])
        return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(values)])

    def _numeric(self, i: int, rows: int, valid: Any) -> pa.Array:
        out, odd = np.empty(rows), np.empty(rows, np.int64)
        data, offsets = self._data[i], self._values[i]
        found = self._module.numeric_to(data, offsets[: rows + 1], POWERS, out, odd)
        if found < 0:
            raise DataError("PostgreSQL's COPY stream holds a damaged numeric.")
        for row in odd[:found]:
            out[row] = numeric(bytes(data[offsets[row] : offsets[row + 1]]))
        return pa.Array.from_buffers(pa.float64(), rows, [valid, pa.py_buffer(out)])


def numeric(value: bytes) -> float:
    """PostgreSQL's binary `numeric` as the nearest float."""
    digits, weight, sign = (int.from_bytes(value[i : i + 2], "big", signed=i == 2) for i in (0, 2, 4))
    if sign & 0xC000 == 0xC000:
        return {0xD000: float("inf"), 0xF000: float("-inf")}.get(sign, float("nan"))
    whole = 0
    for i in range(digits):
        whole = whole * 10_000 + int.from_bytes(value[8 + 2 * i : 10 + 2 * i], "big")
    return float(Decimal(-whole if sign else whole).scaleb(4 * (weight - digits + 1)))
