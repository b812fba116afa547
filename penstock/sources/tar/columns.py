"""From the members of tar samples to columns.

Covers: what a member's extension means, decoding numbers, text, JSON, arrays and images, guessing the columns from the
first samples, blocks of samples.
Does not cover: finding members (index.py), reading files (source.py).

Pickles (.pyd, .pth and the like) stay bytes: loading one runs whatever code it holds.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.block import Block, Column, take_column
from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.core.schema import OBJECT, Field, Schema
from penstock.core.source import NEW_MEMORY, Buffers, OnError
from penstock.core.tree import Tree
from penstock.sources.images.column import Pictures
from penstock.sources.tar.index import Member, MemoryReader, TarError, grouped, members

KEY = "__key__"

NPY_HEADER = 10_000
"""The longest header of an array that is read; literals in longer ones could be a program's worth of work."""

IMAGE, NUMBER, TEXT, JSON, ARRAY, RAW = "image", "int", "text", "json", "npy", "bytes"

KINDS = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff"), IMAGE),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), NUMBER),
    **dict.fromkeys(("txt", "text", "transcript"), TEXT),
    **dict.fromkeys(("json", "jsn"), JSON),
    "npy": ARRAY,
}


@dataclass(frozen=True)
class Sample:
    """A sample's key, where it stands, its members' data by extension, or why it cannot be read."""

    key: str
    where: str
    data: Mapping[str, bytes | memoryview]
    error: str = ""


def sample_of(key: str, group: Sequence[Member], where: str, limit: str) -> Sample:
    """A sample out of its members."""
    data: dict[str, bytes | memoryview] = {}
    for member in group:
        extension = (member.key or ("", ""))[1]
        if member.data is None:
            return Sample(key, where, {}, f"sample {key!r} is larger than max_sample={limit}")
        if extension in data:
            return Sample(key, where, {}, f"sample {key!r} has two members .{extension}")
        data[extension] = member.data
    return Sample(key, where, data)


def sample_in(stretch: bytes, where: str, limit: str) -> Sample:
    """The sample whose stretch of a tar file this is."""
    try:
        found = next(iter(grouped(members(MemoryReader(stretch), nbytes=len(stretch), longest=len(stretch)))), None)
    except TarError as damage:
        return Sample("", where, {}, str(damage))
    if found is None:
        return Sample("", where, {}, "there is no sample here")
    return sample_of(found[0], found[1], where, limit)


@dataclass(frozen=True)
class TarColumn:
    """A column: the extensions it may come from, how they are decoded, and a path into JSON."""

    name: str
    extensions: tuple[str, ...]
    kind: str
    field: Field
    path: tuple[str, ...] = ()
    pictures: Pictures | None = None


class SampleParser:
    """Turns samples into blocks. Cheap to make and to pickle."""

    def __init__(self, columns: Sequence[TarColumn], tree: Tree) -> None:
        self.columns, self.tree = tuple(columns), tree

    def __repr__(self) -> str:
        return f"SampleParser({self.columns}, {self.tree})"

    @property
    def schema(self) -> Schema:
        return Schema(tuple(column.field for column in self.columns), self.tree)

    @property
    def row_nbytes(self) -> int:
        """Decoded bytes of a sample, beyond those that are stored."""
        return sum(c.pictures.row_nbytes if c.pictures is not None else c.field.row_nbytes for c in self.columns)

    def block(self, samples: Sequence[Sample], on_error: OnError, buffers: Buffers = NEW_MEMORY) -> Block:
        """Decode samples; damaged ones go to `on_error` and are left out."""
        damage = {row: sample.error for row, sample in enumerate(samples) if sample.error}
        columns = {c.name: self._column(c, samples, damage, None, buffers) for c in self.columns}
        kept = np.array([row for row in range(len(samples)) if row not in damage], np.int64)
        if damage:
            for row in sorted(damage):
                on_error.bad(BadData(samples[row].where, damage[row]))
            columns = {name: take_column(column, kept) for name, column in columns.items()}
        wheres = [sample.where for sample in samples]
        return Block(columns, self.tree, lambda row: wheres[int(kept[row])])

    def write(
        self,
        samples: Sequence[Sample],
        out: Mapping[str, np.ndarray],
        on_error: OnError,
        buffers: Buffers = NEW_MEMORY,
    ) -> None:
        """Decode samples into the given arrays; damage raises."""
        damage = {row: sample.error for row, sample in enumerate(samples) if sample.error}
        for column in self.columns:
            made = self._column(column, samples, damage, out[column.name], buffers)
            if column.pictures is None:
                np.copyto(out[column.name], made)
        if damage:
            row = min(damage)
            raise BadData(samples[row].where, damage[row])

    def _column(
        self,
        column: TarColumn,
        samples: Sequence[Sample],
        damage: dict[int, str],
        into: np.ndarray | None,
        buffers: Buffers,
    ) -> Column:
        stored = [_stored(column, sample, row, damage) for row, sample in enumerate(samples)]
        if column.pictures is not None:
            return column.pictures.decode(
                stored, lambda row, why: _note(damage, row, column, why), into, skip=damage, buffers=buffers
            )
        values: list[Any] = [None] * len(samples)
        for row, data in enumerate(stored):
            if row in damage:
                continue
            try:
                values[row] = samples[row].key if column.extensions == (KEY,) else decoded(column, data)
            except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError) as error:
                _note(damage, row, column, f"{type(error).__name__}: {error}")
        return _joined(column, values, damage)


def _note(damage: dict[int, str], row: int, column: TarColumn, reason: str) -> None:
    damage.setdefault(row, f"member .{column.extensions[0]} cannot be decoded: {reason}")


def _stored(column: TarColumn, sample: Sample, row: int, damage: dict[int, str]) -> bytes | memoryview:
    if column.extensions == (KEY,):
        return b""
    for extension in column.extensions:
        if extension in sample.data:
            return sample.data[extension]
    there = ", ".join(f".{extension}" for extension in sample.data)
    damage.setdefault(
        row, f"sample {sample.key!r} has no member .{' or .'.join(column.extensions)}, only {there or 'none'}; "
        f"leave it out by columns=, or on_error='skip' the sample"
    )  # fmt: skip
    return b""


def decoded(column: TarColumn, data: bytes | memoryview) -> Any:
    """One member's value. Raises ValueError and its like if the bytes are not what the extension says."""
    if column.kind == NUMBER:
        return np.int64(int(bytes(data).decode("ascii").strip()))
    if column.kind == TEXT:
        return bytes(data).decode("utf-8")
    if column.kind == ARRAY:
        return read_npy(data)
    if column.kind == JSON:
        value = json.loads(bytes(data))
        for step in column.path:
            value = value[int(step)] if isinstance(value, list) else value[step]
        return value
    return bytes(data)


def read_npy(data: bytes | memoryview) -> np.ndarray:
    """An array out of the bytes of an .npy file. Its header is checked against the bytes before anything is made."""
    shape, fortran, dtype, start = _npy_header(bytes(data[:NPY_HEADER]))
    if dtype.hasobject:
        raise ValueError("arrays of Python objects are pickles, which are not loaded")
    count = math.prod(shape)
    if any(n < 0 for n in shape) or count * dtype.itemsize != len(data) - start:
        raise ValueError(f"{list(shape)} of {dtype} is not what {len(data) - start} bytes hold")
    if not dtype.itemsize or count > len(data):
        raise ValueError(f"elements of {dtype} take no room")
    flat = np.frombuffer(data, dtype, count, start) if count else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _npy_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order, dtype and the start of the data. NumPy's own reader retries bad headers with a tokenizer, which
    raises errors of many kinds on hostile ones."""
    if head[:6] != b"\x93NUMPY" or len(head) < 12:
        raise ValueError("this is no .npy file")
    width = 2 if head[6] == 1 else 4
    start = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
    if start > len(head):
        raise ValueError("the header of the array is cut short or too long")
    try:
        described = ast.literal_eval(head[8 + width : start].decode("latin1").strip())
        shape, fortran = tuple(described["shape"]), bool(described["fortran_order"])
        dtype = np.lib.format.descr_to_dtype(described["descr"])
    except (ValueError, SyntaxError, TypeError, KeyError, IndexError, MemoryError, RecursionError) as error:
        raise ValueError(f"the header of the array is damaged: {type(error).__name__}") from None
    if len(shape) > 32 or not all(type(n) is int for n in shape):
        raise ValueError(f"the shape of the array is {str(shape)[:80]}")
    return shape, fortran, dtype, start


def _joined(column: TarColumn, values: list[Any], damage: dict[int, str]) -> Column:
    """Values as a column; rows in `damage` hold anything."""
    field = column.field
    if field.text:
        for row, value in enumerate(values):
            if row not in damage and not isinstance(value, str):
                _note(damage, row, column, f"{type(value).__name__} where text was expected")
        return pa.array(["" if row in damage else v for row, v in enumerate(values)], pa.large_string())
    if field.dtype == OBJECT:
        if column.kind == RAW:
            return pa.array([v or b"" for v in values], pa.large_binary())
        return _objects(values)
    if not field.fixed:
        return _objects(values)
    out = np.zeros((len(values), *[n for n in field.shape if n is not None]), field.dtype)
    for row, value in enumerate(values):
        if row in damage:
            continue
        array = np.asarray(value)
        # same_kind refuses what would lose meaning: a fraction as an integer, text or null as a number.
        if array.shape != out.shape[1:] or not np.can_cast(array.dtype, field.dtype, "same_kind"):
            _note(damage, row, column, f"{array.dtype}{list(array.shape)} where {field} was expected")
        else:
            out[row] = array
    return out


def _objects(values: list[Any]) -> np.ndarray:
    out = np.empty(len(values), object)
    for row, value in enumerate(values):
        out[row] = value
    return out


def columns_of(
    asked: Sequence[str] | None, first: Sequence[Sample], kinds: Mapping[str, str], pictures: Callable[[str], Pictures]
) -> list[TarColumn]:
    """The columns asked for, or one for each extension in the first samples; "a;b" is whichever is there."""
    there = list(dict.fromkeys(extension for sample in first for extension in sample.data))
    if asked is None:
        asked = there
    if not asked:
        raise NotFound("There is no member to make a column of in the first samples.")
    return [_column(name, there, first, kinds, pictures) for name in asked]


def _column(
    name: str,
    there: Collection[str],
    first: Sequence[Sample],
    kinds: Mapping[str, str],
    pictures: Callable[[str], Pictures],
) -> TarColumn:
    extensions = tuple(part.lower() for part in name.split(";"))
    if name == KEY:
        return TarColumn(name, (KEY,), TEXT, Field(name, OBJECT, text=True))
    path: tuple[str, ...] = ()
    if not any(e in there for e in extensions):
        inside = [e for e in there if _kind(e, kinds) == JSON and name.lower().startswith(e + ".")]
        if not inside:
            raise NotFound(f"No member .{name} in the first samples. There are: {', '.join('.' + e for e in there)}.")
        extensions, path = (inside[0],), tuple(name[len(inside[0]) + 1 :].split("."))
    kind = _kind(next(e for e in extensions if e in there), kinds)
    if kind == IMAGE:
        found = pictures(name)
        return TarColumn(name, extensions, kind, found.field(name), pictures=found)
    plain = TarColumn(name, extensions, kind, Field(name, OBJECT), path)
    return TarColumn(name, extensions, kind, _field(plain, first), path)


def _kind(extension: str, kinds: Mapping[str, str]) -> str:
    return kinds.get(extension, kinds.get(extension.rpartition(".")[2], RAW))


def _field(column: TarColumn, first: Sequence[Sample]) -> Field:
    """What a column's values are, by its kind or by the values of the first samples."""
    if column.kind == NUMBER:
        return Field(column.name, np.dtype(np.int64))
    if column.kind in (TEXT, RAW):
        return Field(column.name, OBJECT, text=column.kind == TEXT)
    values = []
    for sample in first:
        data = next((sample.data[e] for e in column.extensions if e in sample.data), None)
        try:
            values += [] if data is None else [decoded(column, data)]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            continue  # reported when the sample's turn comes
    if column.kind == JSON:
        return _json_field(column.name, values)
    dtypes, shapes = {v.dtype for v in values}, {v.shape for v in values}
    if len(dtypes) != 1 or len({len(s) for s in shapes}) != 1:
        return Field(column.name, OBJECT)
    shape = shapes.pop() if len(shapes) == 1 else (None,) * len(shapes.pop())
    return Field(column.name, dtypes.pop(), shape)


def _json_field(name: str, values: Sequence[Any]) -> Field:
    """Numbers and text of JSON are columns of their own; anything else stays a Python value."""
    kinds = {type(v) for v in values}
    if kinds == {str}:
        return Field(name, OBJECT, text=True)
    if kinds and kinds <= {int, float}:
        whole = kinds == {int} and all(-(1 << 63) <= v < 1 << 63 for v in values)
        return Field(name, np.dtype(np.int64 if whole else np.float64))
    return Field(name, np.dtype(bool)) if kinds == {bool} else Field(name, OBJECT)


def tree_asked(sample: object) -> Tree:
    """The tree that `sample=` means: a tuple or dict of columns, or a bare one."""
    if isinstance(sample, str):
        return sample
    if isinstance(sample, (tuple, list)):
        return tuple(tree_asked(part) for part in sample)
    if isinstance(sample, Mapping):
        return {str(key): tree_asked(part) for key, part in sample.items()}
    raise InvalidInput(f"sample= is a name, or a tuple or dict of names such as ('jpg', 'cls'), not {sample!r}.")
