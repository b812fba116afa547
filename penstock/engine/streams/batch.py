"""Rows to batches: gathered straight into recycled buffers, several small batches at a time.

Covers: cutting pieces into batches, the gather job, padding, ragged rows, functions that run on batches.
Does not cover: batches of a row source that need no gather (rows.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.core.block import Block, Column, column_nbytes, concat_columns, to_numpy
from penstock.core.errors import RaggedBatch
from penstock.core.schema import OBJECT
from penstock.core.source import NEW_MEMORY, Buffers
from penstock.engine.buffers.batch import rows_of
from penstock.engine.buffers.gather import scratch_nbytes
from penstock.engine.buffers.leased_rows import BatchList, Elements, Held, Hold, Window, batch_as_row
from penstock.engine.prepare.finish import Finish
from penstock.engine.streams.stream import Context, Lookahead, Piece, State, Stream
from penstock.memory.budget import Lease
from penstock.order.position import progress
from penstock.plan.prepare import Normalise
from penstock.plan.steps import Batch

_URGENCY = 10
GROUP_NBYTES = 1_000_000
"""Batches smaller than this are made and handed over several at a time: a hand-over costs as much as a small batch."""

_GROUP_MOST = 64


class ElementCutter:
    """Takes exact numbers of elements from a stream and knows the state in between."""

    def __init__(self, inner: Stream, state: State) -> None:
        self._inner = inner
        # `before` is the inner state from which the current piece can be read again, `used` its rows already taken.
        self._before: State = inner.start() if state is None else state["in"]
        self._skip = 0 if state is None else state["used"]
        self._pieces: deque[Piece] = deque()
        self._used = 0
        self._rows = 0

    def fill(self, rows: int, *, wait: bool = True) -> int:
        """Pull until `rows` elements are at hand; returns how many are (fewer: the end, or not ready)."""
        while self._rows < rows:
            if not wait and not self._inner.ready():
                break
            piece = self._inner.pull()
            if piece is None:
                break
            self._pieces.append(piece)
            self._rows += piece.elements.nrows
            if self._skip:
                skipped, self._skip = min(self._skip, self._rows), 0
                self.take(skipped)
        return self._rows

    def take(self, rows: int) -> list[Elements]:
        """The next `rows` elements, as slices of pieces."""
        taken: list[Elements] = []
        while rows and self._pieces:
            elements = self._pieces[0].elements
            count = min(rows, elements.nrows - self._used)
            taken.append(elements.slice(self._used, self._used + count))
            self._used += count
            self._rows -= count
            rows -= count
            if self._used == elements.nrows:
                self._before, self._used = self._pieces.popleft().after, 0
        return taken

    def sample(self) -> Block:
        """A block with the columns of the elements at hand."""
        elements = self._pieces[0].elements
        return batch_as_row(elements.batches[0]) if isinstance(elements, BatchList) else elements.sample()

    def state(self) -> State:
        """Small and exact: which piece, and how much of it ("to": how far its source had been read)."""
        if not self._used:
            return {"in": self._before, "used": 0}
        piece = self._pieces[0]
        before = self._before if piece.before is None else piece.before
        return {"in": before, "used": self._used, "to": progress(piece.after)}

    def start(self) -> State:
        """The state before the first element, None if the input has none."""
        return None if self._inner.start() is None else {"in": self._inner.start(), "used": 0}

    def ready(self) -> bool:
        return self._rows > 0 or self._inner.ready()

    def all_started(self) -> bool:
        return self._inner.all_started()

    def close(self) -> None:
        self._pieces.clear()
        self._inner.close()


class Batches(Stream):
    """Groups of batches, gathered by workers, in order."""

    def __init__(
        self, context: Context, inner: Stream, step: Batch, state: State, last: Normalise | None = None
    ) -> None:
        self._context, self._step, self._last = context, step, last
        self._cut = ElementCutter(inner, state)
        self._jobs = Lookahead(context, who="batches", urgency=_URGENCY)
        self._ended = False
        self._group = 0 if state is None else state.get("group", 0)

    def pull(self) -> Piece | None:
        self._fill()
        if not len(self._jobs):
            return None
        found, after = self._jobs.take()
        return Piece(found, after)

    def start(self) -> State:
        return self._cut.start()

    def ready(self) -> bool:
        return self._jobs.head_done or (not len(self._jobs) and not self._ended and self._cut.ready())

    def all_started(self) -> bool:
        return self._cut.all_started()

    def close(self) -> None:
        self._cut.close()

    def _fill(self) -> None:
        """Start gathering groups. A group is always of the same batches, however they become ready."""
        while not self._ended and self._jobs.room:
            # With a group under way, only what is there already is used: the consumer comes first.
            wait = not len(self._jobs)
            wanted = self._group_rows(wait)
            rows = self._cut.fill(wanted, wait=wait) if wanted else 0
            if rows < wanted and not wait:
                return
            self._ended = rows < wanted or (not wanted and wait)
            taking = min(rows, wanted)
            if self._ended and self._step.drop_last:
                taking -= taking % self._step.size
            if not taking:
                return
            schema, finish = self._cut.sample().schema, None
            if self._last is not None:
                finish = Finish((self._last,), schema)
                schema = finish.after
            arrays = self._context.slabs.arrays(schema, wanted, must=not len(self._jobs))
            if arrays is None:
                self._ended = False
                return
            open_nbytes = _open_nbytes(self._cut.sample(), arrays) * taking
            beside = 0 if finish is None else finish.nbytes(taking)
            lease = self._jobs.lease(open_nbytes + scratch_nbytes(taking, arrays) + beside)
            if lease is None:
                self._ended = False
                return
            elements = self._cut.take(taking)
            after = {**self._cut.state(), "group": self._group}
            made = rows_of(arrays, 0, taking)
            job = _gathering(self._context, elements, made, self._step, finish, (lease, open_nbytes))
            self._jobs.start([job], after)

    def _group_rows(self, wait: bool) -> int:
        """Rows of a group; the number of batches in it is found with the first row and then stays."""
        size = self._step.size
        if self._group == 0:
            if not self._cut.fill(1, wait=wait):
                return 0
            nbytes = max(1, row_nbytes(self._cut.sample()) * size)
            # Ranks that may be divided anew need a state after every single batch.
            self._group = 1 if self._context.sharded else max(1, min(_GROUP_MOST, GROUP_NBYTES // nbytes))
        return self._group * size


def row_nbytes(sample: Block) -> int:
    """What a row takes: by its schema, or as measured, since of columns of open width a schema can only guess."""
    return max(sample.schema.row_nbytes, sample.nbytes // max(1, sample.nrows))


def _open_nbytes(sample: Block, arrays: Mapping[str, np.ndarray]) -> int:
    """What a row takes in the columns that no buffer is made for: text, bytes, lists."""
    held = sum(column_nbytes(column) for name, column in sample.columns.items() if name not in arrays)
    return held // max(1, sample.nrows)


def _gathering(
    context: Context,
    elements: Sequence[Elements],
    arrays: dict[str, np.ndarray],
    step: Batch,
    finish: Finish | None,
    paid: tuple[Lease, int],
) -> Callable[[], BatchList]:
    lease, kept_nbytes = paid
    hold = Hold(lease)  # made now: a job that is dropped gives its bytes back too

    def run() -> BatchList:
        batches = gather(elements, arrays, step, finish, context.memory)
        lease.resize(kept_nbytes)  # the scratch is gone
        return BatchList(batches, hold, _rows_of_all(batches[0], arrays))

    return run


def gather(
    elements: Sequence[Elements],
    arrays: dict[str, np.ndarray],
    step: Batch,
    finish: Finish | None = None,
    buffers: Buffers = NEW_MEMORY,
) -> list[Block]:
    """Runs in a worker: all rows into the arrays, finished there, then cut into batches."""
    parts = [_as_rows(e) for e in elements]
    first = parts[0].sample()
    rooms = arrays if finish is None else finish.rooms(arrays, buffers)
    fixed = {name: array for name, array in rooms.items() if _agrees(name, array, parts)}
    at = 0
    for part in parts:
        part.write(rows_of(fixed, at, at + part.nrows))
        at += part.nrows
    loose = [name for name in first.columns if name not in fixed]
    blocks = [part.block() for part in parts] if loose else []
    rest: dict[str, Column] = {name: concat_columns([b.columns[name] for b in blocks]) for name in loose}
    if finish is not None:
        fixed, rest = finish.gathered(fixed, arrays, rest, buffers)
    return [
        Block(
            {
                name: fixed[name][start : start + step.size]
                if name in fixed
                else dense(name, rest[name][start : start + step.size], step.pad, blocks)
                for name in first.columns
            },
            first.tree,
        )
        for start in range(0, at, step.size)
    ]


def _rows_of_all(first: Block, arrays: Mapping[str, np.ndarray]) -> Block | None:
    """The rows of all batches as one block, if all their columns are parts of the arrays that were made for them."""
    if not all(name in arrays and _begins(column, arrays[name]) for name, column in first.columns.items()):
        return None
    return Block({name: arrays[name] for name in first.columns}, first.tree)


def _begins(column: Column, array: np.ndarray) -> bool:
    """Whether a column of the first batch is where the array begins."""
    return isinstance(column, np.ndarray) and column.dtype == array.dtype and column.ctypes.data == array.ctypes.data


def _as_rows(elements: Elements) -> Held | Window:
    if not isinstance(elements, BatchList):
        return elements
    return Held(Block.concat([batch_as_row(b) for b in elements.batches]), None)


def _agrees(name: str, array: np.ndarray, parts: Sequence[Held | Window]) -> bool:
    for part in parts:
        column = part.sample().columns.get(name)
        if not isinstance(column, np.ndarray) or column.shape[1:] != array.shape[1:] or column.dtype != array.dtype:
            return False
    return True


def dense(name: str, column: Column, pad: Any, blocks: Sequence[Block]) -> np.ndarray:
    """Rows that need not have one shape as a batch: one array if they agree or may be padded, else an error."""
    values = to_numpy(column)
    if values.dtype != OBJECT or not isinstance(next((v for v in values if v is not None), None), np.ndarray):
        return values
    gone = [row for row, v in enumerate(values) if v is None]
    if gone and (pad is None or pad is False):
        where = f" ({blocks[0].where(0)} and what follows)" if blocks else ""
        raise RaggedBatch(
            f"Column {name!r} has a missing list in row {gone[0]} of one batch{where}. Leave such rows out with "
            f".filter(lambda row: row[{name!r}] is not None), or pad them: batch(n, pad=0)."
        )
    if gone:  # nothing of it is there, as of an empty one
        values = _with_empty(values, gone)
    shapes = {v.shape for v in values}
    if len(shapes) == 1:
        return np.stack(list(values))
    if pad is None or pad is False:
        raise RaggedBatch(_ragged_message(name, values, blocks))
    return _padded(name, values, pad)


def _with_empty(values: np.ndarray, gone: Sequence[int]) -> np.ndarray:
    like = next(v for v in values if v is not None)
    values = values.copy()
    for row in gone:
        values[row] = np.empty((0, *like.shape[1:]), like.dtype)
    return values


def _ragged_message(name: str, values: np.ndarray, blocks: Sequence[Block]) -> str:
    odd = next(i for i, v in enumerate(values) if v.shape != values[0].shape)
    where = f" ({blocks[0].where(0)} and what follows)" if blocks else ""
    return (
        f"Column {name!r} has rows of shape {values[0].shape} and {values[odd].shape} in one batch{where}. "
        f"Give them one shape (for images: size=), or pad them: batch(n, pad=0)."
    )


def _padded(name: str, values: np.ndarray, pad: Any) -> np.ndarray:
    fill = pad.get(name, 0) if isinstance(pad, dict) else (0 if pad is True else pad)
    if len({v.ndim for v in values}) > 1:
        raise RaggedBatch(f"Column {name!r} has rows of {sorted({v.ndim for v in values})} dimensions in one batch.")
    shape = tuple(max(v.shape[axis] for v in values) for axis in range(values[0].ndim))
    out = np.full((len(values), *shape), fill, dtype=np.result_type(*{v.dtype for v in values}))
    for row, value in enumerate(values):
        corner: Any = (row, *(slice(0, n) for n in value.shape))
        out[corner] = value
    return out
