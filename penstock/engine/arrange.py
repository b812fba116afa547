"""How a shuffle reads a source of units: as they are, or as blocks of scattered pieces.

Covers: choosing the view of a source that an epoch reads, the order of its units, and how wide a window is.
Does not cover: reading (streams/units.py), mixing (streams/window_shuffle.py), how well it mixes (quality.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from penstock.core.sizes import parse_size
from penstock.core.source import PieceSource, UnitSource, decoded_nbytes
from penstock.engine.rowstore.source import StoredRows
from penstock.engine.streams.scattered import ScatteredBlocks
from penstock.engine.streams.units import UnitOrder
from penstock.engine.streams.window_shuffle import Width
from penstock.order.permutation import Permutation, key_of
from penstock.order.stripe import Stripe
from penstock.plan import steps

Epoch = tuple[int, ...]

SHUFFLED_CYCLE = 8
"""Units of many blocks that are read in turns when shuffled, so that a window holds rows from all over."""


@dataclass(frozen=True)
class Arranged:
    """What one epoch of one rank reads, and the window that mixes it (None without a shuffle)."""

    source: UnitSource
    order: UnitOrder
    width: Width | None


def arrange(source: UnitSource, shuffle: steps.Shuffle | None, stripe: Stripe, thin: bool, epoch: Epoch) -> Arranged:
    """Units as stored, permuted, or in blocks of scattered pieces; shared out, or read by every rank and thinned."""
    keep = (stripe.rank, stripe.world) if thin else (0, 1)
    cut = replace(stripe, rank=0, world=1) if thin else stripe
    if shuffle is None:
        return Arranged(source, UnitOrder(lambda place: place, source.num_units(), cut, keep), None)
    width = width_of(shuffle)
    if scatters(source):
        blocks = ScatteredBlocks(source, key_of("pieces", shuffle.seed, *epoch))
        order = UnitOrder(lambda place: place, blocks.num_units(), cut, keep)
        return Arranged(blocks, order, width.even(order.count, decoded_nbytes(source) // blocks.num_units()))
    total = source.num_units()
    if isinstance(source, StoredRows):
        width = width.even(cut.count(total), decoded_nbytes(source) // total)
    permutation = Permutation(total, key_of("units", shuffle.seed, *epoch))

    def unit_at(place: int) -> int:
        return int(permutation.at(np.array([place]))[0])

    return Arranged(source, UnitOrder(unit_at, total, cut, keep), width)


def scatters(source: UnitSource) -> bool:
    """Whether a shuffle reads this source in scattered pieces."""
    return isinstance(source, PieceSource) and source.num_pieces() > 0


def num_units(source: UnitSource, shuffle: steps.Shuffle | None) -> int:
    """How many units there are for ranks to share."""
    if shuffle is None or not isinstance(source, PieceSource) or not source.num_pieces():
        return source.num_units()
    return -(-source.num_pieces() // max(1, source.pieces_per_block()))


def width_of(shuffle: steps.Shuffle) -> Width:
    """A window in rows (a number) or bytes (a size)."""
    if shuffle.window is None:
        return Width()
    if isinstance(shuffle.window, int):
        return Width(rows=shuffle.window, nbytes=1 << 60)
    return Width(nbytes=parse_size(shuffle.window))
