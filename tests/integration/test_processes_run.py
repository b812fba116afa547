"""Whole runs with worker processes: the same results as threads, and nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from penstock.core.errors import MapError, TooManyErrors
from penstock.core.events import events
from penstock.dataset import Dataset
from penstock.engine.pipe import pipe
from penstock.memory.meter import family
from tests.stand_ins import NumberRows, NumberUnits


def _children() -> set[int]:
    return {pid for pid in family(os.getpid())[1:] if _alive(pid) and b"penstock.engine.workers.child" in _command(pid)}


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return b""


def _alive(pid: int) -> bool:
    """Running, not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[0] != b"Z"
    except OSError:
        return False


def _gone(pids: set[int], within_s: float = 20.0) -> bool:
    until = time.monotonic() + within_s
    while any(_alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(_alive(pid) for pid in pids)


@pytest.fixture(autouse=True)
def _nothing_left():
    assert not _children()
    yield
    gc.collect()
    assert not _children()
    assert pipe().budget.holders().get("worker processes", 0) == 0


@pytest.fixture
def told():
    found = []
    remove = events.listen(found.append)
    yield lambda kind: [event for event in found if event.kind == kind]
    remove()


def _slow(loops: int = 2000):
    def slow(x, rng):
        total = 0
        for i in range(loops):
            total += (i * int(x)) % 7
        return {"x": x, "total": total, "random": rng.random(), "text": f"n{x}"}

    return slow


def _collected(ds: Dataset) -> list[tuple]:
    return [(int(s["x"]), int(s["total"]), float(s["random"]), str(s["text"])) for s in ds]


@pytest.mark.parametrize("source", [NumberRows(700), NumberUnits((90, 0, 333, 120), 50)], ids=["rows", "units"])
def test_results_are_those_of_threads_in_the_same_order(source):
    def chain(workers):
        ds = Dataset.of(source).shuffle(seed=5).map(_slow(50), workers=workers)
        return _collected(ds.filter(lambda s: s["x"] % 3 > 0))

    threads = chain("thread")
    assert chain("process") == threads
    assert len(threads) > 300


def test_batches_mapped_in_processes():
    def chain(workers):
        ds = Dataset.of(NumberRows(200)).batch(16).map(lambda x, rng: x * rng.random(), workers=workers)
        return np.concatenate(list(ds.filter(lambda x: x.max() > 30)))

    np.testing.assert_array_equal(chain("process"), chain("thread"))


def test_a_python_loop_is_moved_by_measurement_and_results_stay(told):
    source = NumberUnits((40,) * 60, 40)
    expected = _collected(Dataset.of(source).map(_slow(), workers="thread"))
    assert _collected(Dataset.of(source).map(_slow())) == expected
    (event,) = [e for e in told("tune.workers") if "gil_held" in e.values]
    # What a loaded machine measures is its own; what follows from it is ours (tests/unit/engine has the decisions).
    assert event.values["workers"] == "process" or len(os.sched_getaffinity(0)) == 1 or event.values["gil_held"] < 0.8


def test_a_numpy_function_stays_in_threads(told):
    big = np.random.default_rng(0).random(400_000)
    list(Dataset.of(NumberUnits((4,) * 120, 4)).map(lambda x: np.sqrt(big).sum() + x))
    assert [event.values["workers"] for event in told("tune.workers")] == ["thread"]


def test_resuming_in_another_place_continues_with_the_same_samples():
    def chain(workers):
        return Dataset.of(NumberRows(300)).map(_slow(20), workers=workers)

    whole = _collected(chain("thread"))
    with iter(chain("process")) as once:
        first = [next(once) for _ in range(123)]
        position = once.position
    assert [int(s["x"]) for s in first] == list(range(123))
    # The plan's signature names the workers that were asked for, so the second run asks for the same.
    assert _collected(chain("process").resume(position)) == whole[123:]


def test_an_error_carries_the_users_line_and_the_samples_origin():
    def fails(x):
        if x == 77:
            raise LookupError("no entry")  # this very line
        return x

    with pytest.raises(MapError, match="fails failed on number 77: LookupError: no entry") as caught:
        list(Dataset.of(NumberRows(500)).map(fails, workers="process"))
    assert isinstance(caught.value.__cause__, LookupError)
    assert "this very line" in str(caught.value.__cause__.__cause__)


def test_skipped_samples_are_counted_and_limited():
    def fails(x):
        if x % 10 == 3:
            raise ValueError(x)
        return x

    ds = Dataset.of(NumberUnits((50,) * 6, 25)).map(fails, workers="process", on_error="skip")
    assert len(list(ds)) == 270
    policy = ds.node.step.on_error
    assert (policy.count, policy.seen) == (30, 270)
    strict = Dataset.of(NumberUnits((50,) * 6, 25)).map(fails, workers="process", on_error="skip", max_errors=12)
    with pytest.raises(TooManyErrors, match="damaged pieces skipped in .* max_errors allows 12"):
        list(strict)


def test_kill_9_of_a_child_is_a_clear_error():
    def stalls(x):
        if x == 40:
            time.sleep(600)
        return x

    once = iter(Dataset.of(NumberUnits((20,) * 10, 20)).map(stalls, workers="process"))
    next(once)
    deadline = time.monotonic() + 30
    with pytest.raises(MapError, match=r"stalls failed on number \d+ to number \d+ \(20 rows\).*SIGKILL"):
        while time.monotonic() < deadline:
            for pid in _children():
                os.kill(pid, signal.SIGKILL)
            next(once)
    assert not _children()


def test_no_process_is_left_after_break_exception_and_garbage():
    ds = Dataset.of(NumberRows(100_000)).map(_slow(200), workers="process")
    for _ in ds:
        pids = _children()
        assert pids
        break
    gc.collect()
    assert _gone(pids)
    once = iter(ds)
    next(once)
    pids = _children()
    del once
    gc.collect()
    assert pids
    assert _gone(pids)
    with pytest.raises(ZeroDivisionError), iter(ds) as once:
        next(once)
        pids = _children()
        raise ZeroDivisionError
    assert pids
    assert _gone(pids)


def test_memory_of_processes_is_leased_while_they_live():
    with iter(Dataset.of(NumberRows(100_000)).map(_slow(100), workers="process")) as once:
        next(once)
        held = pipe().budget.holders()["worker processes"]
        assert held >= 32_000_000 * len(_children())
    assert "worker processes" not in pipe().budget.holders()


_SCRIPT = """
    import sys, time, threading
    import numpy as np
    import penstock as ps
    from penstock.dataset import Dataset
    from tests.stand_ins import NumberRows

    offset = 100

    class Point:
        def __init__(self, x):
            self.x = x

    def double(x):
        return helper(x) * 2

    def helper(x):
        return x + offset

    made = Dataset.of(NumberRows(50)).map(double, workers="process").map(lambda x: (x, Point(int(x))))
    found = list(made)
    assert [int(x) for x, _ in found] == [(i + 100) * 2 for i in range(50)]
    assert all(type(p) is Point and p.x == x for x, p in found)

    def loaded(x):
        import sys
        heavy = ("penstock.dataset", "cv2", "pandas", "torch", "tensorflow", "jax")
        return [name for name in heavy if name in sys.modules]

    assert not any(len(names) for names in Dataset.of(NumberRows(3)).map(loaded, workers="process"))
    whole = Dataset.of(NumberRows(3)).map(lambda x: len(ps.__version__), workers="process")
    assert [int(x) for x in whole] == [len(ps.__version__)] * 3
    print("ran", __name__)
"""


def _script(tmp_path, text: str) -> list[str]:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return [sys.executable, str(path)]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p) + os.pathsep + os.getcwd()}


def test_functions_lambdas_and_classes_of_a_script_without_a_main_guard(tmp_path):
    done = subprocess.run(_script(tmp_path, _SCRIPT), env=_environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ran __main__\n"
    assert done.stderr == ""


_KILLED = """
    import os, time
    from penstock.dataset import Dataset
    from penstock.memory.meter import family
    from tests.stand_ins import NumberUnits

    def busy(x):
        while x > 5:
            pass
        return x

    once = iter(Dataset.of(NumberUnits((5, 5, 5, 5), 5)).map(busy, workers="process"))
    next(once)
    print(*family(os.getpid())[1:], flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_children_in_an_endless_loop_end_with_their_parent(tmp_path, how):
    with subprocess.Popen(
        _script(tmp_path, _KILLED), env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        pids = {int(pid) for pid in parent.stdout.readline().split()}
        assert pids
        parent.send_signal(how)
        parent.wait(timeout=60)
    try:
        assert _gone(pids)
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
