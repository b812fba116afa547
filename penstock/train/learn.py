"""One pass over the training rows, a block at a time: what the recipe has to know.

Covers: surveying blocks in worker threads, merging them in order, deciding what the target is.
Does not cover: the statistics themselves (statistics.py), which columns (roles.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.events import events
from penstock.core.schema import OBJECT
from penstock.core.source import Source
from penstock.dataset import Dataset
from penstock.memory.account import add_holder
from penstock.train.inspect import Inspected, as_row
from penstock.train.recipe import Category, DataRecipe, Numbers, Picture, Target, Text
from penstock.train.roles import Roles
from penstock.train.statistics import Lengths, Spread, Tally, as_text, lengths_of, words_of

_log = logging.getLogger("penstock")

ROWS_AT_A_TIME = 4096
"""Rows surveyed together: as float64, beside squares of differences, a whole block would be many times itself."""
MOST_CLASSES = 1000
FEW_NUMBERS = 20
"""A target of whole numbers, stored as fractions, with no more values than this is a class."""
WHOLE_NUMBERS = 100
"""The same for a target stored as whole numbers."""
MOST_CATEGORIES = 10_000
BUCKETS = 1_000
MOST_WORDS = 20_000
LONGEST = 256
SHORTEST = 8
FEW_BLOCKS = 4
"""Below this, the order of the rows is not reported: all of them are mixed at once."""
SORTED = 0.2
SORTED_BY = 0.5
"""Of columns beside the target: many are clustered a little, few so much that the rows are in their order."""
ROUNDING = 1e-9
SHOWN = 3
"""Columns that a message names."""
COVERED = 0.95
"""Share of texts that fit the length whole."""


@dataclass
class BlockStatistics:
    """What one block of rows says; merged, what all say."""

    rows: int = 0
    without_target: int = 0
    numbers: Spread | None = None
    categories: list[Tally] = field(default_factory=list)
    words: Tally | None = None
    lengths: Lengths | None = None
    target: Tally = field(default_factory=Tally)
    target_spread: Spread | None = None
    target_whole: bool = True
    blocks: int = 0
    alike: float = 0.0
    """Pairs of rows of one block with the same target, over the rows of the block, summed."""
    around: float = 0.0
    """Rows times the square of the mean target, block by block, summed."""
    numbers_around: np.ndarray | float = 0.0
    """The same of each column of numbers; times are among them."""

    @property
    def clustered(self) -> float:
        """How much the block a row is in tells about its target: 0 in random order, 1 where blocks have one value."""
        rows, spread = sum(self.target.counts.values()), self.target_spread
        if self.blocks < FEW_BLOCKS:
            return 0.0
        if spread is not None and float(spread.m2[0]) > 0:  # the share of the variance that lies between blocks
            return float((self.around - spread.count[0] * spread.mean[0] ** 2) / spread.m2[0])
        overall = sum(count * count for count in self.target.counts.values()) / max(1, rows) ** 2
        return (self.alike / rows - overall) / (1 - overall) if rows and overall < 1 else 0.0

    def sorted_columns(self, names: list[str]) -> list[str]:
        """Columns of numbers or times by which the rows are sorted or clustered, the most telling first."""
        spread = self.numbers
        if spread is None or self.blocks < FEW_BLOCKS:
            return []
        middle = spread.count * spread.mean**2
        # Of values that differ by less than their rounding, nothing can be said.
        known = spread.m2 > ROUNDING * middle
        shares = np.where(known, (self.numbers_around - middle) / np.where(known, spread.m2, 1.0), 0.0)
        return list(dict.fromkeys(names[i] for i in np.argsort(-shares, kind="stable") if shares[i] > SORTED_BY))

    def merge(self, other: BlockStatistics) -> None:
        """Add the next block."""
        self.rows, self.without_target = self.rows + other.rows, self.without_target + other.without_target
        self.numbers = _merged(self.numbers, other.numbers)
        self.words, self.lengths = _merged(self.words, other.words), _merged(self.lengths, other.lengths)
        self.target_spread = _merged(self.target_spread, other.target_spread)
        self.target.merge(other.target)
        self.target_whole = self.target_whole and other.target_whole
        self.blocks, self.alike = self.blocks + other.blocks, self.alike + other.alike
        self.around += other.around
        self.numbers_around = self.numbers_around + other.numbers_around
        if self.categories:
            for mine, theirs in zip(self.categories, other.categories, strict=True):
                mine.merge(theirs)
        else:
            self.categories = other.categories

    @property
    def nbytes(self) -> int:
        """Bytes held, near enough."""
        return sum(tally.nbytes for tally in (*self.categories, self.target, *([self.words] if self.words else [])))


class ColumnSurvey:
    """A function of blocks for `map_batches`: many rows in, one row with `BlockStatistics` out."""

    def __init__(self, roles: Roles, y: str) -> None:
        self.roles, self.y = roles, y

    def __call__(self, *parts: Any) -> dict[str, np.ndarray]:
        columns = as_row(parts[0] if len(parts) == 1 else parts)
        out = np.empty(1, object)
        out[0] = self.part(columns)
        return {"part": out}

    def part(self, columns: dict[str, Any]) -> BlockStatistics:
        """What these rows say."""
        part = BlockStatistics(rows=len(columns[self.y]))
        self._survey_target(part, np.asarray(columns[self.y]))
        numbers = [role.name for role in self.roles.of("number")]
        if numbers:
            for first in range(0, part.rows, ROWS_AT_A_TIME):
                rows = {name: columns[name][first : first + ROWS_AT_A_TIME] for name in numbers}
                part.numbers = _merged(part.numbers, Spread.of(side_by_side(rows, numbers, np.float64)))
        if part.numbers is not None:
            part.numbers_around = part.numbers.count * part.numbers.mean**2
        part.categories = [Tally.of(as_text(columns[role.name])) for role in self.roles.of("category")]
        texts = [role.name for role in self.roles.of("text")]
        # Some texts at a time, too: the words of a whole block, beside the table that counts them, are many times it.
        for first in range(0, part.rows if texts else 0, ROWS_AT_A_TIME):
            words = words_of(columns[name][first : first + ROWS_AT_A_TIME] for name in texts)
            part.words = _merged(part.words, Tally.of(words.flatten()))
            part.lengths = _merged(part.lengths, lengths_of(words))
        return part

    def _survey_target(self, part: BlockStatistics, y: np.ndarray) -> None:
        if y.dtype != OBJECT and y.ndim > 1:
            if int(np.prod(y.shape[1:])) != 1:
                raise InvalidInput(f"The target has rows of shape {y.shape[1:]}; it must be one value a row.")
            y = y.reshape(-1)
        text = as_text(y)
        part.target = Tally.of(text)
        part.target.most = 4 * MOST_CLASSES
        part.without_target = text.null_count
        part.blocks = 1
        part.alike = sum(count * count for count in part.target.counts.values()) / max(1, len(text))
        if y.dtype != OBJECT:
            values = y.astype(np.float64).reshape(-1, 1)
            part.target_spread = Spread.of(values)
            part.around = float(part.target_spread.count[0] * part.target_spread.mean[0] ** 2)
            finite = values[np.isfinite(values)]
            part.target_whole = bool(np.all(finite == np.round(finite)))


def learn(
    source: Source,
    looked: Inspected,
    *,
    task: str,
    progress: Callable[[int], None] = lambda rows: None,
) -> DataRecipe:
    """Read all rows of a source once and make the recipe. `progress` is called with the rows read so far."""
    reading, roles = looked.reading, looked.roles
    assert reading.y is not None
    survey = ColumnSurvey(roles, reading.y)
    total = BlockStatistics()
    total.target.most = 4 * MOST_CLASSES
    forget = add_holder("preparation", lambda: total.nbytes)
    try:
        with iter(Dataset.of(source).shard(0, 1).map_batches(survey, workers="thread")) as blocks:
            for block in blocks:
                total.merge(block["part"])
                progress(total.rows)
    finally:
        forget()
    if not total.rows - total.without_target:
        raise InvalidInput(f"No row has a value of {reading.target!r}, the target.")
    columns = list(reading.names) if reading.matrix else [r.name for r in roles.of("number") for _ in range(r.width)]
    _tell_sorted(total, str(reading.target), columns)
    rows = {"train": total.rows - total.without_target, "without_target": total.without_target}
    return recipe_of(looked, total, task, rows)


def _tell_sorted(total: BlockStatistics, target: str, numbers: list[str]) -> None:
    """Say that neighbouring rows are alike, by their target or by a time or number; training mixes them."""
    if total.clustered > SORTED:
        events.emit("train.sorted", target, clustered=round(total.clustered, 3))
        _log.warning(
            "The rows are sorted or clustered by the target %r: where a row stands explains %.0f %% of it. "
            "Training reads them in an order that mixes all of the data.",
            target,
            100 * total.clustered,
        )
    by = total.sorted_columns(numbers)
    if by:
        events.emit("train.sorted_by", target, columns=by[:SHOWN])
        _log.warning(
            "The rows are sorted or clustered by %s. Training reads them in an order that mixes all of the data.",
            ", ".join(repr(name) for name in by[:SHOWN]),
        )


def recipe_of(looked: Inspected, part: BlockStatistics, task: str, rows: dict[str, int]) -> DataRecipe:
    """The recipe that the survey of all rows gives."""
    roles = looked.roles
    numbers = roles.of("number")
    texts = roles.of("text")
    pictures = roles.of("image", "image bytes")
    text = None
    if texts:
        assert part.words is not None and part.lengths is not None
        part.words.counts.pop("", None)
        length = min(LONGEST, max(SHORTEST, part.lengths.quantile(COVERED)))
        text = Text(tuple(r.name for r in texts), tuple(part.words.top(MOST_WORDS)), length)
    ignored = dict(looked.roles.ignored)
    for extra in pictures[1:]:
        ignored[extra.name] = "one picture a row is taken"
    picture = None
    if pictures:
        height, width, channels = (int(n or 0) for n in pictures[0].shape)
        first, shape = pictures[0], (height, width, channels)
        picture = Picture(first.name, shape, first.dtype, encoded=first.kind == "image bytes")
    return DataRecipe(
        reading=looked.reading,
        target=target_of(looked, part, task),
        numbers=_numbers([r.name for r in numbers], part.numbers) if part.numbers is not None else None,
        categories=tuple(_category(r.name, t) for r, t in zip(roles.of("category"), part.categories, strict=True)),
        text=text,
        picture=picture,
        ignored=ignored,
        rows=rows,
    )


def target_of(looked: Inspected, part: BlockStatistics, task: str) -> Target:
    """Whether the target is one of some classes or a number, by its type and how many values it has."""
    name, tally, spread = looked.reading.y or "", part.target, part.target_spread
    many = tally.forgotten > 0 or len(tally.counts) > MOST_CLASSES
    if task == "auto":
        few = WHOLE_NUMBERS if part.target_whole and not _fractions(part) else FEW_NUMBERS
        number = spread is not None and (many or not part.target_whole or len(tally.counts) > few)
        task = "number" if number else "classes"
    if task == "number":
        if spread is None:
            raise InvalidInput(f"The target {looked.reading.target!r} is text; only classes can be learned from it.")
        return Target(name, "number", mean=float(spread.mean[0]), std=float(spread.std[0]))
    if many:
        raise InvalidInput(
            f"The target {looked.reading.target!r} has more than {MOST_CLASSES} values, too many for classes. "
            f"Choose another --target{', or --task number' if spread is not None else ''}."
        )
    if len(tally.counts) < 2:
        raise InvalidInput(f"The target {looked.reading.target!r} has only one value, so there is nothing to learn.")
    key = (lambda v: (float(v), v)) if spread is not None else (lambda v: (0.0, v))
    return Target(name, "classes", classes=tuple(sorted(tally.counts, key=key)))


def side_by_side(columns: dict[str, Any], names: list[str], dtype: Any) -> np.ndarray:
    """Columns of numbers as one matrix; a column may have several numbers a row."""
    found = []
    for name in names:
        values = np.asarray(columns[name])
        if values.dtype == OBJECT:  # a block in which all values are missing has no type
            values = _as_numbers(name, values)
        if values.dtype.kind in "mM":
            missing = np.isnat(values)
            values = np.where(missing, np.nan, values.astype("i8").astype(np.float64))
        found.append(values.reshape(len(values), -1))
    if len(found) == 1:
        return found[0].astype(dtype, copy=False)
    return np.concatenate([one.astype(dtype, copy=False) for one in found], axis=1)


def _as_numbers(name: str, values: np.ndarray) -> np.ndarray:
    try:
        return np.array([np.nan if value is None else value for value in values], np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"column {name!r} has to be numbers, as in training, but {error}") from None


def _numbers(names: list[str], spread: Spread) -> Numbers:
    flags = tuple(int(i) for i in np.flatnonzero(spread.missing))
    return Numbers(tuple(names), tuple(map(float, spread.mean)), tuple(map(float, spread.std)), flags)


def _category(name: str, tally: Tally) -> Category:
    many = tally.forgotten > 0 or len(tally.counts) > MOST_CATEGORIES
    values = tally.top(MOST_CATEGORIES)
    return Category(name, tuple(values if many else sorted(values)), BUCKETS if many else 0)


def _fractions(part: BlockStatistics) -> bool:
    """Whether the target may be a measurement that happens to be whole so far: it is stored with missing values."""
    return part.target_spread is not None and bool(part.target_spread.missing.any())


def _merged(mine: Any, theirs: Any) -> Any:
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    mine.merge(theirs)
    return mine
