from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.block import Block
from penstock.engine.buffers import gather


def blocks_of(sizes: list[int]) -> list[Block]:
    blocks, first = [], 0
    for size in sizes:
        number = np.arange(first, first + size)
        columns = {
            "wide": (number[:, None] * 7 + np.arange(5)).astype(np.float32),
            "long": number.astype(np.int64),
            "byte": (number % 251).astype(np.uint8),
            "strided": np.stack([number, -number], axis=1)[:, 1],
            "text": pa.array([str(n) for n in number]),
        }
        blocks.append(Block(columns, {name: name for name in columns}))
        first += size
    return blocks


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9), st.integers(0, 5))
def test_rows_arrive_in_the_order_asked_for(sizes: list[int], seed: int) -> None:
    blocks, total = blocks_of(sizes), sum(sizes)
    order = np.random.default_rng(seed).permutation(total)[: max(0, total - 3)]
    out = {
        "wide": np.empty((len(order), 5), np.float32),
        "long": np.empty(len(order), np.int64),
        "byte": np.empty(len(order), np.uint8),
        "strided": np.empty(len(order), np.int64),
    }
    gather.write_rows(blocks, np.cumsum(sizes, dtype=np.int64), order, out)
    np.testing.assert_array_equal(out["wide"], (order[:, None] * 7 + np.arange(5)).astype(np.float32))
    np.testing.assert_array_equal(out["long"], order)
    np.testing.assert_array_equal(out["byte"], order % 251)
    np.testing.assert_array_equal(out["strided"], -order)


def test_text_and_columns_of_another_type_are_converted() -> None:
    blocks, order = blocks_of([3, 4]), np.array([6, 0, 3])
    out = {"long": np.empty(3, np.float64), "text": np.empty(3, object)}
    gather.write_rows(blocks, np.array([3, 7]), order, out)
    assert out["long"].tolist() == [6.0, 0.0, 3.0] and out["text"].tolist() == ["6", "0", "3"]
