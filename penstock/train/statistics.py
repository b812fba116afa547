"""Numbers about columns that are learned a block at a time and never grow with the data.

Covers: mean, spread and missing values of numbers; counts of values and words, bounded.
Does not cover: which columns (roles.py), what is made of them (recipe.py).

Every class can be made from one block and merged with the next. Merging always happens in the order of the
data, so that the same data gives the same numbers to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MOST_COUNTED = 100_000
"""Values or words counted at a time; beyond it the rarest half is forgotten."""
LONGEST_TEXT = 1024
_NOT_WORDS = r"[^\pL\pN']+"


@dataclass
class Spread:
    """Mean and variance of columns side by side, by Chan's method; what is not finite counts as missing."""

    count: np.ndarray
    mean: np.ndarray
    m2: np.ndarray
    missing: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Spread:
        """The statistics of one block of rows x columns."""
        x = values.astype(np.float64, copy=False)
        bad = ~np.isfinite(x)
        missing = bad.sum(axis=0)
        count = len(x) - missing
        held = np.where(bad, 0.0, x) if missing.any() else x
        safe = np.maximum(count, 1)
        mean = held.sum(axis=0) / safe
        apart = np.where(bad, 0.0, x - mean) if missing.any() else x - mean
        return cls(count.astype(np.int64), mean, (apart * apart).sum(axis=0), missing.astype(np.int64))

    def merge(self, other: Spread) -> None:
        """Add another block's."""
        total = self.count + other.count
        safe = np.maximum(total, 1)
        delta = other.mean - self.mean
        self.mean = self.mean + delta * other.count / safe
        self.m2 = self.m2 + other.m2 + delta * delta * self.count * other.count / safe
        self.count, self.missing = total, self.missing + other.missing

    @property
    def std(self) -> np.ndarray:
        """Standard deviations; 1 for a column that never changes, so that it can be divided by."""
        std = np.sqrt(self.m2 / np.maximum(self.count, 1))
        return np.where(std > 1e-12 * np.maximum(1.0, np.abs(self.mean)), std, 1.0)


@dataclass
class Tally:
    """How often each value came. `forgotten` counts rows of values that were dropped when there were too many."""

    counts: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    forgotten: int = 0
    most: int = MOST_COUNTED

    @classmethod
    def of(cls, values: pa.Array) -> Tally:
        """Counts of one block of text."""
        tally = cls()
        tally.missing = values.null_count
        found = pc.value_counts(values.drop_null())
        names, counts = found.field("values").to_pylist(), found.field("counts").to_pylist()
        tally.counts = dict(zip(names, counts, strict=True))
        return tally

    def merge(self, other: Tally) -> None:
        """Add another block's; the rarest half is forgotten when there are too many."""
        counts = self.counts
        for value, count in other.counts.items():
            counts[value] = counts.get(value, 0) + count
        self.missing, self.forgotten = self.missing + other.missing, self.forgotten + other.forgotten
        if len(counts) > self.most:
            kept = self.top(self.most // 2)
            self.forgotten += sum(counts.values()) - sum(counts[value] for value in kept)
            self.counts = {value: counts[value] for value in kept}

    def top(self, n: int) -> list[str]:
        """The most frequent values, ties by name, so that the order does not depend on luck."""
        return sorted(self.counts, key=lambda value: (-self.counts[value], value))[:n]

    @property
    def nbytes(self) -> int:
        """Near enough: a short text and its number in a dict."""
        return 150 * len(self.counts)


@dataclass
class Lengths:
    """How long texts are, in words, as a histogram."""

    counts: np.ndarray = field(default_factory=lambda: np.zeros(LONGEST_TEXT + 1, np.int64))

    def merge(self, other: Lengths) -> None:
        """Add another block's."""
        self.counts = self.counts + other.counts

    def quantile(self, share: float) -> int:
        """The length that this share of texts does not exceed."""
        total = int(self.counts.sum())
        if not total:
            return 1
        return int(np.searchsorted(np.cumsum(self.counts), share * total))


def as_text(column: object) -> pa.Array:
    """A column of text, numbers or None as an Arrow array of text."""
    if isinstance(column, pa.Array):
        return pc.cast(column, pa.string())
    array = np.asarray(column)
    if array.dtype == object:
        try:
            return pa.array(array, type=pa.string(), from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            listed = (None if value is None else str(value) for value in array)
            return pa.array(listed, type=pa.string())
    if array.dtype.kind == "f":
        array = np.where(np.isfinite(array), array, np.nan)
        finite = array[np.isfinite(array)]
        whole = bool(np.all((finite == np.round(finite)) & (np.abs(finite) < 1 << 53)))
        numbers = pa.array(array, from_pandas=True)
        return pc.cast(pc.cast(numbers, pa.int64()) if whole else numbers, pa.string())
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    return pc.cast(pa.array(array), pa.string())


def words_of(columns: Iterable[object]) -> pa.ListArray:
    """Lower-case words of texts; several columns are read one after the other."""
    texts = [pc.fill_null(as_text(column), "") for column in columns]
    joined = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, " ")
    spaced = pc.replace_substring_regex(pc.utf8_lower(joined), pattern=_NOT_WORDS, replacement=" ")
    return pc.split_pattern(pc.utf8_trim_whitespace(spaced), " ")


def lengths_of(words: pa.ListArray) -> Lengths:
    """The histogram of one block."""
    lengths = np.minimum(pc.list_value_length(words).to_numpy(zero_copy_only=False), LONGEST_TEXT)
    return Lengths(np.bincount(lengths, minlength=LONGEST_TEXT + 1).astype(np.int64))
