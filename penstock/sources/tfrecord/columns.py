"""From a buffer of TFRecord frames to a block: Example and SequenceExample records parsed in bulk.

Covers: `ExampleParser`: the plan for the kernel, defaults, dtypes, `(x, y)`, images, reporting damaged records.
Does not cover: the kernel (native/example/read.py), lists and bytes (lists.py), files.

With `label`, samples are `(x, y)`, named as tables name them (sources/tables/blocks.py): x is one float32 matrix when
all other features are numbers, the feature itself when there is one, and a dict of features otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.block import Block, Column, take_column
from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.core.schema import Field, Schema
from penstock.core.source import NEW_MEMORY, Buffers, OnError
from penstock.core.tree import Tree
from penstock.native import tfrecord
from penstock.native.example import read as example
from penstock.sources.images.column import Pictures
from penstock.sources.tfrecord.features import FLOAT, INT, KIND_NAMES, Feature
from penstock.sources.tfrecord.lists import list_column, narrowed, single_places

MATRIX = np.dtype(np.float32)

Where = Callable[[int], str]


@dataclass(frozen=True)
class Frames:
    """Whole frames in a buffer, and where each of them stands in words."""

    buf: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    where: Where

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True)
class _Output:
    """A column of the block and the features in it: one, or several side by side in a matrix."""

    name: str
    features: tuple[int, ...]
    matrix: bool = False


class ExampleParser:
    """Turns frames into blocks. Cheap to make and to pickle."""

    def __init__(
        self,
        features: Sequence[Feature],
        *,
        label: str | Sequence[str] | None = None,
        pictures: Mapping[str, Pictures] | None = None,
        check: bool = True,
    ) -> None:
        self.features = tuple(features)
        self.pictures = dict(pictures or {})
        self.check = check
        names = [f.name for f in self.features]
        if not names:
            raise InvalidInput("There is no feature to read: the records have none, or features= is empty.")
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise InvalidInput(f"{twice!r} is both a feature and a feature list. Choose one by features= or sequence=.")
        self.outputs, self.tree = _layout(self.features, label)
        self._lay_out()

    def _lay_out(self) -> None:
        """Give each feature its place: `base + rows * base_rows` and `stride` in the floats or the integers."""
        specs = np.zeros((len(self.features), example.SPEC), np.int64)
        self._base_rows = np.zeros(len(self.features), np.int64)
        self._width = {"floats": 0, "ints": 0, "spans": 0}
        for output in self.outputs:
            width = sum(self.features[i].count for i in output.features)
            inside = 0
            for i in output.features:
                feature = self.features[i]
                if not feature.fixed:
                    specs[i] = feature.kind, -1, self._width["spans"], 0, 0, feature.optional, feature.listed
                    self._width["spans"] += 1
                    continue
                area = "ints" if feature.kind == INT and not output.matrix else "floats"
                as_float = output.matrix and feature.kind == INT
                specs[i] = feature.kind, feature.count, inside, width, as_float, feature.optional, 0
                self._base_rows[i] = self._width[area]
                inside += feature.count
                if i == output.features[-1]:
                    self._width[area] += width
        self._specs = specs

    @property
    def schema(self) -> Schema:
        """The columns of the blocks."""
        return Schema(tuple(self._field(output) for output in self.outputs), self.tree)

    @property
    def row_nbytes(self) -> int:
        """Parsed bytes of a row, without what is also counted as stored: bytes and lists."""
        images = sum(p.row_nbytes for name, p in self.pictures.items())
        numbers = sum(f.count * (4 if f.kind == FLOAT else 8) for f in self.features if f.fixed)
        return images + numbers + 16 * self._width["spans"]

    def __repr__(self) -> str:
        return f"ExampleParser({self.features}, {self.tree}, {self.pictures}, check={self.check})"

    def _field(self, output: _Output) -> Field:
        if output.matrix:
            return Field(output.name, MATRIX, (sum(self.features[i].count for i in output.features),))
        feature = self.features[output.features[0]]
        found = self.pictures[feature.name].field(output.name) if feature.image else feature.field
        return Field(output.name, found.dtype, found.shape, found.text)

    def block(self, frames: Frames, on_error: OnError, buffers: Buffers = NEW_MEMORY) -> Block:
        """Parse frames; damaged records go to `on_error` and are left out."""
        damage: dict[int, str] = {}
        out = self._parse(frames, damage)
        columns = {o.name: self._column(o, frames, out, damage, buffers) for o in self.outputs}
        where = frames.where
        if damage:
            for row in sorted(damage):
                on_error.bad(BadData(frames.where(row), damage[row]))
            kept = np.array([r for r in range(len(frames)) if r not in damage], np.int64)
            columns = {name: take_column(column, kept) for name, column in columns.items()}
            where = lambda row: frames.where(int(kept[row]))  # noqa: E731
        return Block(columns, self.tree, where)

    def write(
        self, frames: Frames, out: Mapping[str, np.ndarray], on_error: OnError, buffers: Buffers = NEW_MEMORY
    ) -> None:
        """Parse frames into the given arrays, images without a copy between; damage raises."""
        damage: dict[int, str] = {}
        parsed = self._parse(frames, damage)
        for output in self.outputs:
            feature = self.features[output.features[0]]
            if feature.image:
                self._images(feature, frames, parsed, damage, buffers, out[output.name])
            else:
                np.copyto(out[output.name], self._column(output, frames, parsed, damage, buffers))
        if damage:
            row = min(damage)
            raise BadData(frames.where(row), damage[row])

    def _parse(self, frames: Frames, damage: dict[int, str]) -> example.Output:
        rows = len(frames)
        specs = self._specs.copy()
        specs[:, example.BASE] += self._base_rows * rows
        width = self._width
        out = example.output(rows, floats=width["floats"] * rows, ints=width["ints"] * rows, spans=width["spans"])
        self._fill_defaults(specs, rows, out)
        plan = example.Plan(self._names, specs, self.check, any(f.listed for f in self.features))
        if example.parse(frames.buf, frames.offsets, frames.lengths, plan, out):
            for row in np.flatnonzero(out.codes):
                damage[int(row)] = self._reason(int(out.codes[row]), int(out.features[row]))
                out.spans[row] = -1, 0
        return out

    @functools.cached_property
    def _names(self) -> example.Names:
        return example.names_of([f.name.encode("utf-8", "surrogateescape") for f in self.features])

    def _fill_defaults(self, specs: np.ndarray, rows: int, out: example.Output) -> None:
        for i, feature in enumerate(self.features):
            if feature.fixed and feature.default is not None:
                _, count, base, stride, as_float, _, _ = specs[i].tolist()
                flat = out.ints if feature.kind == INT and not as_float else out.floats
                place = np.lib.stride_tricks.as_strided(
                    flat[base:], (rows, count), (stride * flat.itemsize, flat.itemsize)
                )
                place[...] = np.broadcast_to(np.asarray(feature.default).reshape(-1), count)

    def _reason(self, code: int, at: int) -> str:
        if code == tfrecord.BAD_CHECKSUM:
            return "the record does not match its checksum; check_crc=False reads it all the same"
        if code == tfrecord.TRUNCATED:
            return "the record ends beyond the data that was read; the file has changed since it was indexed"
        if code == tfrecord.BAD_WIRE or not 0 <= at < len(self.features):
            return "the record is not a well-formed tf.train.Example; parse=None yields raw records"
        feature = self.features[at]
        if code == tfrecord.MISSING:
            return (
                f"feature {feature.name!r} is missing; a tf.io feature with a default, or VarLenFeature, allows for it"
            )
        if code == tfrecord.WRONG_KIND:
            return f"feature {feature.name!r} does not hold {KIND_NAMES[feature.kind]} as it does elsewhere"
        return (
            f"feature {feature.name!r} does not have the expected {feature.count} values; "
            f"features={{{feature.name!r}: (dtype, (None,))}} takes any number"
        )

    def _column(
        self, output: _Output, frames: Frames, out: example.Output, damage: dict[int, str], buffers: Buffers
    ) -> Column:
        rows = len(frames)
        first = output.features[0]
        feature = self.features[first]
        if feature.image:
            return self._images(feature, frames, out, damage, buffers)
        if not feature.fixed:
            spans = np.ascontiguousarray(out.spans[:, self._specs[first, 2]])
            return list_column(frames.buf, spans, feature, lambda row, reason: _note(damage, row, reason))
        width = sum(self.features[i].count for i in output.features)
        start = int(self._base_rows[first]) * rows
        flat = out.ints if feature.kind == INT and not output.matrix else out.floats
        values = flat[start : start + rows * width]
        if output.matrix:
            return values.reshape(rows, width)
        shape = [n for n in feature.shape if n is not None]
        cast, wrong = narrowed(values.reshape(rows, *shape), feature.dtype)
        for row in np.flatnonzero(wrong):
            _note(damage, int(row), f"feature {feature.name!r} has a value that {feature.dtype} cannot hold")
        return cast

    def _images(
        self,
        feature: Feature,
        frames: Frames,
        out: example.Output,
        damage: dict[int, str],
        buffers: Buffers,
        into: np.ndarray | None = None,
    ) -> Column:
        at = self._specs[[f.name for f in self.features].index(feature.name), 2]
        spans = np.ascontiguousarray(out.spans[:, at])
        places = single_places(frames.buf, spans, feature, lambda row, reason: _note(damage, row, reason))
        memory = memoryview(frames.buf)  # type: ignore[arg-type]
        stored = [memory[s : s + n] for s, n in places.tolist()]
        pictures = self.pictures[feature.name]
        return pictures.decode(
            stored, lambda row, reason: _note(damage, row, reason), into, skip=damage, buffers=buffers
        )


def _note(damage: dict[int, str], row: int, reason: str) -> None:
    damage.setdefault(row, reason)


def _layout(features: Sequence[Feature], label: str | Sequence[str] | None) -> tuple[list[_Output], Tree]:
    place = {f.name: i for i, f in enumerate(features)}
    if label is None:
        return [_Output(f.name, (i,)) for i, f in enumerate(features)], {f.name: f.name for f in features}
    labels = [label] if isinstance(label, str) else list(label)
    for name in labels:
        if name not in place:
            raise NotFound(f"label={name!r} is not among the features: {', '.join(place)}.")
    outputs: list[_Output] = []
    inputs = [name for name in place if name not in labels]
    if not inputs:
        raise InvalidInput("Every feature is a label, so there is nothing left for x.")
    x = _side("x", inputs, features, place, outputs)
    y = _side("y", labels, features, place, outputs)
    return outputs, (x, y)


def _side(side: str, names: list[str], features: Sequence[Feature], place: dict[str, int], out: list[_Output]) -> Tree:
    if len(names) == 1:
        out.append(_Output(side, (place[names[0]],)))
        return side
    chosen = [features[place[name]] for name in names]
    if side == "x" and all(f.fixed and len(f.shape) < 2 for f in chosen):
        out.append(_Output(side, tuple(place[name] for name in names), matrix=True))
        return side
    out.extend(_Output(f"{side}.{name}", (place[name],)) for name in names)
    return {name: f"{side}.{name}" for name in names}
