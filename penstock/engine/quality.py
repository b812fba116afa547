"""How good a shuffle is, as numbers.

Covers: rank correlation and mean displacement of the order of an epoch, against a uniform shuffle.
Does not cover: making orders (order/, engine/mix.py).

The order is measured on stand-in rows: a source of the same units whose rows are their own numbers. Nothing is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.source import RowSource, UnitSource
from penstock.engine.build import Segment, row_order, segment_of, unit_order, width_of
from penstock.engine.explain import source_of
from penstock.order.permutation import generator
from penstock.order.stripe import Stripe
from penstock.plan.steps import Node


@dataclass(frozen=True)
class ShuffleQuality:
    """1.0 displacement and 0.0 correlation are a uniform shuffle; 0.0 and 1.0 are no shuffle at all."""

    rank_correlation: float
    displacement: float
    rows: int
    exact: bool

    def __str__(self) -> str:
        kind = "exact, over all rows" if self.exact else "units in random order, rows mixed by windows"
        return (
            f"{kind}: rank correlation {self.rank_correlation:+.3f} (uniform 0), "
            f"mean displacement {self.displacement:.1%} of a uniform shuffle's, measured on {self.rows:,} rows"
        )


def shuffle_quality(node: Node, rows: int) -> ShuffleQuality:
    """Measure the first epoch's order of the source at the head of a chain, on at most `rows` places."""
    while node.inputs and segment_of(node, source_of) is None:
        node = node.input
    segment = segment_of(node, source_of)
    if segment is None or segment.shuffle is None:
        raise InvalidInput("shuffle_quality: there is no shuffle directly above a source in this chain.")
    if isinstance(segment.source, RowSource):
        order = row_order(segment.source, segment.shuffle, Stripe(), (0,))
        step = max(1, order.total // rows)
        places = np.arange(0, order.total, step, dtype=np.int64)
        return _measure(order.rows_at(places), places, order.total, exact=True)
    return _windowed(segment, segment.source, rows)


def _windowed(segment: Segment, source: UnitSource, rows: int) -> ShuffleQuality:
    """The order of a windowed shuffle, by unit and place inside it."""
    assert segment.shuffle is not None
    order = unit_order(source, segment.shuffle, Stripe(), False, (0,))
    width = width_of(segment.shuffle)
    row_nbytes = max(1, source.schema().row_nbytes)
    total = source.num_rows() or max(1, source.num_units()) * max(1, 8_000_000 // row_nbytes)
    per_unit = max(1, total // max(1, source.num_units()))
    window_rows = width.rows or max(1, width.nbytes // row_nbytes)
    window_units = max(1, round(window_rows / per_unit))
    sampled = max(1, min(per_unit, rows // max(1, source.num_units())))
    found: list[np.ndarray] = []
    for number, first in enumerate(range(0, order.total, window_units)):
        units = [order.unit_at(place) for place in range(first, min(first + window_units, order.total))]
        inside = (np.arange(sampled) * per_unit) // sampled
        window = np.concatenate([unit * per_unit + inside for unit in units])
        if window_rows < per_unit:  # the window is smaller than a unit: rows move only inside their stretch
            moved = np.arange(len(window)).reshape(-1, max(1, sampled * window_rows // per_unit) or 1)
            window = np.concatenate([window[generator("q", number, i).permutation(m)] for i, m in enumerate(moved)])
        else:
            window = window[generator("quality", number).permutation(len(window))]
        found.append(window)
    values = np.concatenate(found)
    places = np.linspace(0, total - 1, len(values)).astype(np.int64)
    return _measure(values, places, total, exact=False)


def _measure(values: np.ndarray, places: np.ndarray, total: int, *, exact: bool) -> ShuffleQuality:
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    correlation = float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) if len(ranks) > 1 else 0.0
    moved = float(np.abs(values - places).mean() / (total / 3)) if total > 1 else 1.0
    return ShuffleQuality(round(correlation, 4), round(moved, 4), len(values), exact)
