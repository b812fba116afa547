"""From NumPy elements to those of a framework, one leaf at a time.

Covers: walking an element, what every framework needs of a leaf, an iterator that converts as it goes.
Does not cover: any framework (feed/torch.py and its neighbours).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from penstock.core.schema import Schema
from penstock.engine.run import StreamIterator
from penstock.feed.epochs import Epochs
from penstock.plan.steps import Node


class Streamed(Protocol):
    """What a feed needs of a dataset."""

    node: Node
    epochs: Epochs

    def __init__(self, node: Node) -> None: ...

    def __iter__(self) -> StreamIterator: ...

    def at_epoch(self, epoch: int) -> Any:
        """The same dataset, whose next pass is the given epoch."""

    @property
    def resuming(self) -> bool:
        """Whether the next pass begins in the middle of an epoch."""

    @property
    def schema(self) -> Schema: ...

    @property
    def cardinality(self) -> int | None: ...


def map_leaves(element: Any, convert: Callable[[Any], Any]) -> Any:
    """The element with every leaf converted; dicts and tuples stay what they are."""
    if isinstance(element, dict):
        return {name: map_leaves(value, convert) for name, value in element.items()}
    if isinstance(element, tuple):
        return tuple(map_leaves(value, convert) for value in element)
    return convert(element)


def numeric(value: Any) -> np.ndarray | None:
    """A leaf as an array that frameworks can take, or None if it holds text, bytes or objects.

    Times become 64-bit integers in their unit. Nothing is copied but values of foreign byte order.
    """
    if not isinstance(value, (np.ndarray, np.generic)):
        return None
    array = np.asarray(value)
    if array.dtype.kind in "OSUV":
        return None
    if array.dtype.kind in "mM":
        return array.view(np.int64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def listed(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Text, bytes and rows of different shapes as lists, in which arrays are converted too."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, list):
        return [convert(v) if isinstance(v, (np.ndarray, list)) else v for v in value]
    return value


class Converted(Iterator[Any]):
    """A pass over a dataset whose elements belong to a framework."""

    def __init__(self, stream: StreamIterator, convert: Callable[[Any], Any]) -> None:
        self._stream, self._convert = stream, convert

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return map_leaves(next(self._stream), self._convert)

    @property
    def position(self) -> dict[str, Any]:
        """Where the pass stands: give it to `ds.resume` to continue with the next element."""
        return self._stream.position

    @property
    def waited_s(self) -> float:
        """How long the consumer has waited for data so far."""
        return self._stream.waited_s

    def close(self) -> None:
        """Stop now; dropping the iterator does the same."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
