"""Memory outside of leases is told apart: little of a real process stays unexplained."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.memory.account import memory_report
from penstock.memory.unleased import IN_USE, LIBRARIES, STACKS, Mapping, parse, split

SMAPS = """\
55d0a000-55d0b000 rw-p 00000000 08:01 123   /usr/lib/libone.so
Size:                  4 kB
Anonymous:             4 kB
7f0000000000-7f0000001000 ---p 00000000 00:00 0
Size:                  4 kB
Anonymous:             0 kB
7f0000001000-7f0000801000 rw-p 00000000 00:00 0
Size:               8192 kB
Anonymous:            16 kB
7f0000900000-7f0000a80000 rw-p 00000000 00:00 0   [heap]
Anonymous:           100 kB
"""


def test_a_table_of_the_kernel_is_read():
    assert parse(SMAPS) == [
        Mapping(4096, False, "/usr/lib/libone.so", 4096),
        Mapping(4096, False, "", 0),
        Mapping(8 * 2**20, True, "", 16384),
        Mapping(1536 * 1024, False, "[heap]", 102400),
    ]


def test_kinds_add_up():
    found = split(parse(SMAPS), (120_000, 0, 30_000), leased=20_000)
    assert found[LIBRARIES] == 4096 and found[STACKS] == 16384
    assert found[IN_USE] == 102400 - 30_000 - 20_000
    assert sum(found.values()) + 20_000 == 4096 + 16384 + 102400


def test_at_most_a_tenth_of_a_real_process_is_unexplained():
    kept = [np.ones(250_000) for _ in range(40)], [{"i": i} for i in range(50_000)]
    report = memory_report()
    assert report.kinds[IN_USE] >= 40 * 2_000_000
    assert report.unexplained <= 0.1 * report.measured.nbytes
    assert report.as_dict()["kinds"] == report.kinds and "not accounted for" in str(report)
    del kept


@pytest.mark.parametrize("books", [None, (0, 0, 0)])
def test_without_books_all_is_other_allocators(books):
    assert sum(split(parse(SMAPS), books, leased=0).values()) == 4096 + 16384 + 102400
