"""How well the shuffle of a plan mixes, and a warning where it does not.

Covers: `ds.shuffle_quality()`, the event that the report shows, the warning below 0.8.
Does not cover: the measure (mixing.py), making orders (order/, arrange.py).
"""

from __future__ import annotations

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.events import events
from penstock.core.source import RowSource, UnitSource, decoded_nbytes
from penstock.engine.arrange import width_of
from penstock.engine.mixing import GOOD, ShuffleQuality, measured, quality_of_units, warn
from penstock.engine.rowstore.choose import store_wanted
from penstock.engine.segment import Segment, row_order, segments_of
from penstock.order.permutation import Permutation, key_of
from penstock.order.stripe import Stripe
from penstock.plan.steps import Node

SINGLE_ROWS = "rows in exactly random order"
STORED_ROWS = "rows in exactly random order, through a row store on disk"

FEW_ROWS = 10_000
"""Datasets below this are not warned of: a tenth of their epoch is a few batches."""


def shuffle_quality(node: Node, rows: int) -> ShuffleQuality:
    """Measure the first epoch's order of the source at the head of a chain, on about `rows` places."""
    segment = next(segments_of(node), None)
    if segment is None or segment.shuffle is None:
        raise InvalidInput("shuffle_quality: there is no shuffle directly above a source in this chain.")
    return quality_of(segment, rows)


def quality_of(segment: Segment, rows: int = 20_000) -> ShuffleQuality:
    """As `shuffle_quality`, of a segment that has a shuffle."""
    shuffle, source = segment.shuffle, segment.source
    assert shuffle is not None
    if isinstance(source, RowSource):
        order = row_order(source, shuffle, Stripe(), (0,))
        at = order.rows_at
        return measured(lambda first, last: at(np.arange(first, last)), order.total, rows, SINGLE_ROWS, exact=True)
    if store_wanted(source, shuffle) is None:
        return quality_of_units(source, shuffle, rows)
    total = max(1, source.num_rows() or decoded_nbytes(source) // max(1, source.schema().row_nbytes))
    spread = Permutation(total, key_of("quality", shuffle.seed))
    return measured(lambda first, last: spread.at(np.arange(first, last)), total, rows, STORED_ROWS, exact=True)


def tell(node: Node) -> None:
    """An event for every shuffle in a plan: how well it mixes; and a warning where that is badly."""
    for segment in segments_of(node):
        if segment.shuffle is not None:
            _tell(segment)


def _tell(segment: Segment) -> None:
    source, shuffle = segment.source, segment.shuffle
    assert shuffle is not None
    how = _exactly(segment)
    if how is not None:
        events.emit("shuffle.mixes", source.label, exact=True, coverage=1.0, how=how)
        return
    assert isinstance(source, UnitSource)
    if decoded_nbytes(source) // max(1, source.schema().row_nbytes) < FEW_ROWS:
        return
    found = quality_of_units(source, shuffle, rows=5_000)
    numbers = {"coverage": found.coverage, "worst_tenth": found.worst_tenth}
    events.emit("shuffle.mixes", source.label, exact=False, **numbers, how=found.how, sentence=found.sentence)
    if found.coverage < GOOD:
        warn(source, found)


def _exactly(segment: Segment) -> str | None:
    """How a shuffle comes to a uniformly random order; None where it does not. Nothing is read or measured for it."""
    source, shuffle = segment.source, segment.shuffle
    assert shuffle is not None
    if isinstance(source, RowSource):
        return SINGLE_ROWS
    if store_wanted(source, shuffle) is not None:
        return STORED_ROWS
    at_once = shuffle.window is None and decoded_nbytes(source) <= width_of(shuffle).nbytes
    return "all rows in one window" if at_once else None
