"""How well an order of rows mixes: coverage and neighbours, on stand-in rows.

Covers: the epoch of a shuffled source of units with rows that are their own numbers, and what batches of it show.
Does not cover: which source and shuffle a plan has, and telling people (quality.py).

Cut the dataset into 100 equal stretches and count the distinct ones among 256 consecutive rows. A uniform shuffle shows
92.4; what an epoch shows divided by that is its *coverage*. It is measured on the real order of units and pieces and
the real windows; nothing is read. Sizes are those that the source gives, which for text are estimates.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from penstock.core.events import events
from penstock.core.source import BLOCK_NBYTES, TellsLastBlock, UnitSource, decoded_nbytes
from penstock.engine.arrange import SHUFFLED_CYCLE, arrange
from penstock.engine.streams.scattered import ScatteredBlocks
from penstock.order.permutation import generator
from penstock.order.stripe import Stripe
from penstock.plan import steps

BATCH, STRETCHES, CLASSES, NEAR = 256, 100, 10, 1000
GOOD = 0.8
"""Coverage below which a warning is due."""

_log = logging.getLogger("penstock")

RowsAt = Callable[[int, int], np.ndarray]
"""Row numbers that stand at places first..last-1 of the epoch."""


@dataclass(frozen=True)
class ShuffleQuality:
    """Coverage 1.0 is a uniform shuffle. `neighbours` is the share of consecutive rows that were within 1,000 rows."""

    coverage: float
    worst_tenth: float
    neighbours: float
    uniform_neighbours: float
    classes: float
    least_classes: int
    rows: int
    exact: bool
    how: str

    def __str__(self) -> str:
        return (
            f"{self.how}: coverage {self.coverage:.2f}, worst tenth of the epoch {self.worst_tenth:.2f} (uniform 1); "
            f"{self.neighbours:.1%} of consecutive rows were within {NEAR:,} rows (uniform "
            f"{self.uniform_neighbours:.1%}). {self.sentence}"
        )

    @property
    def sentence(self) -> str:
        """What a batch of a sorted dataset would see."""
        return (
            f"Were the dataset sorted by class ({CLASSES} of them), a batch of {BATCH} rows would see "
            f"{self.classes:.1f} classes, at least {self.least_classes}."
        )


def quality_of_units(source: UnitSource, shuffle: steps.Shuffle, rows: int = 20_000) -> ShuffleQuality:
    """Measure a shuffle by windows of a source of units."""
    epoch = StandIn(source, shuffle)
    return measured(epoch.rows_at, epoch.total, rows, epoch.how, exact=epoch.exact)


class StandIn:
    """An epoch of a shuffled source of units, with rows that are their own numbers."""

    def __init__(self, source: UnitSource, shuffle: steps.Shuffle) -> None:
        arranged = arrange(source, shuffle, Stripe(), False, (0,))
        assert arranged.width is not None
        nbytes = decoded_nbytes(source)
        self.total = max(1, source.num_rows() or nbytes // max(1, source.schema().row_nbytes))
        self._view = arranged.source
        width, count = arranged.width, arranged.order.count
        if isinstance(self._view, ScatteredBlocks):
            self.how = f"blocks of {self._view.strata:,} scattered pieces, rows mixed by windows"
            self._blocks = np.arange(count)
            self._spans: Callable[[int], np.ndarray] = self._scattered
        else:
            self.how = "units in random order, rows mixed by windows"
            self._parts = _parts(source, nbytes)
            self._blocks = _in_turns(np.array([arranged.order.unit(local) for local in range(count)]), self._parts)
            self._spans = self._of_unit
        each = max(1.0, self.total / max(1, len(self._blocks)))
        wanted = width.rows if width.rows is not None else width.nbytes * self.total / nbytes
        self._window_rows = max(1.0, wanted if width.rows is not None else math.ceil(wanted / each) * each)
        # Mixing within less than a batch does not change what the batch shows.
        self._window_rows = max(BATCH, min(self._window_rows, width.blocks * each, float(self.total)))
        self._each = each
        self.exact = self._window_rows >= self.total
        self._window = (-1.0, np.empty((0, 2), np.int64))

    def rows_at(self, first: int, last: int) -> np.ndarray:
        """Rows drawn at random from each window that the places touch: that is what a window shows."""
        found = []
        number = int(first / self._window_rows)
        while first < last:
            begin, end = number * self._window_rows, min(self.total, (number + 1) * self._window_rows)
            here = min(last, max(first + 1, math.ceil(end))) - first
            found.append(self._drawn(begin, end, here, generator("quality", number, first)))
            first, number = first + here, number + 1
        return np.concatenate(found)

    def _drawn(self, begin: float, end: float, count: int, random: np.random.Generator) -> np.ndarray:
        """Some rows of the window between two places of the order before mixing."""
        if self._window[0] != begin:
            self._window = (begin, self._spans_between(begin, end))
        spans = self._window[1]
        ends = np.cumsum(spans[:, 1])
        inside = max(1, min(int(ends[-1]), int(end - begin)))
        skipped = int(begin % self._each) if inside < ends[-1] else 0
        picked = skipped + random.choice(inside, min(count, inside), replace=False)
        which = np.minimum(np.searchsorted(ends, picked, side="right"), len(spans) - 1)
        return np.asarray(spans[which, 0] + picked - (ends[which] - spans[which, 1]))

    def _spans_between(self, begin: float, end: float) -> np.ndarray:
        blocks = range(int(begin / self._each), min(len(self._blocks), max(1, math.ceil(end / self._each))))
        return np.concatenate([self._spans(block) for block in blocks])

    def _scattered(self, block: int) -> np.ndarray:
        assert isinstance(self._view, ScatteredBlocks)
        return _cut(self._view.pieces(block), self._view.total, self.total)

    def _of_unit(self, block: int) -> np.ndarray:
        return _cut(self._blocks[block : block + 1], self._view.num_units() * self._parts, self.total)


def _cut(numbers: np.ndarray, count: int, total: int) -> np.ndarray:
    """(first row, rows) of the given ones of `count` equal parts of a dataset."""
    begins = numbers * total // max(1, count)
    return np.stack([begins, np.maximum(1, (numbers + 1) * total // max(1, count) - begins)], axis=1)


def _parts(source: UnitSource, nbytes: int) -> int:
    """Blocks of a unit."""
    if source.num_units() < 1 or (isinstance(source, TellsLastBlock) and source.one_block(0)):
        return 1
    return max(1, round(nbytes / source.num_units() / BLOCK_NBYTES))


def _in_turns(units: np.ndarray, parts: int) -> np.ndarray:
    """Blocks in the order in which open units give them, one each in turn."""
    blocks = units[:, None] * parts + np.arange(parts)
    cycles = [blocks[first : first + SHUFFLED_CYCLE].T.reshape(-1) for first in range(0, len(units), SHUFFLED_CYCLE)]
    return np.concatenate(cycles) if cycles else np.zeros(1, np.int64)


def measured(rows_at: RowsAt, total: int, rows: int, how: str, *, exact: bool) -> ShuffleQuality:
    """Look at batches from every tenth of an epoch, the first and the last of them included."""
    size = min(BATCH, total)
    each = max(2, rows // BATCH // 10)
    tenths: list[float] = []
    classes: list[int] = []
    near: list[float] = []
    for tenth in range(10):
        low = min(total * tenth // 10, total - size)
        high = max(total * (tenth + 1) // 10 - size, low)
        shown = []
        for first in np.linspace(low, high, each).astype(int).tolist():
            batch = rows_at(first, first + size)
            shown.append(len(np.unique(batch * STRETCHES // total)))
            classes.append(len(np.unique(batch * CLASSES // total)))
            near.append(float((np.abs(np.diff(batch)) <= NEAR).mean()) if size > 1 else 0.0)
        tenths.append(float(np.mean(shown)) / uniform_stretches(total, size))
    return ShuffleQuality(
        coverage=round(float(np.mean(tenths)), 4),
        worst_tenth=round(min(tenths), 4),
        neighbours=round(float(np.mean(near)), 5),
        uniform_neighbours=round(uniform_neighbours(total), 5),
        classes=round(float(np.mean(classes)), 2),
        least_classes=min(classes),
        rows=total,
        exact=exact,
        how=how,
    )


def uniform_stretches(total: int, size: int = BATCH, stretches: int = STRETCHES) -> float:
    """Stretches that `size` rows of a uniform shuffle show on average."""
    if total <= size:
        return float(min(total, stretches))
    inside = total / stretches
    if total - inside < size:
        return float(min(total, stretches))
    missed = math.lgamma(total - inside + 1) - math.lgamma(total - inside - size + 1)
    missed -= math.lgamma(total + 1) - math.lgamma(total - size + 1)
    return min(total, stretches) * (1 - math.exp(missed)) if total >= stretches else float(min(total, size))


def uniform_neighbours(total: int) -> float:
    """The share of pairs of rows that lie within `NEAR` of each other."""
    if total <= NEAR + 1:
        return 1.0
    return (2 * NEAR * total - NEAR * (NEAR + 1)) / (total * (total - 1))


def warn(source: UnitSource, found: ShuffleQuality) -> None:
    """Say how badly a shuffle mixes, why, and what to do."""
    events.emit("shuffle.weak", source.label, coverage=found.coverage, worst_tenth=found.worst_tenth)
    _log.warning(
        "shuffle of %s: coverage %.2f of a uniform shuffle's (%s). %s Use shuffle(exact=True), a wider window=, or "
        "write the rows in random order once with `penstock pack --shuffle`.",
        source.label,
        found.coverage,
        found.how,
        found.sentence,
    )
