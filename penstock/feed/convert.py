"""From NumPy elements to those of a framework, one leaf at a time.

Covers: walking an element, what every framework needs of a leaf, an iterator that converts as it goes.
Does not cover: any framework (torch.py and its neighbours).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from penstock.core.events import fell_back
from penstock.core.schema import Schema
from penstock.core.tree import map_leaves
from penstock.engine.run import StreamIterator
from penstock.feed.epochs import EpochNumbers
from penstock.plan.steps import Node


class Streamed(Protocol):
    """What a feed needs of a dataset."""

    node: Node
    epochs: EpochNumbers

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


def numeric(value: Any) -> np.ndarray | None:
    """A leaf as an array that frameworks can take, or None if it holds text, bytes or objects.

    Times become 64-bit integers in their unit. Nothing is copied but values of foreign byte order.
    """
    if type(value) is np.ndarray and value.dtype.kind in "biufc" and value.dtype.isnative:
        return value
    if not isinstance(value, (np.ndarray, np.generic)):
        return None
    array = np.asarray(value)
    if array.dtype.kind in "OSUV":
        return None
    if array.dtype.kind in "mM":
        return array.view(np.int64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


ALIGN = 64
"""Bytes at which arrays begin that frameworks on the CPU can take as they are."""

COPY_TOLD_NBYTES = 4096
"""Copies below this cost nothing beside the call: labels of a batch that is not full."""


def aligned(array: np.ndarray, dtype: np.dtype[Any] | None = None) -> np.ndarray:
    """The array if it lies in one piece, begins at 64 bytes, may be lent out writable and has the dtype wanted.

    Otherwise a copy that does and has. Batches and what functions made of them lie so already; parts of a batch need
    not.
    """
    wanted = array.dtype if dtype is None else dtype
    if wanted == array.dtype:
        if array.flags.carray and (not array.size or _address(array) % ALIGN == 0):
            return array
        if array.nbytes >= COPY_TOLD_NBYTES:
            fell_back("feed", "an array that did not begin at 64 bytes was copied")
    nbytes = array.size * wanted.itemsize
    memory = np.empty(nbytes + ALIGN, dtype=np.uint8)
    first = -memory.ctypes.data % ALIGN
    copy = memory[first : first + nbytes].view(wanted).reshape(array.shape)
    np.copyto(copy, array, casting="unsafe")
    return copy


def _address(array: np.ndarray) -> int:
    """Where an array begins that lies in one piece and is writable: a third of what `array.ctypes` takes."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]


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


class OneAhead(Converted):
    """As Converted, with the next element converted before it is asked for: its transfer overlaps with the step."""

    def __init__(self, stream: StreamIterator, convert: Callable[[Any], Any]) -> None:
        super().__init__(stream, convert)
        self._next: Any = None
        self._position: dict[str, Any] | None = None
        self._error: Exception | None = None

    def __next__(self) -> Any:
        if self._error is not None:
            raise self._error
        now = super().__next__() if self._position is None else self._next
        self._next = None
        self._position = self._stream.position
        try:
            self._next = super().__next__()
        except StopIteration:
            self._position = None  # the stream itself ends the next call
        except Exception as error:
            self._error = error  # told after the element before it
        return now

    @property
    def position(self) -> dict[str, Any]:
        """Where the pass stands, which is before the element that was converted ahead."""
        return self._stream.position if self._position is None else self._position
