"""A source seen through another keeps all that it can do."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.bench.sample import SampledRows, SampledUnits
from penstock.core.source import NEW_MEMORY, Buffers, NewMemory, RowSource, TellsLastBlock, UnitSource
from penstock.core.wrapped_source import WrappedRows, WrappedUnits, closing
from penstock.engine.cache.rows import CachedRows
from penstock.engine.cache.source import CachedUnits, RowStretches
from penstock.engine.streams.scattered import ScatteredBlocks
from penstock.engine.streams.transform import Fused
from penstock.order.split import RowSide, Rule, UnitSide
from tests.stand_ins import NumberPieces, NumberRows, NumberUnits


class OneBlockUnits(NumberUnits):
    remote = True
    classes = ("cat", "dog")

    def one_block(self, unit: int) -> bool:
        return self.sizes[unit] <= self.part_rows


def test_a_wrapper_is_of_the_kind_of_its_source():
    rows, units = WrappedRows(NumberRows(5)), WrappedUnits(NumberUnits((3, 4)))
    assert isinstance(rows, RowSource) and not isinstance(rows, UnitSource)
    assert isinstance(units, UnitSource) and not isinstance(units, RowSource)
    assert rows.decode(rows.fetch(np.arange(5))).columns["value"].tolist() == [0, 1, 2, 3, 4]
    assert [block.nrows for unit in range(2) for block in units.open(unit)] == [3, 4]
    assert (units.num_units(), units.num_rows(), units.unit_nbytes(1)) == (2, 7, 32)


def test_what_only_some_sources_have_goes_through():
    side = UnitSide(OneBlockUnits((3, 9), part_rows=5), Rule(1, 3), "train")
    assert isinstance(side, TellsLastBlock) and side.one_block(0) and not side.one_block(1)
    assert side.remote and side.classes == ("cat", "dog")
    plain = RowSide(NumberRows(30), Rule(1, 3), "val")
    assert not plain.remote and plain.classes is None and plain.num_rows() == 10


def test_closing_a_wrapper_closes_the_unit_below():
    ended = []

    def blocks():
        try:
            yield from (1, 2, 3)
        finally:
            ended.append(True)

    found = closing(blocks(), lambda inner: (value for value in inner))
    assert next(found) == 1 and not ended
    found.close()
    assert ended == [True]


class GivenRows(NumberRows):
    """Remembers what it was given to read into."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.given: list[Buffers] = []

    def decode(self, fetched, buffers=NEW_MEMORY):
        self.given.append(buffers)
        return super().decode(fetched, buffers)

    def decode_into(self, fetched, out, buffers=NEW_MEMORY):
        self.given.append(buffers)
        super().decode_into(fetched, out, buffers)


class GivenUnits(NumberPieces):
    """Remembers what it was given to read into."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.given: list[Buffers] = []

    def open(self, unit, part=0, buffers=NEW_MEMORY):
        self.given.append(buffers)
        return super().open(unit, part, buffers)

    def read_pieces(self, pieces, buffers=NEW_MEMORY):
        self.given.append(buffers)
        return super().read_pieces(pieces, buffers)


def plainly(fused, block, key):
    return fused(block, key)


@pytest.mark.parametrize(
    "wrap",
    [
        WrappedRows,
        lambda source: RowSide(source, Rule(1, 3), "train"),
        lambda source: SampledRows(source, np.arange(0, 30, 2)),
        lambda source: CachedRows(source, Fused(()), None, plainly),
    ],
)
def test_rows_are_read_into_the_buffers_of_the_run(wrap):
    source, mine = GivenRows(30), NewMemory()
    rows = wrap(source)
    rows.decode(rows.fetch(np.arange(4)), mine)
    rows.decode_into(rows.fetch(np.arange(4)), {"value": np.empty(4, np.int64)}, mine)
    assert source.given == [mine, mine]


@pytest.mark.parametrize(
    "wrap",
    [
        WrappedUnits,
        lambda source: UnitSide(source, Rule(1, 3), "train"),
        lambda source: SampledUnits(source, np.arange(2), 1),
        lambda source: CachedUnits(source, Fused(()), None, plainly),
        lambda source: ScatteredBlocks(source, 1),
    ],
)
@pytest.mark.parametrize("rows", [120, 6000])
def test_units_are_read_into_the_buffers_of_the_run(wrap, rows):
    source, mine = GivenUnits(rows), NewMemory()
    assert sum(block.nrows for block in wrap(source).open(0, 0, mine)) > 0
    assert source.given == [mine]


def test_rows_seen_as_units_are_read_into_the_buffers_of_the_run():
    source, mine = GivenRows(30), NewMemory()
    assert [block.nrows for block in RowStretches(source).open(0, 0, mine)] == [30]
    assert source.given == [mine]
