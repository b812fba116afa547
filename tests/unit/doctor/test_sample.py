"""What a sample reads, on recorded trees of control groups version 2 and a recorded device."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from penstock.doctor.run.device import read_devices
from penstock.doctor.run.sample import Sampler, ancestor_kills, read_group
from penstock.doctor.run.supervise import kills_all
from penstock.doctor.run.tripwire import Tripwire
from penstock.memory.cgroups import Cgroup

STAT = """anon 812646400
file 209715200
kernel 9437184
shmem 52428800
file_mapped 4096
file_dirty 1048576
file_writeback 0
inactive_anon 700000000
"""
EVENTS = "low 0\nhigh 0\nmax 318\noom 2\noom_kill {kills}\noom_group_kill 1\n"


@pytest.fixture
def group(tmp_path):
    """A pod's container as Kubernetes 1.28 and later makes it: the kernel kills it as a whole."""
    pod = tmp_path / "kubepods.slice" / "pod1"
    container = pod / "container"
    container.mkdir(parents=True)
    for folder, kills, whole in ((container, 3, "1"), (pod, 4, "0")):
        (folder / "memory.stat").write_text(STAT)
        (folder / "memory.events").write_text(EVENTS.format(kills=kills))
        (folder / "memory.current").write_text("1073741824\n")
        (folder / "memory.oom.group").write_text(whole + "\n")
    return Cgroup(2, container, tmp_path)


def test_a_group_of_version_2_is_read(group):
    found = read_group(group)
    assert (found["usage"], found["anon"], found["shmem"]) == (1 << 30, 812646400, 52428800)
    assert (found["file"], found["dirty"]) == (209715200, 1048576)
    assert (found["kills"], found["refused"]) == (3, 318)


def test_kills_of_ancestors_count(group):
    assert ancestor_kills(group) == 4


def test_a_group_that_is_killed_as_a_whole_is_known(group):
    assert kills_all(group)
    (group.path / "memory.oom.group").write_text("0\n")
    assert not kills_all(group)


def test_a_jump_of_memory_is_noticed_once(group):
    wire = Tripwire(1 << 30, group)
    wire.watch(1)
    assert not wire.moved()
    (group.path / "memory.current").write_text("1200000000\n")
    assert wire.moved()
    assert not wire.moved()
    wire.close()


def test_devices_are_told_with_who_holds_them(monkeypatch):
    """As nvidia-ml-py answers on a machine with one device; None is a process of another container."""
    memory = SimpleNamespace(used=15 << 30, total=16 << 30)
    holders = [SimpleNamespace(pid=7, usedGpuMemory=14 << 30), SimpleNamespace(pid=8, usedGpuMemory=None)]
    library = SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: memory,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: holders,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert read_devices() == [{"index": 0, "used": 15 << 30, "total": 16 << 30, "pids": {"7": 14 << 30, "8": 0}}]


def test_no_library_is_no_device(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_devices() == []


TWO = """
import subprocess, sys
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(other.pid, flush=True)
sys.stdin.readline()
kept = bytearray(b"x") * 80_000_000
print("grown", flush=True)
sys.stdin.readline()
other.kill()
"""


def test_a_process_that_grew_since_its_share_was_looked_up_has_grown(tmp_path):
    """Exact shares are dear and seldom read; what was taken since is added."""
    tree = subprocess.Popen([sys.executable, "-c", TWO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert tree.stdout.readline()
        sampler = Sampler(tmp_path, os.getpid(), None)
        before = {p["pid"]: p["pss"] for p in sampler.read()["procs"]}
        tree.stdin.write("\n")
        tree.stdin.flush()
        assert tree.stdout.readline() == "grown\n"
        sampler.next_exact_s = float("inf")  # the share is as old as it can be
        after = {p["pid"]: p["pss"] for p in sampler.read()["procs"]}
    finally:
        tree.communicate("\n", timeout=30)
    assert after[tree.pid] - before[tree.pid] > 75_000_000
