"""What the engine asks of a dataset on storage.

Covers: the two protocols every reader implements and the policy for damaged data.
Does not cover: any format (sources/), the order in which units are read (order/).

There are two kinds. A `RowSource` can fetch any row for itself (images, arrays): it gets an exact
global shuffle. A `UnitSource` reads stretches (a byte range of a CSV file, a row group): it gets a
shuffle of units plus a window of mixed rows. Both are cheap, picklable descriptions: files are opened
in `open` and `fetch`, never in a constructor. A source of files also has `remote`: whether some of them have to be
fetched from a store, so that a cache may keep their bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from penstock.core.block import Block
from penstock.core.errors import BadData, InvalidInput, TooManyErrors
from penstock.core.schema import Schema

Piece = TypeVar("Piece")

BLOCK_NBYTES = 8_000_000
"""Decoded size that a source aims at for one block: large enough to hide Python, small enough to mix many."""


class OnError:
    """What to do with damaged data: stop at the first piece, or skip and count.

    `max_errors` below 1 is a fraction of the rows seen, otherwise a count. Thread safe.
    """

    def __init__(self, mode: Literal["raise", "skip"] = "raise", max_errors: float | None = None) -> None:
        if mode not in ("raise", "skip"):
            raise InvalidInput(f"on_error must be 'raise' or 'skip', not {mode!r}.")
        if max_errors is not None and not (isinstance(max_errors, (int, float)) and max_errors >= 0):
            raise InvalidInput(f"max_errors must be a count or a fraction below 1, not {max_errors!r}.")
        self.mode, self.max_errors = mode, max_errors
        self.count, self.seen = 0, 0
        self.last: BadData | None = None
        self.listener: Callable[[BadData], None] | None = None
        self._lock = threading.Lock()

    def bad(self, error: BadData) -> None:
        """Report one damaged piece: raises it, or counts it and returns."""
        if self.mode == "raise":
            raise error
        with self._lock:
            self.count += 1
            self.last = error
        if self.listener is not None:
            self.listener(error)
        self._check(error)

    def good(self, rows: int) -> None:
        """Count rows that were read, so that a fraction means something."""
        with self._lock:
            self.seen += rows

    def _check(self, error: BadData) -> None:
        allowed = self.max_errors
        if allowed is None:
            return
        # A fraction is judged once there are enough rows for it to mean something.
        seen = self.seen + self.count
        over = self.count > allowed if allowed >= 1 or allowed == 0 else seen >= 100 and self.count > allowed * seen
        if over:
            raise TooManyErrors(count=self.count, seen=seen, allowed=allowed, last=error)

    def __getstate__(self) -> dict[str, Any]:
        return {"mode": self.mode, "max_errors": self.max_errors}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["mode"], state["max_errors"])  # type: ignore[misc]


def blocks_from(pieces: Iterable[Piece], part: int, block: Callable[[Piece], Block]) -> Iterator[Block]:
    """The blocks that pieces of a unit become, from number `part` on: the body of most `UnitSource.open`.

    It keeps no piece while it waits for its next turn, which the variable of a loop would: that may be long where
    memory is short, and what was read would lie outside of every lease.
    """
    return map(block, islice(pieces, part, None))


@runtime_checkable
class UnitSource(Protocol):
    """Data read in stretches. Units are numbered; a unit yields one or more blocks, always the same ones."""

    @property
    def label(self) -> str:
        """A short name for plans and messages, e.g. 'csv(train/*.csv)'."""

    @property
    def on_error(self) -> OnError: ...

    def schema(self) -> Schema:
        """Columns, known without reading more than samples or footers."""

    def num_units(self) -> int: ...

    def num_rows(self) -> int | None:
        """All rows, or None where only reading tells."""

    def unit_nbytes(self, unit: int) -> int:
        """Bytes that reading one block of this unit holds at its peak, read bytes and result together."""

    def open(self, unit: int, part: int = 0) -> Iterator[Block]:
        """The unit's blocks from number `part` on. Closing the iterator closes its files."""

    def fingerprint(self) -> str:
        """Changes when the data changes: a position is only resumed on the same data."""


@runtime_checkable
class TellsLastBlock(Protocol):
    """A `UnitSource` that knows of a unit that it is one block or none: nobody has to ask it for a second."""

    def one_block(self, unit: int) -> bool: ...


@runtime_checkable
class RowSource(Protocol):
    """Data in which every row can be fetched for itself."""

    @property
    def label(self) -> str: ...

    @property
    def on_error(self) -> OnError: ...

    def schema(self) -> Schema: ...

    def num_rows(self) -> int: ...

    def fetch_nbytes(self, rows: int) -> int:
        """Bytes that `fetch` of so many rows holds, as far as one can tell."""

    def fetch(self, rows: np.ndarray) -> Any:
        """Input and output only: the stored bytes of the rows (int64 numbers, any order)."""

    def decode(self, fetched: Any) -> Block:
        """Computing only: fetched bytes to rows. Damaged rows go to `on_error` and are left out."""

    def decode_into(self, fetched: Any, out: Mapping[str, np.ndarray]) -> None:
        """As `decode`, written into the given arrays (a row each). Only for a fixed schema; damage raises."""

    def fingerprint(self) -> str: ...


Source = UnitSource | RowSource
