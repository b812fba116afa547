"""Rows of PostgreSQL's binary COPY: numbers, times, text and numeric as struct and Decimal give them; bounds kept."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest

from penstock.native import copy_rows as kernel
from penstock.native.library import ADDRESS, INT32, INT64, Kernel, address, forced
from tests.unit.native.guarded import guarded
from tests.unit.native.levels import LEVELS

KINDS = (kernel.BYTE, kernel.SHORT, kernel.WORD, kernel.LONG, kernel.DAY, kernel.MOMENT, kernel.OPEN)
FORMS = ("!b", "!h", "!i", "!q", "!i", "!q")
DTYPES = ("i1", "<i2", "<i4", "<i8", "<i4", "<i8")


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with forced(request.param):
        yield request.param


def field(value: bytes | None) -> bytes:
    return struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value


def row(i: int) -> bytes:
    values: list[bytes | None] = [struct.pack(form, -i) for form in FORMS] + [b"word" * i]
    return struct.pack("!H", 7) + b"".join(field(None if (i + n) % 5 == 4 else v) for n, v in enumerate(values))


def taker(rows: int, nbytes: int, side: str) -> tuple[kernel.RowTaker, list[kernel.ColumnBuffers]]:
    """Columns whose every buffer lies between forbidden pages."""
    columns = []
    for kind in KINDS:
        width = 4 if kind == kernel.OPEN else kernel.WIDTHS[kind]
        count = rows + 1 if kind == kernel.OPEN else rows
        values, valid = guarded(width * count, side), guarded(b"\1" * rows, side)
        columns.append(kernel.ColumnBuffers(kind, values, valid, guarded(nbytes if kind == kernel.OPEN else 0, side)))
    return kernel.RowTaker(columns, rows), columns


@pytest.mark.parametrize("side", ["start", "end"])
def test_rows_become_columns(side: str) -> None:
    take, columns = taker(9, 200, side)
    data = b"".join(map(row, range(9))) + b"\xff\xff"
    assert take.take(data) == (len(data), kernel.OVER) and take.filled == 9
    for n, dtype in enumerate(DTYPES):
        there = [(i + n) % 5 != 4 for i in range(9)]
        offset = {kernel.DAY: 10_957, kernel.MOMENT: 946_684_800_000_000}.get(KINDS[n], 0)
        assert columns[n].valid.astype(bool).tolist() == there and take.nulls(n) == 9 - sum(there)
        assert columns[n].values.view(dtype).tolist() == [offset - i if t else 0 for i, t in enumerate(there)]
    ends = columns[6].values.view("<i4")
    texts = [bytes(columns[6].data[a:b]) for a, b in pairwise(ends)]
    assert texts == [b"word" * i if (i + 6) % 5 != 4 else b"" for i in range(9)]


def test_a_row_without_room_leaves_no_trace() -> None:
    take, columns = taker(9, 13, "end")
    data = b"".join(map(row, range(1, 9)))
    at, why = take.take(data)
    assert why == kernel.FULL and take.filled == 3 and at == len(row(1) + row(2) + row(3))
    assert [take.nulls(n) for n in range(7)] == [int(3 - np.count_nonzero(c.valid[:3])) for c in columns]
    assert all(c.valid[3:].all() for c in columns)


@pytest.mark.parametrize(("low", "high"), [(-(2**31), -(2**63)), (2**31 - 1, 2**63 - 1)])
def test_times_without_end_are_missing(low: int, high: int) -> None:
    values = [struct.pack(f, v) for f, v in zip(FORMS, (0, 0, 0, 0, low, high), strict=True)]
    take, _ = taker(1, 1, "end")
    assert take.take(struct.pack("!H", 7) + b"".join(map(field, values)) + field(b""))[1] == kernel.MORE
    assert [take.nulls(n) for n in range(7)] == [0, 0, 0, 0, 1, 1, 0]


@pytest.mark.parametrize("side", ["start", "end"])
def test_damaged_streams_stay_inside(side: str) -> None:
    """The stream itself lies between forbidden pages too; what was used is never more than what was there."""
    raw = Kernel("copy_rows", INT32, ADDRESS, INT64, ADDRESS, INT64, INT64, ADDRESS)
    chance, seen, whole = random.Random(5), set(), b"".join(map(row, range(6))) + b"\xff\xff"
    for _ in range(300):
        data = bytearray(whole[: chance.choice((len(whole), chance.randrange(len(whole))))])
        for _ in range(chance.choice((0, 1, 3))):
            if data:
                data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        take, _ = taker(chance.choice((2, 9)), chance.choice((10, 200)), side)
        buf, progress = guarded(bytes(data), side), np.zeros(2, np.int64)
        table = address(np.frombuffer(take._table, np.uint8))
        why = raw(address(buf), len(buf), table, 7, take._capacity, address(progress))
        assert 0 <= progress[0] <= take._capacity and 0 <= progress[1] <= len(data)
        seen.add(why)
    assert seen == {kernel.MORE, kernel.FULL, kernel.DAMAGED, kernel.OVER}


def packed_numeric(digits: list[int], weight: int, sign: int = 0) -> bytes:
    return struct.pack("!HhHH", len(digits), weight, sign, 0) + b"".join(struct.pack("!H", d) for d in digits)


def test_numeric_is_exact_or_told_to_be_odd() -> None:
    chance = random.Random(9)
    cases = [
        ([chance.randrange(10_000) for _ in range(chance.randrange(6))], chance.randrange(-6, 7)) for _ in range(200)
    ]
    values = [packed_numeric(d, w, 0x4000 if i % 2 else 0) for i, (d, w) in enumerate(cases)]
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    column = kernel.ColumnBuffers(kernel.OPEN, ends, np.ones(200, np.uint8), guarded(b"".join(values)))
    found = kernel.numeric_to_float(column, 200)
    assert found is not None
    out, odd = found
    for i, (digits, weight) in enumerate(cases):
        whole = int("".join(f"{d:04}" for d in digits) or "0")
        want = float(Decimal(-whole if i % 2 else whole).scaleb(4 * (weight - len(digits) + 1)))
        assert i in odd or out[i] == want
    assert 0 < len(odd) < 150
    for damaged in (b"\0\2" + bytes(8), bytes(7)):
        short = kernel.ColumnBuffers(kernel.OPEN, np.array([0, len(damaged)], np.int32), column.valid, guarded(damaged))
        assert kernel.numeric_to_float(short, 1) is None
