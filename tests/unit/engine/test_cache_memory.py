"""A cache in memory is leased, leaves room, and gives way."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from penstock.core.block import Block
from penstock.core.events import events
from penstock.engine.cache.codec import checksum, checksums, decode_block, encode_block
from penstock.engine.cache.row_store import RamLog, RowStore
from penstock.engine.cache.source import drop_cached, keep_again
from penstock.engine.cache.unit_store import RamUnits
from penstock.engine.pipe import pipe
from penstock.memory.budget import Budget
from tests.contract.chains import elements, rows, units


def held() -> int:
    budget = pipe().budget
    return 0 if budget is None else budget.holders().get("cache", 0)


@pytest.mark.parametrize("make", [lambda: rows(30), lambda: units((10, 20))])
def test_a_cache_is_leased_until_its_dataset_is_gone(make):
    gc.collect()
    before = held()
    ds = make().map(lambda x: x + 1).cache()
    first = elements(ds)
    assert held() > before
    assert elements(ds) == first
    del ds
    gc.collect()
    assert held() == before


@pytest.mark.parametrize("make", [lambda: rows(30), lambda: units((10, 20))])
def test_the_watchdog_can_take_the_cache_away_and_give_it_back(make):
    calls: list[int] = []

    def count(x: Any) -> Any:
        calls.append(1)
        return x

    ds = make().map(count, workers="thread").cache()
    first = elements(ds)
    full = held()
    drop_cached()
    try:
        assert held() < full
        done = len(calls)
        assert elements(ds) == first
        assert len(calls) == done + 30
    finally:
        keep_again()
    elements(ds)
    done = len(calls)
    assert elements(ds) == first
    assert len(calls) == done


def test_rows_stop_being_added_when_the_budget_is_needed_by_others():
    events.recent.clear()
    budget = Budget(30_000_000)
    log = RamLog(100, budget, "numbers")
    store = RowStore(log, "numbers")
    row = np.zeros((1, 4_000_000), dtype=np.uint8)
    for n in range(10):
        row[:] = n
        store.put(np.array([n]), np.array([4_000_000], dtype=np.uint64), row)
    there = store.has(np.arange(100))
    assert there.tolist() == [True] * 4 + [False] * 96
    assert budget.free >= 10_000_000
    sound, data = store.get_equal(np.array([3, 50, 0]), 4_000_000)
    assert sound.tolist() == [True, False, True]
    assert (data[0] == 3).all() and (data[2] == 0).all()
    assert len([e for e in events.recent if e.kind == "cache.full"]) == 1
    store.close()
    assert budget.used == 0


def test_rows_that_lie_across_two_chunks_are_read_together():
    budget = Budget(100_000_000)
    store = RowStore(RamLog(40, budget, "numbers"), "numbers")
    row = np.zeros((1, 1_000_000), dtype=np.uint8)
    for n in range(20):
        row[:] = n
        store.put(np.array([n]), np.array([1_000_000], dtype=np.uint64), row)
    sound, data = store.get_equal(np.arange(20), 1_000_000)
    assert sound.all()
    assert data[:, 500].tolist() == list(range(20))
    store.close()


def test_units_stop_being_added_when_the_budget_is_needed_by_others():
    budget = Budget(30_000)
    store = RamUnits(budget, "units")
    for unit in range(5):
        writer = store.writer(unit)
        if writer is not None and writer.add(bytes(8_000)):
            writer.commit()
    assert [len(list(store.read(unit, 0))) for unit in range(5)] == [1, 1, 0, 0, 0]
    store.close()
    assert budget.used == 0


@pytest.mark.parametrize("nbytes", [*range(20), 1000, 83_247])
def test_one_piece_and_many_rows_have_the_same_checksum(nbytes):
    for data in (np.random.default_rng(nbytes).bytes(nbytes), bytes(nbytes), b"\xff" * nbytes):
        assert checksum(data) == int(checksums(np.frombuffer(data, np.uint8)[None])[0])


def test_any_change_within_a_word_changes_the_checksum():
    rng = np.random.default_rng(0)
    for nbytes in (1, 7, 8, 9, 64, 1001):
        row = rng.integers(0, 256, (1, nbytes), dtype=np.uint8)
        sums = set()
        for at in range(nbytes):
            changed = row.copy()
            changed[0, at] ^= 1 << int(rng.integers(8))
            sums.add(int(checksums(changed)[0]))
        assert int(checksums(row)[0]) not in sums
    assert checksums(np.zeros((1, 100), dtype=np.uint8))[0] != 0


def test_blocks_come_back_as_they_were():
    objects = np.empty(3, dtype=object)
    objects[:] = [np.arange(3), None, [1, "zwei", b"3", 2.5, np.float32(4)]]
    block = Block({"a": np.arange(6.0).reshape(3, 2), "o": objects}, ("a", {"x": "o"}))
    again = decode_block(encode_block(block))
    assert again.tree == block.tree
    assert (again.columns["a"] == block.columns["a"]).all()
    assert again.columns["o"][0].tolist() == [0, 1, 2]
    assert again.columns["o"][1] is None
    assert again.columns["o"][2] == [1, "zwei", b"3", 2.5, np.float32(4)]
