"""Leases are exact, fair, never lost, and safe to return from a garbage collection."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.core.errors import InvalidInput, Stopped, TooLarge
from penstock.core.events import Event, events
from penstock.memory.budget import Budget, Lease, live_budgets

PATIENCE_S = 30


@pytest.fixture
def told() -> Iterator[list[Event]]:
    heard: list[Event] = []
    remove = events.listen(heard.append)
    yield heard
    remove()


def start(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def finish(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a thread still waits for bytes that are free"


def queue_up(budget: Budget, nbytes: int, who: str, granted: list[str]) -> threading.Thread:
    """Start a thread that leases, notes its name and returns the lease; come back when it is in the queue."""
    before = budget.waiting

    def work() -> None:
        with budget.lease(nbytes, who=who):
            granted.append(who)

    thread = start(work)
    pause = threading.Event()
    while budget.waiting == before:
        pause.wait(0.001)
    return thread


def test_bytes_are_counted_by_holder_and_come_back() -> None:
    budget = Budget(100)
    with budget.lease(30, who="a") as first, budget.lease(50, who="b"):
        assert (budget.used, budget.free) == (80, 20)
        assert budget.holders() == {"a": 30, "b": 50}
        first.resize(10)
        assert (budget.used, first.nbytes) == (60, 10)
    assert (budget.used, budget.peak, budget.holders()) == (0, 80, {})
    assert first.closed
    assert first.nbytes == 0


def test_bytes_being_read_into_are_told_apart() -> None:
    budget = Budget(100)
    with budget.lease(30, who="a") as first, budget.lease(50, who="b") as second:
        with first.filling(), second.filling():
            assert (budget.used, budget.filling) == (80, 80)
        with pytest.raises(OSError, match="cut"), first.filling():
            raise OSError("cut")
        assert (budget.used, budget.filling) == (80, 0)
        with second.filling():
            second.close()
    assert (budget.used, budget.filling) == (0, 0)


def test_more_than_everything_is_refused_with_the_numbers() -> None:
    budget = Budget(100)
    for ask in (budget.lease, budget.try_lease):
        with pytest.raises(TooLarge, match="reader needs 101 B; the data budget is 100 B") as caught:
            ask(101, who="reader")
        assert (caught.value.nbytes, caught.value.limit) == (101, 100)
    assert budget.used == 0


@pytest.mark.parametrize("ask", ["lease", "try_lease", "force"])
def test_negative_sizes_are_refused(ask: str) -> None:
    budget = Budget(100)
    with pytest.raises(InvalidInput):
        getattr(budget, ask)(-1, who="a")
    with pytest.raises(InvalidInput):
        budget.resize(-1)
    with pytest.raises(InvalidInput):
        Budget(-1)
    with budget.lease(1, who="a") as lease, pytest.raises(InvalidInput):
        lease.resize(-1)
    assert budget.used == 0


def test_a_second_return_is_an_error_and_does_not_count() -> None:
    budget = Budget(100)
    lease = budget.lease(10, who="a")
    lease.close()
    with pytest.raises(RuntimeError, match="returned twice"):
        lease.close()
    with pytest.raises(RuntimeError, match="closed"):
        lease.resize(5)
    assert budget.used == 0


def test_waiters_are_served_in_the_order_they_came() -> None:
    budget = Budget(10)
    held, granted = budget.lease(10, who="first"), []
    names = [str(n) for n in range(12)]
    threads = [queue_up(budget, 10, name, granted) for name in names]
    held.close()
    finish(*threads)
    assert granted == names


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    budget = Budget(10)
    held, granted = budget.lease(5, who="first"), []
    large = queue_up(budget, 8, "large", granted)
    assert budget.try_lease(1, who="thief") is None
    small = queue_up(budget, 1, "small", granted)
    assert granted == []
    held.close()
    finish(large, small)
    assert sorted(granted) == ["large", "small"]
    assert budget.try_lease(1, who="later") is not None


def test_stop_ends_the_wait_and_frees_the_place() -> None:
    budget, stopping, caught = Budget(10), threading.Event(), []
    held = budget.lease(5, who="first")

    def work() -> None:
        try:
            budget.lease(10, who="stopped", stop=stopping.is_set)
        except Stopped as error:
            caught.append(error)

    waiter = start(work)
    pause = threading.Event()
    while not budget.waiting:
        pause.wait(0.001)
    granted: list[str] = []
    behind = queue_up(budget, 5, "behind", granted)
    stopping.set()
    finish(waiter, behind)
    assert len(caught) == 1
    assert granted == ["behind"]
    held.close()
    assert budget.used == 0


def test_an_interrupt_while_waiting_leaves_nothing_behind() -> None:
    budget = Budget(10)
    held = budget.lease(10, who="first")

    def interrupt() -> bool:
        held.close()  # the lease is granted in the very moment its owner goes away
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        budget.lease(10, who="interrupted", stop=interrupt)
    assert (budget.used, budget.waiting) == (0, 0)


def test_force_overdraws_and_tells(told: list[Event]) -> None:
    budget = Budget(10, name="tight")
    fits = budget.force(10, who="fits")
    assert told == []
    over = budget.force(5, who="over")
    assert (budget.used, budget.free) == (15, 0)
    assert [(e.kind, e.who, e.values["used"]) for e in told] == [("budget.overdraft", "over", 15)]
    fits.close()
    assert budget.try_lease(6, who="x") is None
    over.resize(11)
    assert told[-1].values == {"budget": "tight", "nbytes": 6, "used": 11, "total": 10}
    over.close()
    assert budget.used == 0


def test_growing_wakes_waiters() -> None:
    budget = Budget(10)
    held, granted = budget.lease(10, who="first"), []
    waiter = queue_up(budget, 5, "waiter", granted)
    budget.resize(15)
    finish(waiter)
    assert granted == ["waiter"]
    held.close()


def test_shrinking_below_a_waiter_slows_but_does_not_kill(told: list[Event]) -> None:
    budget = Budget(10)
    held, other, granted = budget.lease(6, who="a"), budget.lease(4, who="b"), []
    waiter = queue_up(budget, 8, "waiter", granted)
    budget.resize(5)
    held.close()
    assert budget.waiting == 1  # 4 are still out
    with pytest.raises(TooLarge):
        budget.lease(6, who="late")
    other.close()
    finish(waiter)
    assert granted == ["waiter"]
    assert budget.used == 0
    assert [e.who for e in told if e.kind == "budget.overdraft"] == ["waiter"]


def test_a_forgotten_lease_comes_back_and_is_told(told: list[Event]) -> None:
    budget = Budget(10, name="leaky")
    lease = budget.lease(7, who="careless")
    del lease
    gc.collect()
    assert budget.used == 0
    assert [(e.kind, e.who, dict(e.values)) for e in told] == [
        ("budget.leaked", "careless", {"budget": "leaky", "nbytes": 7})
    ]


def test_a_lease_may_return_while_its_thread_holds_the_lock() -> None:
    budget, granted = Budget(10), []
    leases = [budget.lease(5, who="a"), budget.lease(5, who="b")]
    waiter = queue_up(budget, 10, "waiter", granted)

    def collect_inside() -> None:
        with budget._lock:  # what a garbage collection in the critical section looks like
            leases.pop().close()
            leases.pop()
        assert budget.holders().keys() <= {"waiter"}

    finish(start(collect_inside), waiter)
    assert granted == ["waiter"]
    assert budget.used == 0


class Knot:
    """Garbage that only the collector finds, with a lease in it."""

    def __init__(self, lease: Lease) -> None:
        self.lease, self.me = lease, self

    def __del__(self) -> None:
        self.lease.close()


@pytest.mark.filterwarnings("error")
def test_a_lease_collected_with_an_owner_who_returns_it_is_no_leak(told: list[Event]) -> None:
    budget = Budget(1000)
    for _ in range(20):
        Knot(budget.lease(7, who="knot"))
    gc.collect()
    assert budget.used == 0
    assert told == []


@pytest.mark.filterwarnings("error")
def test_collections_at_every_allocation_neither_hang_nor_lose_bytes() -> None:
    budget = Budget(1000)

    def work() -> None:
        for n in range(300):
            Knot(budget.force(n % 7, who="knot"))
            with budget.lease(5, who="plain"):
                budget.holders()
            budget.resize(1000 + n % 3)

    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        finish(*[start(work) for _ in range(4)])
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert (budget.used, budget.holders()) == (0, {})


def test_no_wake_up_is_lost_under_contention() -> None:
    budget, guard = Budget(100), threading.Lock()
    held = most = 0

    def work(seed: int) -> None:
        nonlocal held, most
        dice = random.Random(seed)
        for _ in range(400):
            nbytes = dice.choice((1, 10, 40, 90, 100))
            with budget.lease(nbytes, who=str(seed), stop=None if seed % 2 else lambda: False):
                with guard:
                    held += nbytes
                    most = max(most, held)
                with guard:
                    held -= nbytes

    finish(*[start(lambda seed=seed: work(seed)) for seed in range(8)])
    assert most <= 100
    assert (budget.used, budget.waiting, budget.holders()) == (0, 0, {})
    assert budget.peak <= 100


def test_a_forked_child_can_lease_though_the_lock_was_held() -> None:
    budget = Budget(10)
    with budget._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(PATIENCE_S)
            with budget.lease(10, who="child"):
                os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert budget.used == 0


def test_live_budgets_are_known_and_dead_ones_are_not() -> None:
    budget = Budget(10, name="registered")
    assert budget in live_budgets()
    del budget
    gc.collect()
    assert "registered" not in {b.name for b in live_budgets()}


class BudgetAgainstAModel(RuleBasedStateMachine):
    """Whatever is done in whatever order, the sums are those of the leases that are out."""

    def __init__(self) -> None:
        super().__init__()
        self.budget, self.out, self.most = Budget(100), [], 0

    def held(self) -> int:
        return sum(lease.nbytes for lease in self.out)

    @rule(nbytes=st.integers(0, 120), who=st.sampled_from("abc"))
    def try_lease(self, nbytes: int, who: str) -> None:
        if nbytes > self.budget.total:
            with pytest.raises(TooLarge):
                self.budget.try_lease(nbytes, who=who)
            return
        lease = self.budget.try_lease(nbytes, who=who)
        assert (lease is not None) == (self.held() + nbytes <= self.budget.total)
        if lease is not None:
            self.out.append(lease)

    @rule(nbytes=st.integers(0, 300), who=st.sampled_from("abc"))
    def force(self, nbytes: int, who: str) -> None:
        self.out.append(self.budget.force(nbytes, who=who))

    @precondition(lambda self: self.out)
    @rule(data=st.data(), nbytes=st.none() | st.integers(0, 200))
    def change(self, data: st.DataObject, nbytes: int | None) -> None:
        lease = data.draw(st.sampled_from(self.out))
        if nbytes is None:
            self.out.remove(lease)
            lease.close()
        else:
            lease.resize(nbytes)

    @rule(total=st.integers(0, 200))
    def resize(self, total: int) -> None:
        self.budget.resize(total)
        assert self.budget.total == total

    @invariant()
    def sums_agree(self) -> None:
        by_holder: dict[str, int] = {}
        for lease in self.out:
            by_holder[lease.who] = by_holder.get(lease.who, 0) + lease.nbytes
        self.most = max(self.most, self.held())
        assert self.budget.used == self.held()
        assert self.budget.peak == self.most
        assert self.budget.free == max(0, self.budget.total - self.held())
        assert self.budget.holders() == {who: nbytes for who, nbytes in by_holder.items() if nbytes}


TestBudgetAgainstAModel = BudgetAgainstAModel.TestCase
TestBudgetAgainstAModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
