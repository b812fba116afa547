"""Samples from Python generators.

Covers: `GeneratorSource`: one unit per function, its samples gathered into blocks.
Does not cover: functions applied to samples (plan/), process workers (engine/).

A generator can only be run from its start. Resuming at block n runs it again and drops what comes before: the samples
are the same if the function yields the same ones each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.block import Block, Column, value_nbytes
from penstock.core.errors import DataError, InvalidInput, MapError
from penstock.core.schema import OBJECT, Field, Schema, schema_of
from penstock.core.source import BLOCK_NBYTES, NEW_MEMORY, Buffers, OnError, blocks_from
from penstock.core.tree import flatten

BLOCK_ROWS = 4096
"""Samples per block at most: small ones would otherwise wait until 8 MB of them are there."""

Function = Callable[[], Iterable[Any]]


class GeneratorSource:
    """What the functions yield. Each is called anew for every epoch and is one unit."""

    def __init__(
        self,
        functions: Sequence[Function],
        schema: Schema | None = None,
        rows: int | None = None,
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        self.functions, self.rows, self.block_rows = list(functions), rows, block_rows
        self._schema, self._on_error = schema, OnError()

    @property
    def label(self) -> str:
        more = f" and {len(self.functions) - 1} more" if len(self.functions) > 1 else ""
        return f"generator({name_of(self.functions[0])}{more})"

    @property
    def on_error(self) -> OnError:
        return self._on_error

    def schema(self) -> Schema:
        return self._found

    @cached_property
    def _found(self) -> Schema:
        """As given, or as the first sample suggests."""
        if self._schema is not None:
            return self._schema
        for function in self.functions:
            samples = iter(run(function))
            try:
                for sample in samples:
                    return schema_of(sample)
            finally:
                close(samples)
        raise DataError(f"{self.label} yields nothing, so its columns are unknown. Give schema=.")

    def num_units(self) -> int:
        return len(self.functions)

    def num_rows(self) -> int | None:
        return self.rows

    def unit_nbytes(self, unit: int) -> int:
        """Samples as they come, and the block made of them."""
        return 2 * min(BLOCK_NBYTES, self.block_rows * max(64, self.schema().row_nbytes)) + 2 * self.schema().row_nbytes

    def fingerprint(self) -> str:
        """Code cannot be compared: names and the schema have to do."""
        names = [name_of(function) for function in self.functions]
        return hashlib.sha256(repr((names, str(self.schema()), self.rows)).encode()).hexdigest()[:32]

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """Blocks of a function's samples; the first `part` blocks are run through and dropped."""
        function = self.functions[unit]
        samples = iter(run(function))
        schema = self.schema()
        try:
            pieces, name = self._gathered(samples, function), name_of(function)
            yield from blocks_from(pieces, part, lambda piece: to_block(piece[1], schema, name, piece[0]))
        finally:
            close(samples)

    def _gathered(self, samples: Iterator[Any], function: Function) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Flattened samples, a block's worth at a time, and the number of those before."""
        tree, start = self.schema().tree, 0
        while True:
            rows: list[dict[str, Any]] = []
            nbytes = 0
            for sample in told(islice(samples, self.block_rows), function):
                shown, leaves = flatten(sample)
                if shown != tree:
                    raise DataError(
                        f"{name_of(function)} yields samples of different form: {shown} after {tree}. "
                        f"Yield the same tuple or dict every time."
                    )
                rows.append(leaves)
                nbytes += sum(value_nbytes(value) for value in leaves.values())
                if nbytes >= BLOCK_NBYTES:
                    break
            if not rows:
                return
            ready, first, start = [rows], start, start + len(rows)
            del rows, sample, leaves
            yield first, ready.pop()


def told(samples: Iterator[Any], function: Function) -> Iterator[Any]:
    """The samples; an error of the user's function says so and keeps its traceback."""
    count = 0
    while True:
        try:
            sample = next(samples)
        except StopIteration:
            return
        except Exception as error:
            raise MapError(name_of(function), f"sample {count} of a block", error) from error
        count += 1
        yield sample


def run(function: Function) -> Iterable[Any]:
    """Call a generator function, and insist that it gives something to iterate over."""
    made = function()
    if not isinstance(made, Iterable):
        raise InvalidInput(f"{name_of(function)} returned {type(made).__name__}, which cannot be iterated. Use yield.")
    return made


def close(samples: Iterator[Any]) -> None:
    """End a generator now, so that its `finally` runs and its files close."""
    end = getattr(samples, "close", None)
    if callable(end):
        end()


def to_block(rows: Sequence[dict[str, Any]], schema: Schema, name: str, start: int) -> Block:
    """Samples by column."""
    columns = {field.name: gather(field, [row[field.name] for row in rows], name) for field in schema}
    return Block(columns, schema.tree, lambda i: f"{name}, sample {start + i}")


def gather(field: Field, values: list[Any], name: str) -> Column:
    """One column from its values: text and bytes as Arrow arrays, equal shapes as one array, others as objects."""
    if field.dtype == OBJECT and field.shape == ():
        try:
            return pa.array(values, pa.string() if field.text else pa.binary())
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):
            return objects(values)
    arrays = [np.asarray(value) for value in values]
    if len({array.shape for array in arrays}) > 1:
        return objects([array.astype(field.dtype, copy=False) for array in arrays])
    try:
        return np.asarray(np.stack(arrays), dtype=field.dtype)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} yields values that do not fit column {field.name!r} ({field}): {error}") from error


def objects(values: Sequence[Any]) -> np.ndarray:
    """Values as they are, one per row."""
    out = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        out[number] = value
    return out


def name_of(function: Any) -> str:
    """A function's name for messages."""
    return str(getattr(function, "__qualname__", None) or type(function).__name__)
