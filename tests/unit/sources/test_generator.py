from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.core.block import Block
from penstock.core.errors import DataError, InvalidInput, MapError
from penstock.core.schema import Field, Schema
from penstock.core.source import UnitSource
from penstock.read.generator import from_generator
from penstock.sources.generator import GeneratorSource


def pairs() -> Iterator[tuple[np.ndarray, int]]:
    for i in range(10):
        yield np.full(3, i, np.float32), i


def test_samples_become_blocks_of_columns() -> None:
    source = GeneratorSource([pairs], block_rows=4)
    assert isinstance(source, UnitSource)
    blocks = list(source.open(0))
    assert [len(b) for b in blocks] == [4, 4, 2]
    assert source.schema().tree == ("0", "1")
    assert all(b.schema == source.schema() for b in blocks)
    assert Block.concat(blocks).columns["0"].shape == (10, 3)
    assert blocks[1].where(1) == "pairs, sample 5"


def test_resuming_runs_through_what_came_before() -> None:
    source = GeneratorSource([pairs], block_rows=4)
    rest = list(source.open(0, 1))
    assert [b.columns["1"].tolist() for b in rest] == [[4, 5, 6, 7], [8, 9]]
    assert rest[0].where(0) == "pairs, sample 4"


def test_large_samples_end_a_block_by_bytes() -> None:
    def images() -> Iterator[np.ndarray]:
        for _ in range(10):
            yield np.zeros(3_000_000, np.uint8)

    source = GeneratorSource([images])
    assert [len(b) for b in source.open(0)] == [3, 3, 3, 1]
    assert source.unit_nbytes(0) < 30_000_000


def test_text_bytes_and_ragged_values() -> None:
    def mixed() -> Iterator[dict[str, Any]]:
        for i in range(3):
            yield {"t": f"t{i}", "b": b"x" * i, "r": np.arange(i), "n": i}

    (block,) = GeneratorSource([mixed]).open(0)
    assert block.columns["t"].to_pylist() == ["t0", "t1", "t2"]
    assert block.columns["b"].to_pylist() == [b"", b"x", b"xx"]
    assert [len(v) for v in block.columns["r"]] == [0, 1, 2]
    assert block.columns["n"].dtype == np.int64


def test_leaving_early_closes_the_generator() -> None:
    ended: list[bool] = []

    def watched() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            ended.append(True)

    source = GeneratorSource([watched], Schema.of(Field("value", np.dtype(np.int64)), tree="value"), block_rows=10)
    stream = source.open(0)
    next(stream)
    assert not ended
    stream.close()  # type: ignore[attr-defined]
    assert ended == [True]


def test_errors_name_the_function() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise KeyError("gone")

    def changing() -> Iterator[Any]:
        yield {"a": 1}
        yield {"b": 1}

    with pytest.raises(MapError, match=r"failing failed on sample 1 .*KeyError") as caught:
        list(GeneratorSource([failing]).open(0))
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(DataError, match="different form"):
        list(GeneratorSource([changing]).open(0))
    with pytest.raises(DataError, match="yields nothing"):
        GeneratorSource([lambda: iter(())]).schema()
    with pytest.raises(InvalidInput, match="cannot be iterated"):
        GeneratorSource([lambda: 3]).schema()  # type: ignore[list-item,return-value]


def test_from_generator_takes_functions_only() -> None:
    with pytest.raises(InvalidInput, match="used up after one epoch"):
        from_generator(pairs())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="empty list"):
        from_generator([])
    with pytest.raises(InvalidInput, match="rows="):
        from_generator(pairs, rows=-1)


def test_every_epoch_and_every_function_is_read() -> None:
    ds = from_generator([pairs, pairs], rows=20).batch(20)
    for _ in range(2):
        (batch,) = list(ds)
        assert sorted(batch[1].tolist()) == sorted([*range(10)] * 2)
