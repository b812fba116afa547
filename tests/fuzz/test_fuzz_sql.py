"""Mutated COPY streams of PostgreSQL: rows up to the damage, then a code; nothing read or written out of bounds."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mutations import ROUNDS, TIMEOUT_S, mutated

from penstock.core.errors import DataError
from penstock.sources.sql.copy import CopyBatch, CopyColumn, batches

OIDS = (16, 21, 23, 20, 700, 701, 1082, 1114, 25, 17, 1700)
COLUMNS = [CopyColumn(f"c{oid}", oid) for oid in OIDS]
ROWS = 5
END = b"\xff\xff"


def row(i: int) -> bytes:
    numeric = struct.pack("!HhHHHH", 2, 0, 0x4000 if i % 2 else 0, 2, i + 1, 5000)
    values = [struct.pack(kind, i) for kind in ("!?", "!h", "!i", "!q", "!f", "!d", "!i", "!q")]
    fields = [*values, b"word" * i, bytes(i), numeric]
    body = b"".join(
        struct.pack("!i", -1) if (i + n) % 5 == 0 else struct.pack("!i", len(f)) + f for n, f in enumerate(fields)
    )
    return struct.pack("!H", len(fields)) + body


@pytest.mark.timeout(TIMEOUT_S)
def test_mutated_streams_end_with_a_code_and_sound_columns() -> None:
    whole = b"".join(map(row, range(ROWS))) + END
    chance, codes, refused = random.Random(3), [0] * 4, 0
    for _ in range(ROUNDS):
        data = mutated(whole, chance)
        batch = CopyBatch(COLUMNS, chance.choice((2, 50)), 64)
        at, code = batch.take(data, 0)
        assert 0 <= batch.filled <= 50 and 0 <= at <= len(data)
        codes[code] += 1
        try:
            batch.arrow().validate()
        except DataError:
            refused += 1
    assert min(codes) > ROUNDS // 50 and refused < ROUNDS // 4, codes


def test_a_whole_stream_is_read_however_it_is_cut() -> None:
    data = b"".join(map(row, range(ROWS))) + END
    for size in (1, 7, 64, len(data)):
        pieces = (data[at : at + size] for at in range(0, len(data), size))
        found = list(batches(pieces, COLUMNS, 2, 1000))
        assert [b.num_rows for b in found] == [2, 2, 1]
        texts = [value for b in found for value in b["c25"].to_pylist()]
        assert texts == [b"word".decode() * i if (i + 8) % 5 else None for i in range(ROWS)]
        numbers = [value for b in found for value in b["c1700"].to_pylist()]
        assert numbers == [None if (i + 10) % 5 == 0 else (i + 1.5) * (-1) ** i for i in range(ROWS)]
        assert sum(b["c16"].null_count for b in found) == 1


def test_a_stream_that_ends_in_the_middle_is_refused() -> None:
    with pytest.raises(DataError, match="in the middle"):
        list(batches(iter([row(0), row(1)[:-3]]), COLUMNS, 10, 1000))
