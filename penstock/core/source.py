"""What the engine asks of a dataset on storage.

Covers: the two protocols every reader implements, the memory they read into, and the policy for
damaged data.
Does not cover: any format (sources/), the order in which units are read (order/).

There are two kinds. A `RowSource` can fetch any single row (images, arrays): it gets an exact
global shuffle. A `UnitSource` reads stretches (a byte range of a CSV file, a row group): it gets a
shuffle of units plus a window of mixed rows. Both are cheap, picklable descriptions: files are opened
in `open` and `fetch`, never in a constructor. A source of files also has `remote`: whether some of them have to be
fetched from a store, so that a cache may keep their bytes.

What fills large arrays takes `buffers`, from the run that reads: a source that makes its own arrays may leave them
alone. Without a run (a schema, a test) arrays are new.
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


class BytesOnLease(Protocol):
    """Bytes of a run's budget."""

    def resize(self, nbytes: int) -> None: ...

    def close(self) -> None: ...


class Buffers(Protocol):
    """The memory of one run, for its readers."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """As np.empty, in memory that was used before where the array is large."""

    def lease(self, nbytes: int, who: str) -> BytesOnLease | None:
        """Bytes of the run's budget for a buffer that is the caller's own; None where no budget has to know."""


class NewMemory:
    """The `Buffers` of a read without a run."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A new array."""
        return np.empty(shape, dtype)

    def lease(self, nbytes: int, who: str) -> None:
        """No budget has to know."""


NEW_MEMORY = NewMemory()

BLOCK_NBYTES = 8_000_000
"""Decoded size that a source aims at for one block: large enough to hide Python, small enough to mix many."""

_ROWS_FOR_A_FRACTION = 100
"""Before so many rows a fraction of them says little, unless there are no more."""


class OnError:
    """What to do with damaged data: stop at the first piece, or skip and count.

    `max_errors` below 1 is a fraction of the rows seen, otherwise a count. A source only reports damage (`bad`); the
    engine counts the rows that came out (`good`) on the thread that read them, and says when the data has ended.
    A fraction is judged between blocks, never in the middle of one, whose good rows are not counted yet. Thread safe.
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
        self._in_block: dict[int, int] = {}  # damaged pieces of blocks that are being read, by thread

    def bad(self, error: BadData) -> None:
        """Report one damaged piece: raises it, or counts it and returns."""
        if self.mode == "raise":
            raise error
        thread = threading.get_ident()
        with self._lock:
            self.count += 1
            self._in_block[thread] = self._in_block.get(thread, 0) + 1
            self.last = error
        if self.listener is not None:
            self.listener(error)
        allowed = self.max_errors
        if allowed is not None and (allowed >= 1 or allowed == 0) and self.count > allowed:
            self._give_up(self.count, allowed)

    def good(self, rows: int) -> None:
        """Count the rows of a block that was read. Called by the engine, once a block."""
        with self._lock:
            self.seen += rows
            self._in_block.pop(threading.get_ident(), None)
            count = self.count - sum(self._in_block.values())
        self._judge(count, _ROWS_FOR_A_FRACTION)

    def ended(self, *, whole: bool) -> None:
        """All blocks have been read. `whole`: of all the data, so that a fraction means something however few rows."""
        with self._lock:
            self._in_block.clear()
        self._judge(self.count, 1 if whole else _ROWS_FOR_A_FRACTION)

    def _judge(self, count: int, least_rows: int) -> None:
        allowed = self.max_errors
        if allowed is None or not 0 < allowed < 1:
            return
        if self.seen + count >= least_rows and count > allowed * (self.seen + count):
            self._give_up(count, allowed)

    def _give_up(self, count: int, allowed: float) -> None:
        assert self.last is not None
        raise TooManyErrors(count=count, seen=self.seen + count, allowed=allowed, last=self.last)

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
        """All rows, or None where that is known only after reading."""

    def unit_nbytes(self, unit: int) -> int:
        """Bytes that reading one block of this unit holds at its peak, read bytes and result together."""

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """The unit's blocks from number `part` on. Closing the iterator closes its files."""

    def fingerprint(self) -> str:
        """Changes when the data changes: a position is only resumed on the same data."""


@runtime_checkable
class TellsLastBlock(Protocol):
    """A `UnitSource` that knows that a unit is at most one block, so that no second one is asked for."""

    def one_block(self, unit: int) -> bool: ...


@runtime_checkable
class PieceSource(Protocol):
    """A `UnitSource` that can also read many small pieces from all over the dataset as one block.

    Pieces are numbered in the order of the data. A shuffle reads blocks of scattered pieces, because rows of a few
    large neighbourhoods do not look like the whole, however well they are mixed with each other.
    """

    def num_pieces(self) -> int:
        """0 where the data can be read in units only (a compressed file)."""

    def pieces_per_block(self) -> int:
        """How many pieces make a block of the usual size."""

    def pieces_nbytes(self, count: int) -> int:
        """Bytes that reading so many pieces at once holds at its peak, read bytes and result together."""

    def read_pieces(self, pieces: np.ndarray, buffers: Buffers = NEW_MEMORY) -> Block:
        """The rows of the given pieces, one piece after the other."""


@runtime_checkable
class TellsSize(Protocol):
    """A source that can estimate the bytes of all its rows as blocks hold them, where it cannot count the rows."""

    def decoded_nbytes(self) -> int: ...


@runtime_checkable
class RowSource(Protocol):
    """Data whose rows can be fetched one by one, in any order."""

    @property
    def label(self) -> str: ...

    @property
    def on_error(self) -> OnError: ...

    def schema(self) -> Schema: ...

    def num_rows(self) -> int: ...

    def fetch_nbytes(self, rows: int) -> int:
        """Bytes that `fetch` of so many rows holds, as far as is known."""

    def fetch(self, rows: np.ndarray) -> Any:
        """Input and output only: the stored bytes of the rows (int64 numbers, any order)."""

    def decode(self, fetched: Any, buffers: Buffers = NEW_MEMORY) -> Block:
        """Computing only: fetched bytes to rows. Damaged rows go to `on_error` and are left out."""

    def decode_into(self, fetched: Any, out: Mapping[str, np.ndarray], buffers: Buffers = NEW_MEMORY) -> None:
        """As `decode`, written into the given arrays (a row each). Only for a fixed schema; damage raises."""

    def fingerprint(self) -> str: ...


Source = UnitSource | RowSource

_UNKNOWN_BLOCKS = 64
"""Blocks of a unit where their number is not known: better a needless copy of a few rows than batches of one class."""


def decoded_nbytes(source: UnitSource) -> int:
    """Bytes of all rows as blocks hold them, as far as the source knows."""
    if isinstance(source, TellsSize):
        return max(1, source.decoded_nbytes())
    rows = source.num_rows()
    if rows is not None:
        return max(1, rows * max(1, source.schema().row_nbytes))
    one_block = isinstance(source, TellsLastBlock) and source.num_units() > 0 and source.one_block(0)
    return max(1, source.num_units() * BLOCK_NBYTES * (1 if one_block else _UNKNOWN_BLOCKS))
