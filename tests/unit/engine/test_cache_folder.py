"""A cache folder keeps its limit, survives kills, full disks and damage, and is shared by runs."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.events import events
from penstock.dataset import Dataset
from penstock.engine.cache.folder import CacheFolder, Entry
from tests.contract.chains import elements, rows, units


def wide(x: Any) -> np.ndarray:
    return np.full(1000, x, dtype=np.int64)


def used(folder: Path) -> int:
    """Bytes of all files, while nobody adds or removes one; a file that has two names for a moment counts once."""
    with CacheFolder(str(folder), None).locked():
        return sum({status.st_ino: status.st_size for status in statuses(folder)}.values())


def statuses(folder: Path) -> Iterator[os.stat_result]:
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # renamed since it was listed
            if stat.S_ISREG((status := path.stat()).st_mode):
                yield status


def told(kind: str) -> list[Any]:
    return [event for event in events.recent if event.kind == kind]


@pytest.fixture(autouse=True)
def no_old_events():
    events.recent.clear()


@pytest.mark.parametrize("make", [lambda: rows(400), lambda: units((50,) * 8, 10)])
def test_the_limit_is_never_exceeded_and_what_came_first_stays(make, tmp_path):
    def build() -> Dataset:
        return make().map(wide).cache(str(tmp_path), limit="2MB")

    ds = build()
    expected = elements(make().map(wide))
    for element, want in zip(ds, expected, strict=True):
        assert np.asarray(element).tolist() == want
        if element[0] % 10 == 0:
            assert used(tmp_path) <= 2_000_000
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name.startswith(("unit", "rows"))}
    assert used(tmp_path) > 950_000
    assert elements(ds) == expected
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert len(told("cache.full")) == 1


def test_another_run_finds_what_one_run_has_kept(tmp_path):
    program = """
        import sys
        from tests.contract.chains import elements, rows
        calls = []
        def slow(x):
            calls.append(1)
            return x * 2
        ds = rows(30).map(slow, workers="thread").cache(sys.argv[1])
        print(elements(ds)[-1], len(calls))
    """
    outputs = [run(program, tmp_path) for _ in range(2)]
    assert outputs == ["58 31", "58 1"]  # one row is looked at to learn the schema


def run(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(folder)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("make", ["rows(400)", "units((40,) * 10)"])
def test_a_killed_process_leaves_a_cache_that_is_right(make, tmp_path):
    program = f"""
        import sys, time
        from tests.contract.chains import rows, units
        from tests.unit.engine.test_cache_folder import wide
        for i, _ in enumerate({make}.map(wide).cache(sys.argv[1], limit="50MB")):
            if i == 150:
                print("ready", flush=True)
            time.sleep(0.001)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    source = rows(400) if make.startswith("rows") else units((40,) * 10)
    ds = source.map(wide).cache(str(tmp_path), limit="50MB")
    assert [elements(ds), elements(ds)] == [elements(source.map(wide))] * 2
    assert not told("cache.damaged")
    assert not list(tmp_path.rglob("partial-*"))
    noted = int.from_bytes((tmp_path / "used").read_bytes(), "little")
    assert noted == used(tmp_path) - 8


@pytest.mark.parametrize("make", [lambda: rows(60), lambda: units((10,) * 6)])
def test_damaged_bytes_are_noticed_and_read_again(make, tmp_path):
    ds = make().map(wide).cache(str(tmp_path))
    expected = elements(ds)
    for path in tmp_path.rglob("*"):
        if path.name == "rows" or path.name.startswith("unit-"):
            with open(path, "r+b") as file:
                file.seek(path.stat().st_size // 2)
                file.write(b"\xff\x00\xff\x01")
    assert elements(ds) == expected
    assert len(told("cache.damaged")) == 1
    events.recent.clear()
    assert elements(ds) == expected
    assert not told("cache.damaged")


def test_truncated_files_are_read_again(tmp_path):
    ds = units((10,) * 3).map(wide).cache(str(tmp_path))
    expected = elements(ds)
    for path in tmp_path.rglob("unit-*"):
        os.truncate(path, path.stat().st_size // 3)
    assert [elements(ds), elements(ds)] == [expected] * 2


@pytest.mark.parametrize("make", [lambda: rows(60), lambda: units((10,) * 6)])
def test_a_disk_that_is_full_stops_the_cache_and_not_the_run(make, tmp_path):
    expected = elements(make().map(wide))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write beyond the limit fails like a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, old[1]))
    try:
        ds = make().map(wide).cache(str(tmp_path))
        found = [elements(ds), elements(ds)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert found == [expected] * 2
    assert len(told("cache.full")) == 1


def test_a_folder_that_cannot_be_used_is_told_and_left_alone(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    assert elements(rows(5).cache(str(tmp_path / "file"))) == [0, 1, 2, 3, 4]
    assert len(told("cache.unusable")) == 1


def scale(x: Any, by: int) -> Any:
    return x * by


def test_other_code_or_other_data_is_another_entry(tmp_path):
    cached = [
        rows(9).map(lambda x: x * 2),
        rows(9).map(lambda x: x * 3),
        rows(9).map(functools.partial(scale, by=4)),
        rows(9).map(functools.partial(scale, by=5)),
        rows(10).map(lambda x: x * 2),
        units((9,)).map(lambda x: x * 2),
    ]
    for ds in cached:
        assert elements(ds.cache(str(tmp_path))) == elements(ds)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == len(cached)
    assert elements(rows(9).map(lambda x: x * 2).cache(str(tmp_path))) == elements(cached[0])
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == len(cached)


def test_an_older_version_makes_room_and_one_in_use_does_not(tmp_path):
    def entries() -> set[str]:
        return {path.name for path in tmp_path.iterdir() if path.is_dir()}

    first = rows(20).map(wide).cache(str(tmp_path), limit="200KB")
    elements(first)
    old = entries()
    second = rows(20).map(lambda x: wide(x) + 1).cache(str(tmp_path), limit="200KB")
    elements(second)
    assert old < entries()
    del first, second
    third = rows(20).map(lambda x: wide(x) + 2).cache(str(tmp_path), limit="200KB")
    elements(third)
    assert not old & entries()
    assert used(tmp_path) <= 200_000
    assert told("cache.evicted")


def test_processes_share_a_folder_and_keep_its_limit(tmp_path):
    program = """
        import sys
        from tests.contract.chains import elements, rows
        from tests.unit.engine.test_cache_folder import wide
        rank = int(sys.argv[2])
        ds = rows(200).map(wide).cache(sys.argv[1], limit="1MB").shuffle(seed=1).shard(rank, 2)
        found = [sorted(int(e[0]) for e in elements(ds)) for _ in range(2)]
        print(*found[0])
    """
    children = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(tmp_path), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    found = [child.communicate()[0].split() for child in children]
    assert sorted(int(n) for part in found for n in part) == list(range(200))
    assert 800_000 < used(tmp_path) <= 1_000_000


def test_bytes_are_counted_once_at_every_step_of_a_commit(tmp_path):
    folder = CacheFolder(str(tmp_path), 100_000)
    entry = Entry(folder, "one", "numbers")

    def noted() -> int:
        with folder.locked() as note:
            return int.from_bytes(os.pread(note, 8, 0), "little")

    def counted() -> int:
        with folder.locked() as note:
            return folder.recount(note)

    empty = counted()
    partial, whole = entry.partial("x"), entry.path("unit-0")
    file = os.open(partial, os.O_RDWR | os.O_CREAT)
    assert entry.grow(file, 50_000) == 0 and noted() == counted() == empty + 50_000
    os.close(file)
    os.link(partial, whole)  # another process may count now, and twice the bytes would not fit
    assert counted() == empty + 50_000
    assert entry.discard(partial) and noted() == counted() == empty + 50_000
    assert entry.discard(whole) and noted() == counted() == empty
    assert not entry.discard(whole) and noted() == empty
    entry.close()
