"""Memory outside of leases is told apart: little of a real process stays unexplained."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.memory.account import memory_report
from penstock.memory.unleased import ARROW, CODE, IN_USE, KEPT, LIBRARIES, POOLS, PYTHON, STACKS, Mapping, parse, split

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
7f0004000000-7f0004021000 rw-p 00000000 00:00 0
Anonymous:             8 kB
7f0004021000-7f0008000000 ---p 00000000 00:00 0
Anonymous:             0 kB
7f0009000000-7f0009010000 rwxp 00000000 00:00 0
Anonymous:            64 kB
7f000a000000-7f000a301000 rw-p 00000000 00:00 0
Anonymous:          3072 kB
"""
ALL = 4096 + 16384 + 102400 + 8192 + 65536 + 3 * 2**20


def test_a_table_of_the_kernel_is_read():
    assert parse(SMAPS) == [
        Mapping(4096, False, "/usr/lib/libone.so", 4096),
        Mapping(4096, False, "", 0),
        Mapping(8 * 2**20, True, "", 16384),
        Mapping(1536 * 1024, False, "[heap]", 102400, heap=True),
        Mapping(132 * 1024, False, "", 8192, heap=True),
        Mapping(2**26 - 132 * 1024, False, "", 0),
        Mapping(64 * 1024, False, "", 65536, code=True),
        Mapping(3 * 2**20 + 4096, False, "", 3 * 2**20),
    ]


def test_kinds_add_up():
    found = split(parse(SMAPS), (120_000, 10**6, 30_000), leased=2**20, arrow=2**19, objects=100_000)
    assert found[LIBRARIES] == 4096 and found[STACKS] == 16384 and found[CODE] == 65536
    assert found[KEPT] == 102400 + 8192 - 90_000
    assert found[IN_USE] == 90_000 + 10**6  # heaps and blocks of their own: the lease was a mapping
    assert found[PYTHON] == 100_000 and found[ARROW] == 0
    assert found[POOLS] == 3 * 2**20 - 10**6 - 100_000 - 2**20
    assert sum(found.values()) + 2**20 == ALL


def test_leases_without_mappings_of_their_own_are_malloc_s():
    found = split(parse(SMAPS), (120_000, 3 * 2**20, 30_000), leased=2 * 2**20)
    assert found[POOLS] == 0 and found[IN_USE] == 90_000 + 2**20


def test_at_most_a_tenth_of_a_real_process_is_unexplained():
    kept = [np.ones(250_000) for _ in range(40)], [{"i": i} for i in range(50_000)]
    report = memory_report()
    assert report.kinds[IN_USE] >= 40 * 2_000_000
    assert report.unexplained + report.kinds[POOLS] <= 0.1 * report.measured.nbytes
    assert report.as_dict()["kinds"] == report.kinds and "not accounted for" in str(report)
    del kept


@pytest.mark.parametrize("books", [None, (0, 0, 0)])
def test_without_books_all_is_other_allocators(books):
    assert sum(split(parse(SMAPS), books, leased=0).values()) == ALL
