"""JSON lines to Arrow tables, and finding the lines that do not parse.

Covers: one type for each field over samples, nested fields by dotted names, parsing a piece with exact blame.
Does not cover: cutting files into pieces (sources/text/lines.py), blocks (source.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.types as pt

from penstock.core.arrow_numbers import no_rows
from penstock.core.errors import NotFound
from penstock.sources.text.lines import line_starts

PIECE_NBYTES = 1 << 18

BLANK = re.compile(rb"\A\s|\n[\n\r \t]")
"""What a text has whose lines may be blank."""

Bad = tuple[int, str]
"""Where a line starts in the piece, and what is wrong with it."""


def agree(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type that holds both, or None."""
    if left == right or pt.is_null(right):
        return left
    if pt.is_null(left):
        return right
    if {str(left), str(right)} == {"int64", "double"}:
        return pa.float64()
    if pt.is_struct(left) and pt.is_struct(right):
        merged = merge_fields([*left], [*right])
        return None if merged is None else pa.struct(merged)
    if pt.is_list(left) and pt.is_list(right):
        inner = agree(left.value_type, right.value_type)
        return None if inner is None else pa.list_(inner)
    return None


def merge_fields(left: Sequence[pa.Field], right: Sequence[pa.Field]) -> list[pa.Field] | None:
    """Fields of both, each with a type that holds both; None where there is no such type."""
    found = {field.name: field.type for field in left}
    for field in right:
        kind = agree(found[field.name], field.type) if field.name in found else field.type
        if kind is None:
            return None
        found[field.name] = kind
    return [pa.field(name, kind) for name, kind in found.items()]


def settled(kind: pa.DataType) -> pa.DataType:
    """What a sampled type is read as: dates stay the text that they are, and what was always null is text."""
    if pt.is_timestamp(kind) or pt.is_null(kind):
        return pa.string()
    if pt.is_struct(kind):
        return pa.struct([pa.field(f.name, settled(f.type)) for f in kind])
    return pa.list_(settled(kind.value_type)) if pt.is_list(kind) else kind


def leaves(fields: Sequence[pa.Field], prefix: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Dotted names and types of all fields that are not objects themselves."""
    for field in fields:
        name = f"{prefix}{field.name}"
        if pt.is_struct(field.type) and field.type.num_fields:
            yield from leaves([*field.type], f"{name}.")
        elif not pt.is_struct(field.type):
            yield name, field.type


def chosen_schema(fields: Sequence[pa.Field], wanted: Sequence[str], types: Mapping[str, pa.DataType]) -> pa.Schema:
    """The (nested) schema to parse with: only what is wanted, so that the rest is skipped."""
    known = dict(leaves(fields))
    paths = paths_of(fields, wanted)
    tree: dict[str, Any] = {}
    for name in wanted:
        kind = types.get(name, known.get(name))
        if kind is None:
            some = ", ".join(list(known)[:50])
            raise NotFound(f"The JSON has no field {name!r}. There are: {some or 'none'}.")
        steps = paths[name]
        node = tree
        for step in steps[:-1]:
            node = node.setdefault(step, {})
        node[steps[-1]] = kind
    return pa.schema(_fields(tree))


def paths_of(fields: Sequence[pa.Field], names: Sequence[str]) -> dict[str, list[str]]:
    """The paths of dotted names; a field whose own name has dots wins over nesting."""
    places = [[field.name] for field in fields]
    known = dict(zip(map(".".join, places), places, strict=True))
    todo = list(zip(places, (field.type for field in fields), strict=True))
    for place, kind in todo:  # grows meanwhile: fields of objects stand behind those of their parents
        for inner in kind if pt.is_struct(kind) else ():
            deeper = [*place, inner.name]
            known.setdefault(".".join(deeper), deeper)
            todo.append((deeper, inner.type))
    return {name: known.get(name) or _path_of(name, known) for name in names}


def _path_of(name: str, known: Mapping[str, list[str]]) -> list[str]:
    """The path of a name that no sample has: below the longest name in front that is known."""
    end = len(name)
    while (end := name.rfind(".", 0, end)) > 0:
        if name[:end] in known:
            return [*known[name[:end]], name[end + 1 :]]
    return [name]


def _fields(tree: Mapping[str, Any]) -> list[pa.Field]:
    return [pa.field(n, pa.struct(_fields(kind)) if isinstance(kind, dict) else kind) for n, kind in tree.items()]


def flat(table: pa.Table, wanted: Sequence[str]) -> pa.Table:
    """Nested columns under their dotted names."""
    paths = paths_of([*table.schema], wanted)
    opened: dict[tuple[str, ...], dict[str, pa.ChunkedArray]] = {}

    def column(path: tuple[str, ...]) -> pa.ChunkedArray:
        if len(path) == 1:
            return table.column(path[0])
        above = path[:-1]
        if above not in opened:  # all fields of an object at once: one by one takes a thousand times as long
            whole = column(above)
            opened[above] = dict(zip((field.name for field in whole.type), whole.flatten(), strict=True))
        return opened[above][path[-1]]

    return pa.table([column(tuple(paths[name])) for name in wanted], names=list(wanted))


ANY_START = re.compile(rb"(?:\A|\n)[ \t\r]*[^{ \t\r\n]")
"""A line that does not begin as an object does."""


def only_objects(text: bytes | memoryview) -> bool:
    """Whether every line that is not blank begins an object: Arrow ends the process where the first is `null`."""
    whole = bytes(text)
    objects = whole.count(b"\n{") + whole.startswith(b"{")
    return objects == whole.count(b"\n") + (not whole.endswith(b"\n")) or ANY_START.search(whole) is None


def read(text: bytes | memoryview, schema: pa.Schema | None, others: str = "ignore") -> pa.Table:
    """A piece in one go; with a schema, `others` says whether to "ignore" other fields or "error". ArrowInvalid."""
    if not only_objects(text):
        raise pa.ArrowInvalid("the line is not a JSON object")
    if schema is None:
        bytes(text).decode("utf-8")  # inferred names are not checked by the parser
    behaviour = "infer" if schema is None else others
    table = pj.read_json(
        pa.BufferReader(pa.py_buffer(text)),
        read_options=pj.ReadOptions(use_threads=False, block_size=max(16, len(text) + 1)),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=behaviour),
    )
    table.validate(full=True)  # text is not checked for UTF-8 while it is parsed
    return table


def parse(text: memoryview, schema: pa.Schema, others: str = "ignore") -> tuple[pa.Table, np.ndarray | None, list[Bad]]:
    """The rows, the starts of their lines if some were left out, and the lines left out."""
    if not bytes(text[: 1 << 16]).strip() and not bytes(text).strip():
        return no_rows(schema), None, []
    try:
        table = read(text, schema, others)
    except (pa.ArrowException, UnicodeDecodeError):
        table = None
    # Parsed as one document, an object may span lines or share one; a row must be a line.
    if table is not None and table.num_rows == count_lines(text):
        return table, None, []
    starts = line_starts(text, blank=False)
    ends = np.append(starts[1:], len(text))
    good: list[pa.Table] = []
    kept: list[np.ndarray] = []
    bad: list[Bad] = []
    _halves(text, (starts, ends), (schema, others), (good, kept, bad))
    table = pa.concat_tables(good) if good else no_rows(schema)
    return table, np.concatenate(kept) if kept else np.empty(0, np.int64), bad


def count_lines(text: memoryview) -> int:
    """Lines that are not blank; counting newlines suffices where no line is."""
    if BLANK.search(text):
        return len(line_starts(text, blank=False))
    return count_newlines(text) + (bytes(text[-1:]) != b"\n")


def count_newlines(text: memoryview) -> int:
    """Newlines, without a second copy of all the text."""
    return sum(bytes(text[at : at + PIECE_NBYTES]).count(b"\n") for at in range(0, len(text), PIECE_NBYTES))


def _unexpected(line: bytes, schema: pa.Schema) -> str:
    """The first field of a line that a schema does not have."""

    def first(found: Any, kinds: Any, prefix: str) -> str:
        known = {field.name: field.type for field in kinds}
        for name, value in found.items():
            if name not in known:
                return prefix + str(name)
            if isinstance(value, dict) and pt.is_struct(known[name]):
                inner = first(value, known[name], f"{prefix}{name}.")
                if inner:
                    return inner
        return ""

    try:
        return first(json.loads(line), schema, "")
    except ValueError:  # Arrow stopped at the field, and what stands behind it is no JSON at all
        return ""


def _halves(
    text: memoryview,
    lines: tuple[np.ndarray, np.ndarray],
    asked: tuple[pa.Schema, str],
    out: tuple[list[pa.Table], list[np.ndarray], list[Bad]],
) -> None:
    """Close in on the lines that do not parse: what parses whole is kept whole."""
    starts, ends = lines
    if not len(starts):
        return
    try:
        table = read(text[int(starts[0]) : int(ends[-1])], *asked)
        if table.num_rows == len(starts):
            out[0].append(table)
            out[1].append(starts)
            return
        reason = f"the line holds {table.num_rows} objects" if len(starts) == 1 else ""
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = str(error).replace(" in row 0", "").removeprefix("JSON parse error: ")
        if len(starts) == 1 and reason == "unexpected field":
            field = _unexpected(bytes(text[int(starts[0]) : int(ends[-1])]), asked[0])
            reason = f"unexpected field {field!r}" if field else "the line is not JSON"
    if len(starts) == 1:
        out[2].append((int(starts[0]), reason))
        return
    middle = len(starts) // 2
    _halves(text, (starts[:middle], ends[:middle]), asked, out)
    _halves(text, (starts[middle:], ends[middle:]), asked, out)
