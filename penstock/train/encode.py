"""Raw rows to the model's input, a block at a time.

Covers: applying a recipe to columns, vectorised; leaving out rows whose target is missing or unknown.
Does not cover: learning the recipe (learn.py).
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.pipe import memory_of_runs
from penstock.sources.images.decode import ImageOptions, decode_image_into
from penstock.train.inspect import as_row
from penstock.train.learn import side_by_side
from penstock.train.recipe import Category, DataRecipe, Numbers, Picture, Target, Text
from penstock.train.statistics import as_text, words_of

ROWS_AT_A_TIME = 4096
TEXTS_AT_A_TIME = 1024


class Encoder:
    """A function of blocks for `map_batches`. With `target`: (x, y); without: x alone."""

    def __init__(self, recipe: DataRecipe, *, target: bool) -> None:
        self.recipe, self.target = recipe, target

    def __call__(self, *parts: Any) -> Any:
        columns = as_row(parts[0] if len(parts) == 1 else parts)
        if not self.target:
            return self.inputs(columns)
        y, known = encode_target(columns[self.recipe.target.column], self.recipe.target)
        if not known.all():
            keep = np.flatnonzero(known)
            columns = {name: np.asarray(column)[keep] for name, column in columns.items()}
            y = y[keep]
        return self.inputs(columns), y

    def inputs(self, columns: dict[str, Any]) -> Any:
        """The model's inputs: one array, or a dict of them."""
        recipe, found = self.recipe, {}
        if recipe.picture is not None:
            found["image"] = encode_pictures(columns[recipe.picture.column], recipe.picture)
        if recipe.text is not None:
            found["text"] = encode_text([columns[name] for name in recipe.text.columns], recipe.text)
        if recipe.numbers is not None:
            found["numbers"] = encode_numbers(columns, recipe.numbers)
        if recipe.categories:
            codes = [encode_category(columns[category.column], category) for category in recipe.categories]
            found["categories"] = np.stack(codes, axis=1)
        return next(iter(found.values())) if len(found) == 1 else found


def encode_numbers(columns: dict[str, Any], numbers: Numbers) -> np.ndarray:
    """Scaled, with 0 for what is missing and a column that says so where that happened in training.

    Some rows at a time: a window's rows as float64, beside their differences, would be many times the window.
    """
    nrows, width = len(columns[numbers.columns[0]]), len(numbers.mean)
    out = np.empty((nrows, numbers.width), np.float32)
    mean, std = np.asarray(numbers.mean), np.asarray(numbers.std)
    for first in range(0, nrows, ROWS_AT_A_TIME):
        last = first + ROWS_AT_A_TIME
        part = {name: columns[name][first:last] for name in numbers.columns}
        raw = side_by_side(part, list(numbers.columns), np.float64)
        bad = ~np.isfinite(raw)
        shown = out[first:last]
        np.divide(raw - mean, std, out=shown[:, :width], casting="unsafe")
        if bad.any():
            shown[:, :width][bad] = 0.0
        if numbers.flags:
            shown[:, width:] = bad[:, list(numbers.flags)]
    return out


def encode_category(column: Any, category: Category) -> np.ndarray:
    """Numbers of values; rare ones share buckets by hash, where there are too many to know."""
    text = as_text(column)
    found = pc.index_in(text, value_set=pa.array(category.values, pa.string()))
    codes: np.ndarray = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int32) + 1
    if category.buckets:
        unknown = np.flatnonzero((codes == 0) & pc.is_valid(text).to_numpy(zero_copy_only=False))
        if len(unknown):
            coded = text.take(pa.array(unknown)).dictionary_encode()
            first = 1 + len(category.values)
            hashed = [first + zlib.crc32(value.encode()) % category.buckets for value in coded.dictionary.to_pylist()]
            codes[unknown] = np.array(hashed, np.int32)[coded.indices.to_numpy(zero_copy_only=False)]
    return codes


def encode_text(columns: list[Any], text: Text) -> np.ndarray:
    """Word numbers, cut at the length and filled with 0; some rows at a time, since words are many times their text."""
    out = np.zeros((len(columns[0]), text.length), np.int32)
    for first in range(0, len(out), TEXTS_AT_A_TIME):
        last = first + TEXTS_AT_A_TIME
        _number_words([column[first:last] for column in columns], text, out[first:last])
    return out


def _number_words(columns: list[Any], text: Text, out: np.ndarray) -> None:
    words = words_of(columns)
    known = pa.array(["", "\0", *text.words], pa.string())  # "" is no word, and no word is a single \0
    flat = words.flatten()
    ids = pc.fill_null(pc.index_in(flat, value_set=known), 1).to_numpy(zero_copy_only=False).astype(np.int32)
    lengths = pc.list_value_length(words).to_numpy(zero_copy_only=False).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    rows = np.repeat(np.arange(len(lengths)), lengths)
    places = np.arange(len(ids)) - np.repeat(starts, lengths)
    fits = places < text.length
    out[rows[fits], places[fits]] = ids[fits]


def encode_pictures(column: Any, picture: Picture) -> np.ndarray:
    """Pictures of one shape: as they come, or decoded from their bytes."""
    if not picture.encoded:
        pixels = np.asarray(column)
        return pixels.reshape(len(pixels), *picture.shape).astype(picture.dtype, copy=False)
    height, width, channels = picture.shape
    options = ImageOptions(size=(height, width), mode="gray" if channels == 1 else "rgb")
    out, buffers = np.empty((len(column), height, width, channels), np.uint8), memory_of_runs()
    for row, data in enumerate(column):
        where = f"{picture.column}, row {row} of a block"
        decode_image_into(data, out[row], options, where=where, buffers=buffers)
    return out


def encode_target(column: Any, target: Target) -> tuple[np.ndarray, np.ndarray]:
    """Class numbers or scaled numbers, and which rows have one that is known."""
    values = np.asarray(column)
    if target.task == "number":
        numbers = values.astype(np.float64).reshape(-1)
        known = np.isfinite(numbers)
        return ((np.where(known, numbers, 0.0) - target.mean) / target.std).astype(np.float32), known
    found = pc.index_in(as_text(values.reshape(len(values), -1)[:, 0]), value_set=pa.array(target.classes, pa.string()))
    codes = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int32)
    return codes, codes >= 0
