"""One worker process: what goes in comes out, errors and skips included."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.core.block import Block
from penstock.core.errors import DataError, InvalidInput, MapError, Stopped
from penstock.core.events import Events
from penstock.core.source import OnError
from penstock.engine.streams.transform import Fused
from penstock.engine.workers.placement import Places
from penstock.engine.workers.processes import PackedFunctions, Processes, UnloadableError
from penstock.engine.workers.shared_memory import Store, open_columns, pack, shut_columns, unpack
from penstock.engine.workers.threads import WorkClock
from penstock.memory.budget import Budget
from penstock.plan.steps import Filter, Map, MapBatches


@pytest.fixture(scope="module")
def budget():
    return Budget(1_000_000_000, name="test processes")


@pytest.fixture(scope="module")
def processes(budget):
    made = Processes(budget, 1)
    made.start(must=True)
    made.wait_ready()
    yield made
    made.close()
    assert budget.used == 0


_numbers = iter(range(10_000))


def _both(processes: Processes, block: Block, *steps, whole: bool = False) -> tuple[Block, Block]:
    fused = Fused(steps)
    there, _ = processes.run(PackedFunctions(next(_numbers), fused), block, (7, 3), whole=whole)
    here = fused.on_batch(block, (7, 3)) if whole else fused(block, (7, 3))
    return here, there


def _numbered(rows: int) -> Block:
    return Block({"value": np.arange(rows)}, "value", lambda i: f"number {i}")


def _assert_same(here: Block, there: Block) -> None:
    assert here.tree == there.tree
    assert here.columns.keys() == there.columns.keys()
    for name, column in here.columns.items():
        other = there.columns[name]
        assert type(column) is type(other)
        if isinstance(column, pa.Array):
            assert column.equals(other)
        else:
            assert column.dtype == other.dtype
            for value, other_value in zip(column, other, strict=True):
                np.testing.assert_array_equal(value, other_value)


# How bytes travel.


@given(array=hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=1, max_dims=3, min_side=0)))
@settings(max_examples=60, deadline=None)
def test_arrays_of_any_dtype_come_back_equal(array):
    store = Store.make()
    try:
        sizes = store.write(pack(open_columns({"a": array})))
        back = shut_columns(unpack(store.read(sizes)))["a"]
    finally:
        store.close()
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == np.ascontiguousarray(array).tobytes()


@given(st.lists(st.one_of(st.none(), st.text(max_size=5), st.integers(), st.just([0.5])), max_size=8))
@settings(max_examples=25, deadline=None)
def test_objects_come_back_equal(values):
    column = np.empty(len(values), dtype=object)
    column[:] = values
    back = shut_columns(unpack(pack(open_columns({"a": column}))))["a"]
    assert list(back) == values


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a", None, "ccc"]),
        pa.array([[1, 2], [], None]),
        pa.array([b"x", b"yy"]).slice(1),
        pa.array(["u", "v", "u"]).dictionary_encode(),
        pa.array([], pa.string()),
    ],
)
def test_arrow_arrays_come_back_equal(array):
    assert shut_columns(unpack(pack(open_columns({"a": array}))))["a"].equals(array)


def test_a_slice_of_a_large_arrow_array_travels_alone():
    array = pa.array(["x" * 1000] * 10_000).slice(5, 2)
    assert sum(b.nbytes for b in pack(open_columns({"a": array}))) < 20_000


def test_contiguous_arrays_are_not_copied_on_packing():
    array = np.arange(1000)
    assert any(np.shares_memory(part, array) for part in pack(open_columns({"a": array})))


def test_the_store_grows_and_can_be_freed():
    store = Store.make()
    try:
        for size in (10, 5_000_000, 20):
            data = np.random.default_rng(size).integers(0, 255, size).astype(np.uint8)
            np.testing.assert_array_equal(store.read(store.write([data]))[0], data)
        store.free()
        np.testing.assert_array_equal(store.read(store.write([data]))[0], data)
    finally:
        store.close()


# What the process does.


def test_maps_filters_and_blocks_give_the_same_as_here(processes):
    scale = 3
    block = _numbered(50)
    _assert_same(*_both(processes, block, Map(lambda x: (x * scale, str(x), np.arange(x % 3)))))
    _assert_same(*_both(processes, block, Filter(lambda x: x % 3 == 0), Map(lambda x: {"a": {"b": x}, "c": x / 2})))
    _assert_same(*_both(processes, block, MapBatches(lambda v: np.repeat(v, 2))))
    _assert_same(*_both(processes, block, Filter(lambda x: x < 0)))


def test_random_numbers_are_those_of_the_place(processes):
    here, there = _both(
        processes, _numbered(20), Map(lambda x, rng: x + rng.random()), Map(lambda x, rng: rng.normal())
    )
    _assert_same(here, there)
    assert len(set(here.columns["value"])) == 20


def test_text_columns_and_times(processes):
    block = Block(
        {"t": pa.array(["a", "bb", None]), "d": np.array(["2020-01-01", "NaT", "2021-05-05"], "M8[D]")},
        {"t": "t", "d": "d"},
    )
    _assert_same(*_both(processes, block, Map(lambda s: {"t": s["t"], "d": s["d"]})))
    _assert_same(*_both(processes, block, Filter(lambda s: s["t"] is not None)))


def test_batches_pass_as_one_element(processes):
    batch = _numbered(8)
    _assert_same(*_both(processes, batch, Map(lambda x: x * 2), Filter(lambda x: x.sum() > 0), whole=True))
    here, there = _both(processes, batch, Filter(lambda x: x.sum() < 0), whole=True)
    assert here is None
    assert there is None


def test_origins_follow_the_rows_that_stay(processes):
    fused = Fused((Filter(lambda x: x % 10 == 7), Map(lambda x: x + 1)))
    there, _ = processes.run(PackedFunctions(next(_numbers), fused), _numbered(50), (0,))
    assert [there.where(i) for i in range(there.nrows)] == [f"number {n}" for n in (7, 17, 27, 37, 47)]


def test_results_much_larger_than_the_block_are_leased_first(processes, budget):
    before = budget.holders()["worker processes"]
    there, _ = processes.run(
        PackedFunctions(next(_numbers), Fused((Map(lambda x: np.full(1_000_000, x, np.uint8)),))), _numbered(30), (0,)
    )
    assert there.columns["value"].shape == (30, 1_000_000)
    assert (there.columns["value"][7] == 7).all()
    held = budget.holders()["worker processes"]
    assert held >= before + 30_000_000
    processes.drop_idle()
    assert budget.holders()["worker processes"] < held - 30_000_000


def _failing():
    """A function of a function: such ones are sent by value, wherever this file was imported from."""

    def fails_at_13(x):
        if x == 13:
            raise LookupError(f"no entry for {x}")
        return x

    return fails_at_13


def test_an_error_is_that_of_the_thread_path_with_the_remote_traceback(processes):
    steps = (Map(_failing()),)
    with pytest.raises(MapError) as here:
        Fused(steps)(_numbered(20), (0,))
    with pytest.raises(MapError) as there:
        processes.run(PackedFunctions(next(_numbers), Fused(steps)), _numbered(20), (0,))
    assert str(there.value) == str(here.value)
    assert there.value.where == "number 13"
    assert isinstance(there.value.__cause__, LookupError)
    assert "in fails_at_13" in str(there.value.__cause__.__cause__)


def test_errors_that_cannot_travel_keep_their_name_and_words(processes):
    def broken(x):
        class TwoPartsError(Exception):
            def __init__(self, a, b):
                super().__init__(f"{a} and {b}")
                self.lock = threading.Lock()

        raise TwoPartsError("left", "right")

    with pytest.raises(MapError, match="broken failed on number 0: TwoPartsError: left and right"):
        processes.run(PackedFunctions(next(_numbers), Fused((Map(broken),))), _numbered(2), (0,))


def test_errors_of_the_engine_name_the_row(processes):
    changing = Map(lambda x: {"a": x} if x < 5 else {"b": x})
    with pytest.raises(DataError, match=r"for number 5 and \['a'\]"):
        processes.run(PackedFunctions(next(_numbers), Fused((changing,))), _numbered(9), (0,))


def test_skips_are_counted_here(processes):
    policy = OnError("skip", None)
    steps = (Map(_failing(), on_error=policy),)
    there, _ = processes.run(PackedFunctions(next(_numbers), Fused(steps)), _numbered(20), (0,))
    assert there.nrows == 19
    assert (policy.count, policy.seen) == (1, 19)
    assert policy.last.where == "number 13"
    assert policy.last.reason == "LookupError: no entry for 13"


def test_a_function_that_needs_what_is_not_there_is_refused_before_a_row_is_touched(processes):
    class Picky:
        def __call__(self, x):
            return x

        def __reduce__(self):
            return (int, ("only here",))

    with pytest.raises(UnloadableError, match="only here"):
        processes.run(PackedFunctions(next(_numbers), Fused((Map(Picky()),))), _numbered(3), (0,))


def test_functions_that_cannot_be_sent_say_what_to_do():
    places = Places(Budget(1_000_000_000, name="test places"), Events(), WorkClock(), 2)
    lock = threading.Lock()
    with pytest.raises(InvalidInput, match="workers='thread'"):
        places.run(Fused((Map(lambda x: lock and x, workers="process"),)), _numbered(3), (0,))
    places.close()


def test_quick_functions_stay_here_and_the_event_says_why():
    events = Events()
    places = Places(Budget(1_000_000_000, name="test places"), events, WorkClock(), 2)
    fused = Fused((Map(lambda x: x + 1),))
    for part in range(40):
        places.run(fused, _numbered(5), (part,))
    told = [e for e in events.recent if e.kind == "tune.workers"]
    assert len(told) == 1
    assert told[0].values["workers"] == "thread"
    assert "ms" in told[0].values["why"]
    assert places.processes.pids == []
    places.close()


def test_a_function_that_cannot_be_rebuilt_stays_here_unless_processes_were_asked_for(processes):
    class Picky:
        def __call__(self, x):
            return x + 1

        def __reduce__(self):
            return (int, ("only here",))

    events = Events()
    places = Places(Budget(1_000_000_000, name="test places"), events, WorkClock(), 2)
    places.processes, places._numbers = processes, _numbers
    fused, asked = Fused((Map(Picky()),)), Fused((Map(Picky(), workers="process"),))
    record = places._record(fused)
    record.program, record.choice = PackedFunctions(next(_numbers), fused), "process"
    assert places.run(fused, _numbered(3), (0,)).columns["value"].tolist() == [1, 2, 3]
    assert record.choice == "thread"
    assert "cannot be rebuilt" in events.recent[-1].values["why"]
    with pytest.raises(InvalidInput, match="cannot be rebuilt"):
        places.run(asked, _numbered(3), (0,))


def test_without_room_in_the_budget_nothing_starts():
    budget = Budget(10_000_000, name="small")
    assert not Processes(budget, 2).start(must=False)
    assert budget.used == 0


def test_a_process_that_is_killed_is_an_error_with_signal_function_and_rows():
    processes = Processes(Budget(1_000_000_000, name="test kill"), 1)
    processes.start(must=True)
    processes.wait_ready()

    def dies(x):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(MapError, match=r"dies failed on number 0 to number 9 \(10 rows\).*SIGKILL"):
        processes.run(PackedFunctions(0, Fused((Map(dies),))), _numbered(10), (0,))
    processes.close()


@pytest.mark.real_time
def test_closing_ends_a_process_in_the_middle_of_a_function():
    budget = Budget(1_000_000_000, name="test close")
    processes = Processes(budget, 1)
    processes.start(must=True)
    processes.wait_ready()
    pid, found = processes.pids[0], []

    def run():
        try:
            processes.run(PackedFunctions(0, Fused((Map(lambda x: time.sleep(600)),))), _numbered(1), (0,))
        except Stopped as error:
            found.append(error)

    waiting = threading.Thread(target=run)
    waiting.start()
    while processes._idle:
        time.sleep(0.01)
    processes.close()
    waiting.join()
    assert len(found) == 1
    assert not os.path.exists(f"/proc/{pid}")
    assert budget.used == 0
