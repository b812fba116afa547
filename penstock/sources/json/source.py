"""JSON lines as a source: byte ranges parsed by Arrow, one thread each.

Covers: types from samples of the files, units and blocks, blame for lines that do not fit.
Does not cover: parsing (json_parse.py), cutting files (text_lines.py), the shape of samples (table.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.core.block import Block, Column, Origin
from penstock.core.errors import BadData, SchemaChanged
from penstock.core.schema import Schema
from penstock.core.source import OnError, blocks_from
from penstock.sources import json_numbers, json_parse, storage
from penstock.sources.csv_infer import compression_of, open_decompressed
from penstock.sources.csv_kernel import Parsed
from penstock.sources.csv_split import BOM, Stretch
from penstock.sources.json_numbers import Objects, objects_of
from penstock.sources.table import Spec, TableShape
from penstock.sources.text_lines import LineFiles, line_starts, where

SAMPLE_NBYTES = 256_000
SAMPLED_FILES = 3


@dataclass(frozen=True)
class JsonPlan:
    """The columns that samples of the files showed, and how to parse them."""

    names: tuple[str, ...]
    arrow: pa.Schema
    flat: pa.Schema
    schema: Schema
    specs: tuple[Spec, ...] = ()
    fields: tuple[str, ...] = ()
    objects: Objects | None = None


class JsonSource:
    """A `UnitSource` of JSON lines."""

    def __init__(
        self, files: LineFiles, shape: TableShape, types: Mapping[str, pa.DataType], on_error: OnError
    ) -> None:
        self.files, self.shape, self.types, self._on_error = files, shape, dict(types), on_error
        self._plan: JsonPlan | None = None
        self._lock = threading.Lock()

    @property
    def remote(self) -> bool:
        return storage.any_remote(self.files.paths)

    @property
    def label(self) -> str:
        return self.files.name("json")

    @property
    def on_error(self) -> OnError:
        return self._on_error

    def plan(self) -> JsonPlan:
        """Names and types: a few small reads, at first use."""
        with self._lock:
            if self._plan is None:
                fields = sampled_fields(self.files, self.types)
                every = [name for name, _ in json_parse.leaves(fields)]
                names = self.shape.columns_needed or list(dict.fromkeys([*every, *self.types]))
                arrow = json_parse.chosen_schema(fields, names, self.types)
                flat = json_parse.flat(arrow.empty_table(), names).schema
                specs, _ = self.shape.specs(flat, self.label)
                self._plan = JsonPlan(
                    names=tuple(names),
                    arrow=arrow,
                    flat=flat,
                    schema=self.shape.schema(flat, self.label),
                    specs=tuple(specs),
                    fields=tuple(field.name for field in fields),
                    objects=None if self.types else objects_of(fields, self.shape, specs),
                )
            return self._plan

    def schema(self) -> Schema:
        return self.plan().schema

    def num_units(self) -> int:
        return int(self.files.first_unit[-1])

    def num_rows(self) -> int | None:
        return None

    def unit_nbytes(self, unit: int) -> int:
        """The text, the parser's copy, columns and the block; numbers of one digit grow fourfold."""
        return 5 * self.files.text_nbytes(unit) + 200_000

    def fingerprint(self) -> str:
        return self.files.fingerprint("json", self.shape, sorted((n, str(t)) for n, t in self.types.items()))

    def open(self, unit: int, part: int = 0) -> Iterator[Block]:
        """The unit's blocks; one may be empty, so that parts keep their numbers."""
        yield from blocks_from(self.files.stretches(unit), part, self._block)

    def _block(self, piece: tuple[str, Stretch]) -> Block:
        plan, (path, lines) = self.plan(), piece
        if lines.error is not None:
            self.on_error.bad(self.files.too_long(lines.error))
        parsed = None if plan.objects is None else json_numbers.parse(lines.text, plan.objects)
        if parsed is not None:
            block = self._numbers(parsed, _origin(path, lines.offset, lines.stop - lines.start, None))
            self.on_error.good(len(block))
            return block
        table, kept, bad = json_parse.parse(lines.text, plan.arrow)
        for start, reason in bad:
            self.on_error.bad(BadData(where(path, lines.offset + start), f"{reason}{self._remedy(reason)}"))
        origin = _origin(path, lines.offset, lines.stop - lines.start, kept)
        block = self.shape.block(json_parse.flat(table, plan.names), origin, self.on_error)
        self.on_error.good(len(block))
        return block

    def _numbers(self, parsed: Parsed, origin: Origin) -> Block:
        """The kernel's arrays under the names of the block's columns."""
        plan = self.plan()
        assert plan.objects is not None
        layout = plan.objects.layout
        columns: dict[str, Column] = {}
        for spec in plan.specs:
            at = plan.fields.index(spec.sources[0])
            columns[spec.name] = parsed.column(layout.kinds[at], layout.slots[at])
        return Block(columns, plan.schema.tree, origin)

    def _remedy(self, reason: str) -> str:
        if "changed from" in reason or "convert" in reason:
            return ". Types come from samples of the files: give the field a wider one with dtypes=, or on_error='skip'"
        return ""

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def _origin(path: str, offset: int, nbytes: int, kept: np.ndarray | None) -> Origin:
    """Tells where a row is; a plain range is read once more for that, so that blocks need not keep their text."""

    def origin(row: int) -> str:
        if kept is not None:
            return where(path, offset + int(kept[row]))
        if compression_of(path) is not None:
            return f"{where(path, offset)}, line {row} from there"
        starts = line_starts(storage.read_range(path, offset, nbytes), blank=False)
        return where(path, offset + int(starts[row]) if row < len(starts) else offset)

    return origin


def sampled_fields(files: LineFiles, types: Mapping[str, pa.DataType]) -> list[pa.Field]:
    """Fields and types that hold all samples: start, middle and end of up to three files."""
    count = len(files.paths)
    chosen = sorted({0, count // 2, count - 1})[:SAMPLED_FILES]
    fields: list[pa.Field] = []
    wrong: BadData | None = None
    for file in chosen:
        for place, text in _samples(files, file):
            table, error = _look(text)
            if error is not None:
                wrong = wrong or BadData(where(files.paths[file], place + error[0]), error[1])
            if table is None:
                continue
            merged = json_parse.merge_fields(fields, [*table.schema])
            if merged is None:
                fields = _settle(fields, [*table.schema], types, files.paths[file])
            else:
                fields = merged
    if not fields and wrong is not None:
        raise wrong
    return [pa.field(f.name, json_parse.settled(f.type)) for f in fields]


def _settle(
    left: Sequence[pa.Field], right: Sequence[pa.Field], types: Mapping[str, pa.DataType], path: str
) -> list[pa.Field]:
    """Fields of both, where those that disagree have a type by the user's word."""
    found = {field.name: field for field in left}
    for field in right:
        merged = json_parse.merge_fields([found[field.name]] if field.name in found else [], [field])
        if merged is None:
            if field.name not in types:
                raise SchemaChanged(
                    f"{path}: field {field.name!r} is {field.type} here and {found[field.name].type} elsewhere. "
                    f"Leave it out with columns=, or give it dtypes=."
                )
            continue
        found[field.name] = merged[0]
    return list(found.values())


def _samples(files: LineFiles, file: int) -> Iterator[tuple[int, bytes]]:
    path, nbytes = files.paths[file], int(files.sizes[file])
    kind = compression_of(path)
    if kind is not None:
        with open_decompressed(path, kind) as stream:
            try:
                head = stream.read(SAMPLE_NBYTES)
            except (OSError, pa.ArrowException):
                return  # reading will meet the damage again, and report it
        yield 0, _refuse_array(path, _whole(head, len(head) < SAMPLE_NBYTES))
        return
    places = sorted({0, max(0, nbytes // 2 - SAMPLE_NBYTES // 2), max(0, nbytes - SAMPLE_NBYTES)})
    for place in places:
        text = storage.read_range(path, place, SAMPLE_NBYTES)
        ended = place + len(text) >= nbytes
        if place == 0:
            if b"\n" not in text and not ended:  # the first line is longer than a sample
                text = storage.read_range(path, 0, min(nbytes, files.max_line))
                ended = len(text) >= nbytes
            text = _refuse_array(path, text)
            yield 0, _whole(text, ended)
        else:
            begin = text.find(b"\n") + 1
            yield place + begin, _whole(text[begin:], ended)


def _whole(text: bytes, ended: bool) -> bytes:
    return text if ended else text[: text.rfind(b"\n") + 1]


def _refuse_array(path: str, text: bytes) -> bytes:
    head = text.removeprefix(BOM).lstrip()
    if head.startswith(b"["):
        raise BadData(
            path,
            "is one JSON array, not JSON lines, so it cannot be split. Write one object per line, for example with "
            "`jq -c '.[]' in.json > out.jsonl`.",
        )
    return text.removeprefix(BOM)


def _look(text: bytes) -> tuple[pa.Table | None, json_parse.Bad | None]:
    """What a sample's lines look like; lines that do not parse are left aside, the first is told."""
    starts = line_starts(text, blank=False)
    ends = np.append(starts[1:], len(text))
    todo = [(0, len(starts))] if len(starts) else []
    fields: list[pa.Field] = []
    bad: json_parse.Bad | None = None
    while todo:  # halves of what does not parse whole, first lines first
        low, high = todo.pop()
        try:
            table = json_parse.read(text[int(starts[low]) : int(ends[high - 1])], None)
            reason = "" if table.num_rows == high - low else f"the line holds {table.num_rows} objects"
        except (pa.ArrowException, UnicodeDecodeError) as error:
            reason = str(error)
        if not reason:
            # Lines that disagree with those before them are judged when they are read, with their place.
            fields = json_parse.merge_fields(fields, [*table.schema]) or fields
        elif high - low > 1:
            middle = (low + high) // 2
            todo += [(middle, high), (low, middle)]
        else:
            bad = bad or (int(starts[low]), reason)
    return (pa.schema(fields).empty_table() if fields else None), bad
