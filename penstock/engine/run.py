"""One pass over a dataset: a driver thread pulls the streams, the consumer takes what is ready.

Covers: starting, handing over, stopping cleanly, measuring how long the consumer waited, positions.
Does not cover: what the streams do (build.py), how much memory there is (pipe.py).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from penstock.core.block import Block, column_value, to_numpy
from penstock.core.errors import Stopped
from penstock.core.tree import unflatten
from penstock.engine.buffers.leased_rows import BatchList, Elements
from penstock.engine.streams.stream import Context, Piece, State, Stream
from penstock.order.position import progress

READY_LEAST, READY_MOST = 2, 8
"""Pieces kept ready for the consumer: as few as do, more when it had to wait although the data side had been ahead."""

_ROWS_AT_A_TIME = 256
_NO_ROWS = Block({}, ())


class Run:
    """The threads' side of a pass. It never refers to the iterator, so that dropping the iterator ends the run."""

    def __init__(self, context: Context, build: Callable[[], Stream], on_stop: Callable[[], None]) -> None:
        self.context = context
        self.waited_s = 0.0
        self.started_s = 0.0
        self.rows = 0
        self.start_state: State = None
        self._build, self._on_stop = build, on_stop
        self._ready: deque[Piece | BaseException | None] = deque()
        self._change = threading.Condition()
        self._ready_most = READY_LEAST
        self._was_full = False
        self._stopping = False
        self._failure: BaseException | None = None
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to work ahead."""
        self.started_s = time.perf_counter()
        self._thread = threading.Thread(target=self._drive, name="penstock-driver", daemon=True)
        self._thread.start()

    def take(self) -> Piece | None:
        """The next piece, waited for; None at the end. Errors of the data side are raised here, in order."""
        self.context.look()
        with self._change:
            if not self._ready:
                self._wait()
            if self._failure is not None:
                raise self._failure
            if self._stopping and not self._ready:
                raise Stopped("The stream is closed.")
            found = self._ready[0]
            if isinstance(found, Piece):
                self._ready.popleft()
                self._change.notify_all()
                self.rows += _rows(found.elements)
                return found
        if found is None:
            return None
        raise found

    def _wait(self) -> None:
        began = time.perf_counter()
        while not self._ready and not self._stopping and self._failure is None:
            self._change.wait()
        self.waited_s += time.perf_counter() - began

    def check_process(self) -> None:
        """Refuse to serve a forked child: what is at hand there is served by the parent too."""
        if os.getpid() != self._pid:
            raise Stopped("This iterator was made before a fork; call iter() on the dataset again in the child.")

    def fail(self, error: BaseException) -> None:
        """Stop working and raise this where the next piece is asked for. What is ready is let go: memory is short."""
        with self._change:
            self._failure = error
            self._ready.clear()
            self._change.notify_all()
        self.context.pool.close(wait=False)

    def stop(self) -> None:
        """End threads and give everything back. Safe to call twice, after a fork and at interpreter exit."""
        if os.getpid() != self._pid:
            return  # the threads live in the parent
        with self._change:
            if self._stopping:
                return
            self._stopping = True
            self._change.notify_all()
        try:
            self._end()
        finally:  # a second Ctrl-C while threads are waited for must not leave the watchdog behind
            self._on_stop()
        self.context.events.emit(
            "run.ended",
            "data",
            rows=self.rows,
            wall_s=time.perf_counter() - self.started_s,
            waited_s=self.waited_s,
            threads=self.context.pool.size,
        )

    def _end(self) -> None:
        if self.context.places is not None:
            self.context.places.close()
        self.context.pool.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._ready.clear()
        self.context.slabs.close()
        if self.context.buffers is not None:
            self.context.buffers.close()
        if self.context.arrays is not None:
            self.context.arrays.close()

    def _drive(self) -> None:
        stream: Stream | None = None
        last: BaseException | None = None
        try:
            stream = self._build()
            self.start_state = stream.start()
            while (piece := stream.pull()) is not None:
                if not self._hand_over(piece):
                    return
                del piece
        except Stopped as error:
            if self._stopping:
                return
            last = error
        except BaseException as error:
            last = error
        finally:
            if stream is not None:
                stream.close()
        with self._change:
            self._ready.append(last)
            self._change.notify_all()

    def _hand_over(self, piece: Piece) -> bool:
        with self._change:
            if not self._ready and self._was_full and self._ready_most < READY_MOST:
                self._ready_most += 1
                self._was_full = False
            while len(self._ready) >= self._ready_most and not self._stopping and self._failure is None:
                self._was_full = True
                self._change.wait()
            if self._stopping or self._failure is not None:
                return False
            self._ready.append(piece)
            self._change.notify_all()
        self.context.tick(self.waited_s)
        return True


def _rows(elements: Elements) -> int:
    return sum(b.nrows for b in elements.batches) if isinstance(elements, BatchList) else elements.nrows


class StreamIterator(Iterator[Any]):
    """What `iter(ds)` returns: elements in order, with a position after each."""

    def __init__(self, run: Run, state: State, describe: Callable[[State, int], dict[str, Any]], done: int) -> None:
        self._run = run
        self._describe = describe
        self._before: State = None if state is None else state["in"]
        self._used = 0 if state is None else state["used"]
        self._reach: int = 0 if state is None else state.get("to", 0)
        self._piece: Piece | None = None
        self._first, self._rows = 0, _NO_ROWS
        self._done = done
        self._ended = False
        self._finalizer = weakref.finalize(self, run.stop)
        self._finalizer.atexit = True
        run.start()

    def __iter__(self) -> StreamIterator:
        return self

    def __next__(self) -> Any:
        element = self._element(self._elements(), self._used)
        self._used += 1
        self._done += 1
        return element

    def next_together(self) -> tuple[Any, int] | None:
        """Several batches that are ready, as the rows of all and their number; None if the next one stands alone.

        Small batches are made many at a time, so a consumer that pays for each hand-over can take them so.
        """
        elements = self._elements()
        found = elements.together(self._used) if isinstance(elements, BatchList) else None
        if found is None:
            return None
        rows, count = found
        self._used += count
        self._done += count
        return shown_batch(rows), count

    def _elements(self) -> Elements:
        """The piece in which the next element is, waited for if there is none."""
        self._run.check_process()
        while self._piece is None or self._used >= self._piece.elements.nrows:
            if self._ended:
                raise StopIteration
            if self._piece is not None:
                self._before, self._used = self._piece.after, 0
                self._piece = None  # its leases end before the next piece is waited for
            self._pull()
        return self._piece.elements

    def _element(self, elements: Elements, index: int) -> Any:
        """One element as the user sees it; rows of a window are gathered some at a time."""
        if isinstance(elements, BatchList):
            return shown_batch(elements.batches[index])
        if not self._first <= index < self._first + self._rows.nrows:
            self._first, self._rows = index, elements.slice(index, index + _ROWS_AT_A_TIME).block()
        row, block = index - self._first, self._rows
        return unflatten(block.tree, lambda name: column_value(block.columns[name], row))

    def _pull(self) -> None:
        self._first, self._rows = 0, _NO_ROWS
        try:
            self._piece = self._run.take()
            self._reach = 0 if self._piece is None else progress(self._piece.after)
            if self._piece is not None and self._piece.before is not None:
                self._before = self._piece.before
            elif self._before is None:
                self._before = self._run.start_state
        except KeyboardInterrupt:
            raise  # nothing was taken: the position still holds and the loop may go on
        except BaseException:
            self._ended = True
            self.close()
            raise
        if self._piece is None:
            self._ended = True
            self.close()
            raise StopIteration

    @property
    def position(self) -> dict[str, Any]:
        """Where the stream stands: give it to `ds.resume` to continue with the next element."""
        if self._piece is not None and self._used >= self._piece.elements.nrows:
            return self._describe({"in": self._piece.after, "used": 0}, self._done)
        now: dict[str, Any] = {"in": self._before, "used": self._used}
        if self._used:
            now["to"] = self._reach
        return self._describe(now, self._done)

    @property
    def waited_s(self) -> float:
        """How long the consumer has waited for data so far."""
        return self._run.waited_s

    def close(self) -> None:
        """Stop now: threads end, memory goes back. Called by itself when the iterator is dropped."""
        self._piece, self._rows = None, _NO_ROWS
        self._finalizer()

    def __enter__(self) -> StreamIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shown_batch(batch: Block) -> Any:
    """A batch as the user sees it: arrays in the tree of the dataset."""
    return unflatten(batch.tree, lambda name: to_numpy(batch.columns[name]))
