"""However a loop ends, nothing is left: no thread, no lease."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

import numpy as np
import pytest

from penstock.core.errors import MapError, Stopped
from penstock.engine.pipe import pipe
from tests.contract.chains import rows, units


def penstock_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("penstock")]


def held() -> int:
    budget = pipe().budget
    return 0 if budget is None else budget.used


@pytest.fixture(autouse=True)
def _nothing_is_left():
    gc.collect()
    before = (set(penstock_threads()), held())
    yield
    gc.collect()
    assert set(penstock_threads()) <= before[0]
    assert held() <= before[1], pipe().budget and pipe().budget.holders()


def test_break():
    for batch in units((100,) * 50, 10).shuffle(seed=1).batch(7):
        assert len(batch) == 7
        break


def test_dropped_iterator():
    iterator = iter(rows(10_000).batch(10))
    next(iterator)
    assert penstock_threads()
    del iterator


def test_never_started_loop():
    assert iter(rows(100).batch(10)).position["done"] == 0


def test_exception_in_a_function_names_line_and_sample():
    def faulty(x):
        return 1 // (int(x) - 13)

    with pytest.raises(MapError, match=r"faulty failed on number 13: ZeroDivisionError") as caught:
        for _ in rows(50).map(faulty).batch(4):
            continue
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    text = "".join(traceback.format_exception(caught.value))
    assert "return 1 // (int(x) - 13)" in text
    del caught


def test_batches_before_an_error_still_arrive_and_the_position_holds():
    def faulty(x):
        if x == 9_000:
            raise ValueError("no")
        return x

    ds = rows(10_000).map(faulty).batch(64)
    iterator, got = iter(ds), []
    with pytest.raises(MapError):
        for batch in iterator:
            got += batch.tolist()
    assert 0 < len(got) < 9_000
    assert got == list(range(len(got)))
    assert iterator.position["done"] * 64 == len(got)


def test_end_is_an_end_for_ever():
    iterator = iter(rows(5).batch(10))
    assert len(next(iterator)) == 5
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


def test_arrays_outlive_the_iterator():
    kept = list(rows(1000).shuffle(seed=1).batch(10))
    assert sorted(np.concatenate(kept).tolist()) == list(range(1000))
    del kept


def test_closed_iterator_says_so():
    iterator = iter(rows(1000).batch(10))
    next(iterator)
    iterator.close()
    with pytest.raises((Stopped, StopIteration)):
        next(iterator)


def test_fork_is_told_and_a_new_iterator_works_in_the_child():
    iterator = iter(rows(1000).batch(10))
    next(iterator)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            next(iterator)
        except Stopped:
            code = 0 if len(list(rows(30).batch(10))) == 3 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(list(iterator)) == 99


def test_ctrl_c_ends_the_process_and_keeps_the_position(tmp_path):
    place = tmp_path / "place.json"
    script = f"""
import json, time
from tests.contract.chains import units
it = iter(units((100,) * 200, 10).batch(5))
try:
    for n, batch in enumerate(it):
        if n == 20:
            print("going", flush=True)
        time.sleep(0.01)
except KeyboardInterrupt:
    json.dump(it.position, open({str(place)!r}, "w"))
    raise SystemExit(130)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"going\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    process.stdout.close()
    ds = units((100,) * 200, 10).batch(5)
    done = json.loads(place.read_text())["done"]
    assert done >= 20
    rest = ds.resume(place.read_text())
    assert next(iter(rest)).tolist() == list(range(done * 5, done * 5 + 5))


def test_ctrl_c_leaves_no_thread_behind():
    """In a notebook the process goes on after Ctrl-C: workers and the watchdog must not."""
    script = """
import gc, threading, time
from tests.contract.chains import units

def ours():
    return [t for t in threading.enumerate() if t.name.startswith("penstock")]

def loop():
    for n, batch in enumerate(units((100,) * 200, 10).batch(5)):
        if n == 20:
            print("going", *sorted(t.name for t in ours()), flush=True)
        time.sleep(0.01)

try:
    loop()
except KeyboardInterrupt:
    print("stopped", flush=True)
gc.collect()
for thread in ours():
    thread.join(60)
print("left", *(t.name for t in ours()), flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    going = process.stdout.readline().split()
    assert going[0] == "going" and "penstock-watchdog" in going
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=300)
    assert told.splitlines() == ["stopped", "left"]


def test_kill_9_in_mid_epoch_resumes_from_the_last_written_position(tmp_path):
    place = tmp_path / "place.json"
    script = f"""
import json, os
from tests.contract.chains import units
it = iter(units((100,) * 300, 10).shuffle(seed=5).batch(5))
for n, batch in enumerate(it):
    with open({str(place)!r} + ".new", "w") as f:
        json.dump([it.position, batch.tolist()], f)
    os.replace({str(place)!r} + ".new", {str(place)!r})
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    while not place.exists():
        time.sleep(0.01)
    time.sleep(0.05)
    process.kill()
    process.wait()
    position, last = json.loads(place.read_text())
    whole = [b.tolist() for b in units((100,) * 300, 10).shuffle(seed=5).batch(5)]
    assert whole[position["done"] - 1] == last
    rest = [b.tolist() for b in units((100,) * 300, 10).shuffle(seed=5).batch(5).resume(position)]
    assert rest == whole[position["done"] :]
