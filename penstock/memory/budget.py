"""Byte credits: memory is leased before it is filled, never counted afterwards.

Covers: granting, waiting for, resizing and returning leases; who holds how much.
Does not cover: who runs next (engine/), the budget's size (watchdog.py), measured memory (meter.py).

A lease may be returned by a garbage collection that interrupts this very thread inside the budget's own critical
section. So a return never waits for the lock: it is noted in a deque, and the holder of the lock books the notes.
Each holder looks at the deque once more after releasing the lock, so that no note is left and no waiter sleeps
through one.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from penstock.core.errors import InvalidInput, Stopped, TooLarge
from penstock.core.events import events
from penstock.core.sizes import size

STOP_CHECK_S = 0.05
"""How often a waiting lease asks whether it should still wait."""


PROCESSES = "worker processes"
"""The name under which they hold their leases."""


class Lease:
    """Bytes that one holder may fill; give them back with `close()` or by leaving the `with` block."""

    __slots__ = ("__weakref__", "_budget", "_closed", "_collected", "_nbytes", "_who")

    def __init__(self, budget: Budget, nbytes: int, who: str) -> None:
        self._budget, self._nbytes, self._who = budget, nbytes, who
        self._closed = True  # the budget opens it in the same breath as it books the bytes
        self._collected = False

    @property
    def nbytes(self) -> int:
        """The bytes held; 0 once closed."""
        return 0 if self._closed else self._nbytes

    @property
    def who(self) -> str:
        """The holder's name."""
        return self._who

    @property
    def closed(self) -> bool:
        """Whether the bytes went back."""
        return self._closed

    @property
    def budget(self) -> Budget:
        """The budget that the bytes came from."""
        return self._budget

    def resize(self, nbytes: int) -> None:
        """Hold `nbytes` from now on; never blocks, and may overdraw the budget."""
        if self._closed:
            raise RuntimeError(f"{self._who}: a closed lease cannot be resized")
        if nbytes < 0:
            raise InvalidInput(f"{self._who}: a lease cannot hold {nbytes} bytes")
        grown = nbytes - self._nbytes
        self._nbytes = nbytes
        self._budget._book(self._who, grown)
        if grown > 0:
            self._budget._tell_overdraft(self._who, grown)

    @contextmanager
    def filling(self) -> Iterator[Self]:
        """Mark the bytes as not there yet, while they are being read into: the watchdog must not look for them.

        Without it a lease counts as filled from the start, which hides as much of the model from the watchdog.
        """
        key = id(self)
        self._budget._filling[key] = self._nbytes
        try:
            yield self
        finally:
            self._budget._filling.pop(key, None)

    def close(self) -> None:
        """Give the bytes back; safe from any thread and from a garbage collection. Twice is an error."""
        if not self._closed:
            self._closed = True
            self._budget._book(self._who, -self._nbytes)
        elif self._collected:  # with its owner, as one knot of garbage: the owner's own __del__ came second
            self._collected = False
            with suppress(ValueError, IndexError):  # reported already
                self._budget._leaked.remove((self._who, self._nbytes))
        else:
            raise RuntimeError(f"{self._who}: the lease of {size(self._nbytes)} was returned twice")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed:
            self.close()

    def __del__(self) -> None:
        if not self._closed:
            self._closed = self._collected = True
            self._budget._leaked.append((self._who, self._nbytes))
            self._budget._book(self._who, -self._nbytes)

    def __repr__(self) -> str:
        return f"Lease({self._who!r}, {'closed' if self._closed else size(self._nbytes)})"


class _Ticket:
    """A place in the queue; `wake` is locked until the lease is granted."""

    __slots__ = ("lease", "wake")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.wake = threading.Lock()
        self.wake.acquire()


class Budget:
    """A number of bytes that many holders share, first come first served."""

    def __init__(self, total: int, *, name: str = "data") -> None:
        if total < 0:
            raise InvalidInput(f"the {name} budget cannot be {total} bytes")
        self.name = name
        self._total = total
        self._used = self._peak = 0
        self._holders: dict[str, int] = {}
        self._queue: deque[_Ticket] = deque()
        self._notes: deque[tuple[str, int]] = deque()  # changes that are not booked yet
        self._leaked: deque[tuple[str, int]] = deque()
        self._filling: dict[int, int] = {}  # by lease; single dict operations need no lock
        self._lock = threading.Lock()
        _budgets.add(self)

    @property
    def total(self) -> int:
        """The bytes there are."""
        return self._total

    @property
    def used(self) -> int:
        """The bytes out on lease; may exceed `total` after `force` or a shrink."""
        self._tidy()
        return self._used

    @property
    def free(self) -> int:
        """The bytes left, never negative."""
        return max(0, self._total - self.used)

    @property
    def room(self) -> int:
        """The bytes left as last booked: near enough, and safe inside a garbage collection, where `free` is not."""
        return self._total - self._used

    @property
    def peak(self) -> int:
        """The most bytes that were ever out at once."""
        self._tidy()
        return self._peak

    @property
    def filling(self) -> int:
        """The bytes out on lease that are still being read into."""
        return sum(self._filling.copy().values())

    @property
    def waiting(self) -> int:
        """How many callers queue for bytes."""
        return len(self._queue)

    def lease(self, nbytes: int, *, who: str, stop: Callable[[], bool] | None = None) -> Lease:
        """Block until `nbytes` are free, first come first served.

        Raises TooLarge if they never can be, and Stopped once `stop()` is true. A caller that already waits when the
        budget shrinks below its request is served as soon as nothing else is out: a shrink slows, it does not kill.
        """
        lease = self.try_lease(nbytes, who=who)
        if lease is not None:
            return lease
        ticket = _Ticket(Lease(self, nbytes, who))
        try:
            with self._lock:
                self._check_size(nbytes, who)
                self._queue.append(ticket)
                self._settle()
            self._tidy()
            self._wait(ticket, stop)
        except BaseException:
            self._withdraw(ticket)
            raise
        if nbytes > self._total:
            self._tell_overdraft(who, nbytes)
        return ticket.lease

    def try_lease(self, nbytes: int, *, who: str) -> Lease | None:
        """Lease without waiting; None if the bytes are not free or others queue for them."""
        lease = Lease(self, nbytes, who)
        with self._lock:
            if self._notes:
                self._settle()
            fits = not self._queue and self._used + nbytes <= self._total and nbytes >= 0
            if fits:
                self._take(lease)
            else:
                self._check_size(nbytes, who)
        if self._notes or self._leaked:
            self._tidy()
        return lease if fits else None

    def force(self, nbytes: int, *, who: str) -> Lease:
        """Lease at once, whatever is free: the guard against no progress. An overdraft is an event."""
        lease = Lease(self, nbytes, who)
        if nbytes < 0:
            raise InvalidInput(f"{who}: a lease cannot hold {nbytes} bytes")
        with self._lock:
            self._settle()
            self._take(lease)
        self._tidy()
        self._tell_overdraft(who, nbytes)
        return lease

    def resize(self, total: int) -> None:
        """Set the bytes there are; waiters that now fit wake, leases that no longer fit stay until they come back."""
        if total < 0:
            raise InvalidInput(f"the {self.name} budget cannot be {total} bytes")
        with self._lock:
            self._total = total
            self._settle()
        self._tidy()

    def holders(self) -> dict[str, int]:
        """Bytes out on lease by holder's name."""
        self._tidy()
        with self._lock:
            self._settle()
            held = dict(self._holders)
        self._tidy()
        return held

    def __repr__(self) -> str:
        return f"Budget({self.name!r}, {size(self._used)} of {size(self._total)})"

    def _check_size(self, nbytes: int, who: str) -> None:
        """Refuse what can never be granted."""
        if nbytes < 0:
            raise InvalidInput(f"{who}: a lease cannot hold {nbytes} bytes")
        if nbytes > self._total:
            raise TooLarge(who=who, nbytes=nbytes, limit=self._total)

    def _wait(self, ticket: _Ticket, stop: Callable[[], bool] | None) -> None:
        """Sleep until the ticket is served."""
        if stop is None:
            ticket.wake.acquire()
            return
        while not ticket.wake.acquire(timeout=STOP_CHECK_S):
            if stop():
                raise Stopped(f"{ticket.lease.who} stopped waiting for memory: the stream was closed")

    def _withdraw(self, ticket: _Ticket) -> None:
        """Leave the queue, or give back what was granted meanwhile."""
        with self._lock:
            if ticket in self._queue:
                self._queue.remove(ticket)
                self._settle()
        if not ticket.lease.closed:
            ticket.lease.close()
        self._tidy()

    def _book(self, who: str, change: int) -> None:
        """Note a change; book it now unless a holder of the lock, perhaps this thread, will."""
        self._notes.append((who, change))
        while self._notes and not self._lock.locked():
            with self._lock:
                self._settle()

    def _tidy(self) -> None:
        """Book what was noted while the lock was held, and report leaks.

        Leaks are reported here, not where they are found: that is inside a garbage collection, where a listener's own
        lock may be held.
        """
        while self._notes and not self._lock.locked():
            with self._lock:
                self._settle()
        while self._leaked:
            try:
                who, nbytes = self._leaked.popleft()
            except IndexError:  # another thread reports it
                return
            events.emit("budget.leaked", who, budget=self.name, nbytes=nbytes)

    def _tell_overdraft(self, who: str, nbytes: int) -> None:
        """Emit an event if the budget is overdrawn after `who` took `nbytes`."""
        used, total = self._used, self._total
        if used > total:
            events.emit("budget.overdraft", who, budget=self.name, nbytes=nbytes, used=used, total=total)

    def _settle(self) -> None:
        """Book the notes and serve the queue; the caller holds the lock."""
        while self._notes:
            who, change = self._notes.popleft()
            self._count(who, change)
        while self._queue:
            head = self._queue[0]
            if self._used and self._used + head.lease._nbytes > self._total:
                return
            self._queue.popleft()
            self._take(head.lease)
            head.wake.release()

    def _take(self, lease: Lease) -> None:
        """Book a lease's bytes and open it; the caller holds the lock."""
        self._count(lease._who, lease._nbytes)
        lease._closed = False

    def _count(self, who: str, change: int) -> None:
        """Add to the sums; the caller holds the lock."""
        self._used += change
        self._peak = max(self._peak, self._used)
        held = self._holders.get(who, 0) + change
        if held:
            self._holders[who] = held
        else:
            self._holders.pop(who, None)


_budgets: weakref.WeakSet[Budget] = weakref.WeakSet()


def live_budgets() -> tuple[Budget, ...]:
    """Every budget of this process that is still in use, by name."""
    return tuple(sorted(_budgets, key=lambda budget: budget.name))


def _after_fork() -> None:
    """Make budgets usable in a forked child, where the threads that held or awaited the lock are gone."""
    for budget in tuple(_budgets):
        budget._lock = threading.Lock()
        budget._queue.clear()


os.register_at_fork(after_in_child=_after_fork)
