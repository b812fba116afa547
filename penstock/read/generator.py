"""`from_generator`.

Covers: the arguments users see.
Does not cover: running generators (sources/generator.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.schema import Schema, schema_of
from penstock.dataset import Dataset
from penstock.sources.generator import GeneratorSource

Generator = Callable[[], Iterable[Any]]


def from_generator(
    generator: Generator | Sequence[Generator],
    *,
    schema: Schema | Mapping[str, Any] | tuple[Any, ...] | None = None,
    rows: int | None = None,
) -> Dataset:
    """Samples that Python functions yield: dicts, tuples or bare values. Several functions are read in parallel.

    Each function is called again for every epoch. A position is resumed by running the function from its start and
    dropping what came before, so it should yield the same samples each time. `rows` tells how many there are in all.
    `schema` is a Schema or an example of a sample; without it, the first sample is made once to look at it.

    >>> [int(n) for n in from_generator(lambda: (n * n for n in range(4)))]
    [0, 1, 4, 9]
    """
    functions: list[Any] = list(generator) if isinstance(generator, (list, tuple)) else [generator]
    if not functions:
        raise InvalidInput("from_generator() got an empty list: give at least one function.")
    for function in functions:
        if not callable(function):
            raise InvalidInput(
                f"from_generator() needs a function that returns an iterator, not {type(function).__name__}: "
                f"an iterator is used up after one epoch. Pass the function itself, or lambda: iter(...)."
            )
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, (int, np.integer)) or rows < 0):
        raise InvalidInput(f"rows= must be a number of samples, not {rows!r}.")
    found = schema if schema is None or isinstance(schema, Schema) else schema_of(schema)
    return Dataset.of(GeneratorSource(functions, found, rows))
