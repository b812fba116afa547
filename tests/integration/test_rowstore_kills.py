"""Row stores among real processes: killed while filling, filled by two at once, on a disk that is really too small."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.errors import DiskTooSmall
from penstock.core.events import events
from penstock.engine.rowstore import fill
from tests.integration.test_cache_full_disk import small_disk  # noqa: F401

ROWS = 600_000
ROW_NBYTES = 8 * 9

JOB = """
import hashlib, json, os, signal, sys
import numpy as np
import penstock as ps
from penstock.core.events import events
from penstock.engine.rowstore import fill

data, folder, kill_at, hold = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "hold"
fill._RUN_LEAST = fill._RUN_MOST = 500_000
write, calls = os.pwrite, 0

def pwrite(file, data, at):
    global calls
    calls += 1
    if calls == kill_at:
        write(file, bytes(data)[: len(data) // 2], at)
        os.kill(os.getpid(), signal.SIGKILL)
    return write(file, data, at)

def hear(event):
    if event.kind in ("rowstore.began", "rowstore.complete", "rowstore.waiting"):
        print(event.kind, flush=True)
    if event.kind == "rowstore.written" and hold and not held:
        held.append(True)
        print("holds", flush=True)
        sys.stdin.readline()

os.pwrite, held = pwrite, []
events.listen(hear)
names = [f"x{i}" for i in range(8)]
ds = ps.read_parquet(data, columns=["row", *names]).shuffle(seed=1, exact=True, folder=folder).batch(1000)
rows = np.concatenate([batch["row"] for batch in ds])
print(json.dumps([len(rows), len(np.unique(rows)), hashlib.sha256(rows.tobytes()).hexdigest()]))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "t.parquet"
    random = np.random.default_rng(0)
    table = pa.table({"row": np.arange(ROWS)} | {f"x{i}": random.normal(size=ROWS) for i in range(8)})
    pq.write_table(table, path, row_group_size=60_000)
    return path


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """What a job that nobody disturbs gives."""
    done = finished(started(data, tmp_path_factory.mktemp("whole")))
    assert done[:2] == [ROWS, ROWS]
    return done


def started(data: Path, folder: Path, kill_at: int = 0, hold: bool = False) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", JOB, str(data), str(folder), str(kill_at), "hold" if hold else "run"]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finished(job: subprocess.Popen[str]) -> list[object]:
    out, _ = job.communicate(timeout=300)
    assert job.returncode == 0
    found: list[object] = json.loads(out.splitlines()[-1])
    return found


def assert_nothing_leaked(folder: Path) -> None:
    (entry,) = [path for path in folder.iterdir() if path.is_dir()]
    assert (entry / "data").stat().st_size == ROWS * ROW_NBYTES
    assert not list(entry.glob("partial-*"))


def test_killed_again_and_again_it_goes_on_to_the_same_rows(data, whole, tmp_path):
    """In the middle of a write, at several places: of rows, of the index, of the count of bytes."""
    for kill_at in (11, 8, 2):
        job = started(data, tmp_path, kill_at)
        job.communicate(timeout=300)
        assert job.returncode == -signal.SIGKILL
    (entry,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert (entry / "journal").read_bytes().count(b"\n") >= 1  # something was in place, and was not written again
    assert not (entry / "complete").exists()
    assert finished(started(data, tmp_path)) == whole
    assert_nothing_leaked(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_of_two_processes_one_fills_and_the_other_waits_or_takes_over(killed, data, whole, tmp_path):
    first = started(data, tmp_path, hold=True)
    assert first.stdout is not None and first.stdin is not None
    assert [first.stdout.readline().strip() for _ in range(2)] == ["rowstore.began", "holds"]
    second = started(data, tmp_path)
    assert second.stdout is not None
    assert second.stdout.readline().strip() == "rowstore.waiting"
    if killed:
        first.kill()
        first.wait(timeout=300)
    else:
        assert finished(first) == whole  # communicate closes its input, which lets it go on
    out, _ = second.communicate(timeout=300)
    lines = out.splitlines()
    assert json.loads(lines[-1]) == whole
    assert lines[:-1] == (["rowstore.began", "rowstore.complete"] if killed else [])
    assert_nothing_leaked(tmp_path)


def test_a_disk_that_is_too_small(data, small_disk, monkeypatch):  # noqa: F811
    ds = ps.read_parquet(data)
    monkeypatch.setattr(fill, "_RUN_LEAST", 300_000)
    monkeypatch.setattr(fill, "_RUN_MOST", 300_000)
    monkeypatch.setattr(fill, "_KEPT_FREE_NBYTES", 0)
    with pytest.raises(DiskTooSmall) as caught:  # by what the first runs foretell
        list(ds.shuffle(seed=1, exact=True, folder=small_disk).batch(1000))
    assert caught.value.needed > 4_000_000 > 1_100_000 > caught.value.free
    monkeypatch.setattr(fill, "_whole", lambda source, run, so_far: so_far)
    monkeypatch.setattr(fill, "_KEPT_FREE_NBYTES", -1 << 40)
    with pytest.raises(DiskTooSmall):  # by the disk itself
        list(ds.shuffle(seed=1, exact=True, folder=small_disk).batch(1000))
    assert not list(small_disk.rglob("data"))
    assert os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize > 900_000


def test_a_default_shuffle_goes_back_to_windows_and_says_so(data, small_disk, monkeypatch):  # noqa: F811
    from penstock.engine.streams import window_shuffle

    monkeypatch.setenv("PENSTOCK_CACHE", str(small_disk))
    monkeypatch.setattr(window_shuffle, "WINDOW_NBYTES", 500_000)
    events.recent.clear()
    ds = ps.read_parquet(data).shuffle(seed=1).batch(1000)
    rows = np.concatenate([batch["row"] for batch in ds])
    assert sorted(rows.tolist()) == list(range(ROWS))
    assert [e.kind for e in events.recent if e.kind in ("rowstore.refused", "shuffle.weak")] == [
        "rowstore.refused",
        "shuffle.weak",
    ]
    assert not list(small_disk.rglob("data"))
