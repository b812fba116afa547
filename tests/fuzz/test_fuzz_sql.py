"""Mutated COPY streams of PostgreSQL: rows up to the damage, then a code; nothing read or written out of bounds."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mutations import ROUNDS, TIMEOUT_S, mutated

from penstock.core.errors import DataError
from penstock.sources import sql_copy
from penstock.sources.sql_wire import WireColumn

OIDS = (16, 21, 23, 20, 700, 701, 1082, 1114, 25, 17, 1700)
ROWS = 5


def row(i: int) -> bytes:
    numeric = struct.pack("!HhHHHH", 2, 0, 0x4000 if i % 2 else 0, 2, i + 1, 5000)
    values = [struct.pack(kind, i) for kind in ("!?", "!h", "!i", "!q", "!f", "!d", "!i", "!q")]
    fields = [*values, b"word" * i, bytes(i), numeric]
    body = b"".join(
        struct.pack("!i", -1) if (i + n) % 5 == 0 else struct.pack("!i", len(f)) + f for n, f in enumerate(fields)
    )
    return b"d" + struct.pack("!IH", len(body) + 6, len(fields)) + body


@pytest.mark.timeout(TIMEOUT_S)
def test_mutated_streams_end_with_a_code_and_sound_columns() -> None:
    module = sql_copy.kernel.get(wait=True)
    columns = [WireColumn(f"c{oid}", oid) for oid in OIDS]
    whole = b"".join(map(row, range(ROWS))) + b"d\0\0\0\x06\xff\xff" + b"c\0\0\0\x04"
    chance, codes, refused = random.Random(3), [0] * 4, 0
    for _ in range(ROUNDS):
        data = np.frombuffer(mutated(whole, chance), np.uint8).copy()
        batch = sql_copy.Batch(columns, chance.choice((2, 50)), 64, module)
        done, at, code = module.take_rows(data, 0, len(data), batch.job, 0)
        assert 0 <= done <= 50 and 0 <= at <= len(data)
        codes[code] += 1
        try:
            batch.arrow(done).validate()
        except DataError:
            refused += 1
    assert min(codes) > ROUNDS // 50 and refused < ROUNDS // 4, codes


def test_a_whole_stream_is_read() -> None:
    module = sql_copy.kernel.get(wait=True)
    data = np.frombuffer(b"".join(map(row, range(ROWS))), np.uint8).copy()
    batch = sql_copy.Batch([WireColumn(f"c{oid}", oid) for oid in OIDS], 10, 1000, module)
    done, at, code = module.take_rows(data, 0, len(data), batch.job, 0)
    assert (done, at, code) == (ROWS, len(data), module.MORE)
    found = batch.arrow(done)
    assert found["c25"].to_pylist() == [b"word".decode() * i if (i + 8) % 5 else None for i in range(ROWS)]
    assert found["c1700"].to_pylist() == [None if (i + 10) % 5 == 0 else (i + 1.5) * (-1) ** i for i in range(ROWS)]
