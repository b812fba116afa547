"""The recorder: every line arrives whole, outlives a kill, costs little, and stops cleanly."""

from __future__ import annotations

import doctest
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import penstock as ps
from penstock.core.events import events
from penstock.memory import account, add_holder, meter
from penstock.watch import record as recording
from penstock.watch import run_folder
from penstock.watch.event_log import EventLog, encode
from penstock.watch.record import Recorder, holders_now
from penstock.watch.run_folder import EVENTS, read_events


def kinds(folder) -> list[str]:
    """What was recorded, less what the watchdog of a stream says that another test left to the collector."""
    return [event["kind"] for event in read_events(folder) if not event["kind"].startswith("watchdog.")]


def test_events_and_memory_arrive_in_the_file(tmp_path):
    with Recorder(tmp_path / "run"):
        events.emit("tune.io", "reader", threads=4)
    found = list(read_events(tmp_path / "run"))
    (told,) = [event for event in found if event["kind"] == "tune.io"]
    assert told["who"] == "reader" and told["threads"] == 4 and abs(told["t"] - time.time()) < 60
    sample = next(event for event in found if event["kind"] == "memory.sample")
    assert sample["used_nbytes"] > 0 and sample["limit_nbytes"] > 0
    assert sum(sample["holders"].values()) >= sample["used_nbytes"] * 0.99


def test_nothing_is_left_behind(tmp_path):
    files = len(os.listdir("/proc/self/fd"))
    with Recorder(tmp_path):
        assert any(thread.name == "penstock-record" for thread in threading.enumerate())
    events.emit("tune.io", "after the end")
    assert not any(thread.name == "penstock-record" for thread in threading.enumerate())
    assert len(os.listdir("/proc/self/fd")) == files
    assert "after the end" not in (tmp_path / EVENTS).read_text()


def test_a_supervisor_takes_no_samples(tmp_path):
    with Recorder(tmp_path, memory_every_s=None):
        events.emit("run.death", "supervisor", signal=9)
    assert kinds(tmp_path) == ["run.death"]


def test_lines_outlive_kill_9(tmp_path):
    script = (
        "import os, signal, sys\n"
        "from penstock.core.events import events\n"
        "from penstock.watch.record import Recorder\n"
        "with Recorder(sys.argv[1], memory_every_s=None):\n"
        "    for step in range(150): events.emit('tune.io', 'x', step=step)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [event["step"] for event in read_events(tmp_path)] == list(range(150))


def test_a_torn_line_is_closed_by_the_next_writer(tmp_path):
    (tmp_path / EVENTS).write_bytes(b'{"t":1,"kind":"a","who":"x"}\n{"t":2,"ki')
    with Recorder(tmp_path, memory_every_s=None):
        events.emit("tune.io", "x")
    assert kinds(tmp_path) == ["a", "tune.io"]


def test_lines_of_many_threads_do_not_mix(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "BURST", 1e9)

    def tell(number: int) -> None:
        for step in range(200):
            events.emit("tune.io", "x" * 500, number=number, step=step)

    with Recorder(tmp_path, memory_every_s=None):
        threads = [threading.Thread(target=tell, args=(number,)) for number in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    found = [json.loads(line) for line in (tmp_path / EVENTS).read_text().splitlines()]
    found = [e for e in found if e["kind"] == "tune.io"]
    assert sorted((e["number"], e["step"]) for e in found) == [(n, s) for n in range(8) for s in range(200)]


def test_a_flood_is_thinned_out_and_said(tmp_path):
    with Recorder(tmp_path, memory_every_s=None):
        for step in range(5000):
            events.emit("data.skipped", "x", step=step)
            if step % 1000 == 0:
                events.emit("train.epoch", "model", epoch=step)
    found = kinds(tmp_path)
    assert found.count("train.epoch") == 5
    assert recording.BURST <= found.count("data.skipped") < 1000
    thinned = sum(e["kinds"]["data.skipped"] for e in read_events(tmp_path) if e["kind"] == "record.thinned")
    assert found.count("data.skipped") + thinned == 5000


def test_kinds_without_end_are_bounded(tmp_path):
    with Recorder(tmp_path, memory_every_s=None) as recorder:
        for number in range(recording.MOST_KINDS * 2):
            events.emit(f"made.up.{number}", "x")
        assert len(recorder._rates) <= recording.MOST_KINDS + 1


def test_a_forked_child_does_not_write_here(tmp_path):
    with EventLog(tmp_path) as log:
        log._pid = -1  # as a child sees it
        log.write("tune.io", "child", {})
    assert kinds(tmp_path) == []


def test_a_full_disk_does_not_stop_the_run(tmp_path):
    with Recorder(tmp_path, memory_every_s=None) as recorder:
        real = recorder.log._file.fd
        recorder.log._file.fd = os.open("/dev/full", os.O_WRONLY)
        events.emit("tune.io", "lost")
        os.close(recorder.log._file.fd)
        recorder.log._file.fd = real
        events.emit("tune.io", "kept")
    assert recorder.log.lost == 1
    assert [event["who"] for event in read_events(tmp_path)] == ["kept"]


def test_closing_waits_for_a_write_under_way(tmp_path):
    """Otherwise the line could go to a file that another thread opens under the same number."""
    with EventLog(tmp_path) as log:
        writing = log._file
    os.write(writing.fd, b"late\n")
    assert (tmp_path / EVENTS).read_bytes() == b"late\n"
    fd = writing.fd
    del writing
    with pytest.raises(OSError):
        os.fstat(fd)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (np.float32(0.5), 0.5),
        (np.arange(3), [0, 1, 2]),
        ({"a": np.int64(1), 2: (1, 2)}, {"a": 1, "2": [1, 2]}),
        ({"loss": float("inf")}, {"loss": "inf"}),
        (ps.AUTOTUNE, ps.AUTOTUNE),
    ],
)
def test_values_become_strict_json(value, stored):
    def refuse(word):
        raise AssertionError(word)

    assert json.loads(encode("k", "w", {"value": value}, 1.0), parse_constant=refuse)["value"] == stored


def test_a_value_of_its_own_kind_is_named():
    assert "slice(1, 2" in json.loads(encode("k", "w", {"value": slice(1, 2)}, 1.0))["value"]


def test_a_huge_event_is_cut():
    line = encode("k", "w", {"text": "x" * 10_000_000}, 1.0)
    assert len(line) < 1000 and json.loads(line)["left_out_nbytes"] > 10_000_000


def test_many_holders_are_taken_together():
    removers = [add_holder(f"part {n}", lambda n=n: (n + 1) * 1000) for n in range(30)]
    try:
        report = ps.memory_report()
        holders = holders_now(report)["holders"]
    finally:
        [remove() for remove in removers]
    assert holders["part 29"] == 30_000 and "part 0" not in holders
    named = set(holders) - {"smaller holders", "not accounted for", "worker processes", *report.kinds}
    assert len(named) == recording.MOST_HOLDERS and holders["smaller holders"] > 0


def test_a_holder_that_fails_does_not_end_the_samples(tmp_path):
    remove = add_holder("broken", lambda: 1 // 0)
    try:
        with Recorder(tmp_path, memory_every_s=0.01):
            pass
    finally:
        remove()
    assert "ZeroDivisionError" in next(read_events(tmp_path))["error"]


def test_record_begins_and_ends_a_run(tmp_path):
    with ps.record(tmp_path / "r", config={"rows": 8}):
        events.emit("tune.io", "x")
    first, *_, last = read_events(tmp_path / "r")
    assert first["kind"] == "run.start" and first["attempt"] == 1 and first["config"] == {"rows": 8}
    assert first["environment"]["packages"]["numpy"] == np.__version__
    assert last["kind"] == "run.end" and last["status"] == "finished"


def test_record_says_why_it_ended_and_counts_attempts(tmp_path):
    with pytest.raises(RuntimeError), ps.record(tmp_path):
        raise RuntimeError("no more")
    with ps.record(tmp_path):
        pass
    found = list(read_events(tmp_path))
    assert [e["attempt"] for e in found if e["kind"] == "run.start"] == [1, 2]
    ends = [(e["status"], e["error"]) for e in found if e["kind"] == "run.end"]
    assert ends == [("failed", "RuntimeError: no more"), ("finished", "")]


def test_samples_stay_below_one_percent_whatever_one_costs():
    for cost_s in (0.0, 1e-5, 0.001, 0.035, 0.4, 60.0):
        wait_s = recording.wait_after(cost_s, recording.SAMPLE_EVERY_S)
        assert wait_s >= recording.SAMPLE_EVERY_S and cost_s / (cost_s + wait_s) < 0.01


def test_the_sampler_waits_as_long_as_its_samples_cost(tmp_path, monkeypatch):
    """A sample that burns processor time puts off the next one, here beyond the end of the block."""
    costs = []

    def asked(cost_s, every_s):
        costs.append(cost_s)
        return 1e6

    def burn():
        end_s = time.thread_time() + 0.02
        while time.thread_time() < end_s:
            sum(range(1000))
        return 1

    monkeypatch.setattr(recording, "wait_after", asked)
    remove = add_holder("dear", burn)
    try:
        with Recorder(tmp_path) as recorder:
            while not costs:
                recorder._stop.wait(0.001)
    finally:
        remove()
    assert len(costs) == 1 and costs[0] >= 0.02
    assert kinds(tmp_path) == ["memory.sample"] * 2, "one at the start, one at the end"


def test_a_sample_does_not_walk_the_pages_of_the_tree_each_time(tmp_path, monkeypatch):
    """Only a reading that is due for renewal asks the kernel to walk a process's pages, which takes milliseconds."""
    walked, walk, here = [], meter._read_rollup, threading.get_ident()

    def counted(pid: int) -> int | None:
        if threading.get_ident() == here:  # a stream that another test left to the collector has a watchdog
            walked.append(pid)
        return walk(pid)

    monkeypatch.setattr(meter, "_read_rollup", counted)
    fresh = meter.Meter()
    monkeypatch.setattr(account, "_meter", fresh)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        account.sample()
        assert child.pid in walked
        fresh._next_exact_s = float("inf")
        walked.clear()
        with Recorder(tmp_path, memory_every_s=None) as recorder:
            for _ in range(20):
                recorder._sample_once()
    finally:
        child.communicate(b"\n")
    assert not walked and kinds(tmp_path) == ["memory.sample"] * 20


def test_what_is_written_is_bounded(tmp_path):
    """A sample is one line of a few hundred bytes, however many hold memory."""
    removers = [add_holder(f"a part of the pipe with a long name, number {n}", lambda: 1 << 40) for n in range(200)]
    try:
        with Recorder(tmp_path, memory_every_s=None) as recorder:
            recorder._sample_once()
    finally:
        [remove() for remove in removers]
    assert (tmp_path / EVENTS).read_bytes().count(b"\n") == 1
    assert (tmp_path / EVENTS).stat().st_size < 2000


@pytest.mark.parametrize("module", [recording, run_folder])
def test_examples_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(module)
    assert found.failed == 0 and found.attempted > 0
