"""JSON lines as a source: byte ranges parsed by Arrow, one thread each.

Covers: types from samples of the files, units and blocks, blame for lines that do not fit.
Does not cover: parsing (parse.py), cutting files (sources/text/lines.py), the shape of samples (table.py).
"""

from __future__ import annotations

import codecs
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.arrow_numbers import no_rows
from penstock.core.block import Block, Column, Origin
from penstock.core.errors import BadData, SchemaChanged
from penstock.core.events import fell_back
from penstock.core.schema import Schema
from penstock.core.source import NEW_MEMORY, Buffers, OnError, blocks_from
from penstock.sources.csv.numbers import Parsed
from penstock.sources.csv.split import BOM, Stretch
from penstock.sources.from_files import FileSetSource, name_of
from penstock.sources.json import numbers as json_numbers
from penstock.sources.json import parse as json_parse
from penstock.sources.json import values
from penstock.sources.json.numbers import Objects, objects_of
from penstock.sources.json.rounding import has_floats, without_rounded
from penstock.sources.storage import files as storage
from penstock.sources.storage.compression import compression_of, open_decompressed
from penstock.sources.tables.blocks import Spec, TableShape
from penstock.sources.text.lines import LineFiles, line_starts, where
from penstock.sources.text.scattered import Spans

SAMPLE_NBYTES = 256_000
SAMPLED_FILES = 3


@dataclass(frozen=True)
class JsonPlan:
    """The columns that samples of the files showed, and how to parse them."""

    names: tuple[str, ...]
    arrow: pa.Schema
    flat: pa.Schema
    schema: Schema
    shape: TableShape
    specs: tuple[Spec, ...] = ()
    fields: tuple[str, ...] = ()
    objects: Objects | None = None
    floats: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Where objects hold the values of columns that are or have float64, without being asked to."""


class JsonSource(FileSetSource[LineFiles]):
    """A `UnitSource` of JSON lines."""

    def __init__(
        self, files: LineFiles, shape: TableShape, types: Mapping[str, pa.DataType], on_error: OnError
    ) -> None:
        super().__init__(files, name_of("json", files.paths), on_error)
        self.shape, self.types = shape, dict(types)
        self._plan: JsonPlan | None = None
        self._lock = threading.Lock()

    def plan(self) -> JsonPlan:
        """Names and types: a few small reads, at first use."""
        with self._lock:
            if self._plan is None:
                fields, mixed = sampled_fields(self.files, self.types)
                self._refuse_mixed(mixed)
                every = [name for name, _ in json_parse.leaves(fields)]
                names = self.shape.columns_needed or list(dict.fromkeys([*every, *self.types]))
                if not names:
                    refuse_fieldless(self.files)
                arrow = json_parse.chosen_schema(fields, names, self.types)
                flat = json_parse.flat(no_rows(arrow), names).schema
                specs, _ = self.shape.specs(flat, self.label)
                missing = sampled_missing(self.files, arrow, names)
                shape = replace(self.shape, nullable=missing)
                self._plan = JsonPlan(
                    shape=shape,
                    names=tuple(names),
                    arrow=arrow,
                    flat=flat,
                    schema=shape.schema(flat, self.label),
                    specs=tuple(specs),
                    fields=tuple(field.name for field in fields),
                    # A kernel of plain numbers gives integers where some are missing elsewhere.
                    objects=None if self.types or missing else objects_of(fields, self.shape, specs),
                    floats=self._floats(flat, [*arrow], specs),
                )
                self.files.growth = self._growth(self._plan.schema)
            return self._plan

    def _floats(
        self, flat: pa.Schema, fields: Sequence[pa.Field], specs: Sequence[Spec]
    ) -> Mapping[str, Sequence[str]]:
        asked = {name for spec in specs if spec.matrix or spec.dtype is not None for name in spec.sources}
        names = [f.name for f in flat if has_floats(f.type) and f.name not in asked and f.name not in self.types]
        return json_parse.paths_of(fields, names)

    def _growth(self, schema: Schema) -> float:
        """By the rows of the first sample where they have one size, else as much as the text."""
        _, head = next(_samples(self.files, 0), (0, b""))
        return schema.row_nbytes * max(1, head.count(b"\n")) / len(head) if schema.fixed and head else 1.0

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
        return self._cut.fingerprint("json", self.shape, sorted((n, str(t)) for n, t in self.types.items()))

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """The unit's blocks; one may be empty, so that parts keep their numbers."""
        yield from blocks_from(self.files.stretches(unit), part, lambda piece: self._block(piece, buffers))

    @property
    def _cut(self) -> LineFiles:
        """The files, when it is known how large pieces are."""
        self.plan()
        return self.files

    def num_pieces(self) -> int:
        return 0 if self._cut.pieces is None else len(self._cut.pieces)

    def pieces_per_block(self) -> int:
        return self._cut.pieces_per_block()

    def pieces_nbytes(self, count: int) -> int:
        """As for a unit of as much text."""
        pieces = self._cut.pieces
        assert pieces is not None
        return 5 * count * pieces.nbytes + 200_000

    def decoded_nbytes(self) -> int:
        """As many bytes as the first sample lets expect."""
        return int(self._cut.text_nbytes_of_all() * self.files.growth)

    def read_pieces(self, pieces: np.ndarray, buffers: Buffers = NEW_MEMORY) -> Block:
        """Lines of scattered pieces, parsed in one call."""
        spans, lines, errors = self._cut.scattered(pieces, buffers)
        for error in errors:
            self.on_error.bad(self.files.too_long(error))
        return self._block((spans, lines), buffers)

    def _block(self, piece: tuple[Spans, Stretch], buffers: Buffers) -> Block:
        plan, (spans, lines) = self.plan(), piece
        if lines.error is not None:
            self.on_error.bad(self.files.too_long(lines.error))
        parsed = None if plan.objects is None else json_numbers.parse(lines.text, plan.objects, buffers)
        if parsed is not None:
            return self._numbers(parsed, _origin(spans, None))
        # Where all fields are read, one that no sample had may not vanish.
        others = "error" if self.shape.columns_needed is None else "ignore"
        if plan.objects is not None:
            fell_back("JSON lines", "a block of objects that the kernel does not read went through PyArrow")
        table, kept, bad = json_parse.parse(lines.text, plan.arrow, others)
        table, kept, rounded = without_rounded(json_parse.flat(table, plan.names), kept, lines.text, plan.floats)
        for start, reason in sorted([*bad, *rounded]):
            self.on_error.bad(BadData(where(*spans.place(start)), f"{reason}{self._remedy(reason)}"))
        return plan.shape.block(table, _origin(spans, kept), self.on_error, buffers)

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

    def _refuse_mixed(self, mixed: Mapping[str, str]) -> None:
        """Raise for fields that are wanted and have no type."""
        wanted = self.shape.columns_needed
        for name, reason in mixed.items():
            asked = wanted is None or any(f"{n}.".startswith(f"{name}.") for n in wanted)
            if asked and not any(f"{n}.".startswith(f"{name}.") for n in self.types):
                raise SchemaChanged(
                    f"{self.label}: field {name!r} has no single type: {reason}. "
                    f"Leave it out with columns=, or give it dtypes=."
                )

    def _remedy(self, reason: str) -> str:
        if "unexpected field" in reason:
            return ". No sample of the files has it: name the fields to read with columns=, or give it dtypes="
        if "changed from" in reason or "convert" in reason:
            return ". Types come from samples of the files: give the field a wider one with dtypes=, or on_error='skip'"
        return ""

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def _origin(spans: Spans, kept: np.ndarray | None) -> Origin:
    """Tells where a row is; plain text is read once more for that, so that blocks need not keep it."""

    def origin(row: int) -> str:
        if kept is not None:
            return where(*spans.place(int(kept[row])))
        if compression_of(spans.paths[0]) is not None:
            return f"{where(*spans.place(0))}, line {row} from there"
        starts = line_starts(spans.again(), blank=False)
        return where(*spans.place(int(starts[row]) if row < len(starts) else 0))

    return origin


def sampled_files(files: LineFiles) -> list[int]:
    """The first, middle and last."""
    count = len(files.paths)
    return sorted({0, count // 2, count - 1})[:SAMPLED_FILES]


def sampled_missing(files: LineFiles, arrow: pa.Schema, names: Sequence[str]) -> frozenset[str]:
    """Integers and booleans that are missing in some row of the samples."""
    found: set[str] = set()
    for file in sampled_files(files):
        for _, text in _samples(files, file):
            table = json_parse.flat(json_parse.parse(memoryview(text), arrow)[0], names)
            for name, column in zip(names, table.columns, strict=True):
                if column.null_count and (pt.is_integer(column.type) or pt.is_boolean(column.type)):
                    found.add(name)
    return frozenset(found)


def sampled_fields(files: LineFiles, types: Mapping[str, pa.DataType]) -> tuple[list[pa.Field], dict[str, str]]:
    """Fields and types that hold all samples (start, middle and end of up to three files), and fields without one."""
    fields: list[pa.Field] = []
    mixed: dict[str, str] = {}
    wrong: BadData | None = None
    for file in sampled_files(files):
        for place, text in _samples(files, file):
            found, error = _look(text, mixed)
            if error is not None:
                wrong = wrong or BadData(where(files.paths[file], place + error[0]), error[1])
            merged = json_parse.merge_fields(fields, found)
            if merged is None:
                fields = _settle(fields, found, types, files.paths[file])
            else:
                fields = merged
    if not fields and not mixed and wrong is not None:
        raise wrong
    return [pa.field(f.name, json_parse.settled(f.type)) for f in fields], mixed


def refuse_fieldless(files: LineFiles) -> None:
    """Raise where there are objects, and none of them has a field: rows without columns cannot be counted."""
    for file in sampled_files(files):
        for place, text in _samples(files, file):
            if text.strip():
                raise BadData(where(files.paths[file], place), "its objects have no fields, so that there is no column")


def _settle(
    left: Sequence[pa.Field], right: Sequence[pa.Field], types: Mapping[str, pa.DataType], path: str
) -> list[pa.Field]:
    """Fields of both, where those that disagree have a type by the user's word."""
    found = {field.name: field for field in left}
    for other in right:
        merged = json_parse.merge_fields([found[other.name]] if other.name in found else [], [other])
        if merged is None:
            if other.name not in types:
                raise SchemaChanged(
                    f"{path}: field {other.name!r} is {other.type} here and {found[other.name].type} elsewhere. "
                    f"Leave it out with columns=, or give it dtypes=."
                )
            continue
        found[other.name] = merged[0]
    return list(found.values())


def _samples(files: LineFiles, file: int) -> Iterator[tuple[int, bytes]]:
    path, nbytes = files.paths[file], int(files.sizes[file])
    kind = compression_of(path)
    if kind is not None:
        with open_decompressed(path, kind) as stream:
            try:
                head = stream.read(SAMPLE_NBYTES)
                if b"\n" not in head and len(head) == SAMPLE_NBYTES:  # the first line is longer than a sample
                    head += stream.read(files.max_line)
            except (OSError, pa.ArrowException):
                return  # reading will meet the damage again, and report it
        yield 0, _refuse_others(path, _whole(head, b"\n" not in head or len(head) < SAMPLE_NBYTES))
        return
    places = sorted({0, max(0, nbytes // 2 - SAMPLE_NBYTES // 2), max(0, nbytes - SAMPLE_NBYTES)})
    for place in places:
        text = storage.read_range(path, place, SAMPLE_NBYTES)
        ended = place + len(text) >= nbytes
        if place == 0:
            if b"\n" not in text and not ended:  # the first line is longer than a sample
                text = storage.read_range(path, 0, min(nbytes, files.max_line))
                ended = len(text) >= nbytes
            text = _refuse_others(path, text)
            yield 0, _whole(text, ended)
        else:
            begin = text.find(b"\n") + 1
            yield place + begin, _whole(text[begin:], ended)


def _whole(text: bytes, ended: bool) -> bytes:
    return text if ended else text[: text.rfind(b"\n") + 1]


def _refuse_others(path: str, text: bytes) -> bytes:
    head = text.removeprefix(BOM).lstrip()
    if head.startswith(b"["):
        raise BadData(
            path,
            "is one JSON array, not JSON lines, so it cannot be split. Write one object per line, for example with "
            "`jq -c '.[]' in.json > out.jsonl`.",
        )
    if head.partition(b"\n")[0].strip() == b"{":
        raise BadData(
            path, "is one JSON object over many lines, not JSON lines. `jq -c . in.json > out.jsonl` joins them"
        )
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise BadData(path, "looks like UTF-16, and JSON lines are UTF-8. `iconv -f utf-16 -t utf-8` changes it")
    return text.removeprefix(BOM)


def _look(text: bytes, mixed: dict[str, str]) -> tuple[list[pa.Field], json_parse.Bad | None]:
    """Fields of a sample's lines; those without a type go to `mixed`. The first line that is not JSON is reported."""
    starts = line_starts(text, blank=False)
    ends = np.append(starts[1:], len(text))
    todo = [(0, len(starts))] if len(starts) else []
    fields: list[pa.Field] = []
    bad: json_parse.Bad | None = None
    while todo:  # halves of what does not parse whole, first lines first
        low, high = todo.pop()
        try:
            found = _inferred(text[int(starts[low]) : int(ends[high - 1])], high - low, mixed)
            # Lines that disagree with those before them are judged when they are read, with their place.
            fields = json_parse.merge_fields(fields, found) or fields
        except (pa.ArrowException, ValueError) as error:
            if high - low > 1:
                middle = (low + high) // 2
                todo += [(middle, high), (low, middle)]
            else:
                bad = bad or (int(starts[low]), str(error))
    return fields, bad


def _inferred(text: bytes, rows: int, mixed: dict[str, str]) -> list[pa.Field]:
    """Fields of some lines, as Arrow sees them; one line that it refuses is judged by its values."""
    by_value = values.DEEP.search(text) is not None or values.LONG.search(text) is not None
    if rows > 1 and by_value:
        raise ValueError("to be judged line by line")
    try:
        if not by_value:
            table = json_parse.read(text, None)
            if table.num_rows != rows:
                raise ValueError(f"the line holds {table.num_rows} objects")
            return [*table.schema]
    except (pa.ArrowException, UnicodeDecodeError):
        if rows > 1:
            raise
    judged = values.judge(text)
    mixed.update(judged.mixed)
    return judged.fields
