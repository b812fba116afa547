"""A source seen through another keeps all that it can do."""

from __future__ import annotations

import numpy as np

from penstock.core.source import RowSource, TellsLastBlock, UnitSource
from penstock.core.wrapped_source import WrappedRows, WrappedUnits, closing
from penstock.order.split import RowSide, Rule, UnitSide
from tests.stand_ins import NumberRows, NumberUnits


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
