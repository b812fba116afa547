"""Reading events while they are being written, and after their writer was killed."""

from __future__ import annotations

import json
import os

import pytest

from penstock.core.errors import NotFound
from penstock.watch import run_folder
from penstock.watch.run_folder import EVENTS, Tail, find_run, list_runs, read_events


def line(number: int, **values) -> bytes:
    return json.dumps({"t": number, "kind": "k", "who": "w", "n": number, **values}, separators=(",", ":")).encode()


def numbers(records) -> list[int]:
    return [record["n"] for record in records]


def test_a_run_that_has_not_begun_is_empty(tmp_path):
    assert list(read_events(tmp_path / "none")) == []
    (tmp_path / EVENTS).touch()
    assert list(read_events(tmp_path)) == []


def test_a_tail_goes_on_where_it_was(tmp_path):
    path = tmp_path / EVENTS
    path.write_bytes(line(1) + b"\n" + line(2)[:5])
    tail = Tail(tmp_path)
    assert numbers(tail.read()) == [1]
    assert tail.read() == []
    with open(path, "ab") as file:
        file.write(line(2)[5:] + b"\n")
    again = Tail(tmp_path, offset=tail.offset)
    assert numbers(tail.read()) == [2] == numbers(again.read())
    assert tail.torn == 0


@pytest.mark.parametrize("cut", range(1, len(line(2))))
def test_a_line_torn_anywhere_costs_only_itself(tmp_path, cut):
    """Killed after `cut` bytes; the next writer began a new line, or glued its own to the torn one."""
    torn = line(2)[:cut]
    for between in (b"\n", b""):
        (tmp_path / EVENTS).write_bytes(line(1) + b"\n" + torn + between + line(3) + b"\n" + line(4) + b"\n")
        tail = Tail(tmp_path)
        assert numbers(tail.read()) == [1, 3, 4]
        assert tail.torn == 1


@pytest.mark.parametrize("junk", [b"[1]", b"7", b'{"t":1}', b"\xff\xfe\x00", b'{"kind":3}', b"null"])
def test_lines_that_are_no_events_are_passed_over(tmp_path, junk):
    (tmp_path / EVENTS).write_bytes(junk + b"\n" + line(1) + b"\n")
    tail = Tail(tmp_path)
    assert numbers(tail.read()) == [1] and tail.torn == 1


def test_empty_lines_are_nothing(tmp_path):
    (tmp_path / EVENTS).write_bytes(b"\n\n" + line(1) + b"\n\n")
    tail = Tail(tmp_path)
    assert numbers(tail.read()) == [1] and tail.torn == 0


def test_a_file_that_became_shorter_is_read_from_its_start(tmp_path):
    (tmp_path / EVENTS).write_bytes(line(1) + b"\n" + line(2) + b"\n")
    tail = Tail(tmp_path)
    tail.read()
    (tmp_path / EVENTS).write_bytes(line(9) + b"\n")
    assert numbers(tail.read()) == [9]


def test_reading_in_small_pieces_gives_the_same(tmp_path):
    (tmp_path / EVENTS).write_bytes(b"".join(line(n, pad="x" * (n % 90)) + b"\n" for n in range(300)))
    tail, found = Tail(tmp_path), []
    while records := tail.read(64):
        found += records
    assert numbers(found) == list(range(300))


def test_a_line_without_end_is_not_collected(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "LONGEST_LINE", 4096)
    (tmp_path / EVENTS).write_bytes(line(1) + b"\n" + b"x" * 50_000 + b"\n" + line(2) + b"\n")
    tail, found = Tail(tmp_path), []
    while (records := tail.read(1024)) or tail.offset < os.path.getsize(tmp_path / EVENTS):
        found += records
    assert numbers(found) == [1, 2] and tail.torn == 1


def make_run(folder, changed_s: float) -> None:
    folder.mkdir(parents=True)
    (folder / EVENTS).write_bytes(line(1) + b"\n")
    os.utime(folder / EVENTS, (changed_s, changed_s))


def test_runs_are_listed_newest_first(tmp_path):
    make_run(tmp_path / "a", 100)
    make_run(tmp_path / "group" / "b", 300)
    make_run(tmp_path / "c", 200)
    make_run(tmp_path / "much" / "too" / "deep", 400)
    make_run(tmp_path / ".hidden", 500)
    (tmp_path / "no-run").mkdir()
    assert [run.name for run in list_runs(tmp_path)] == ["group/b", "c", "a"]
    assert find_run(tmp_path) == tmp_path / "group" / "b"


def test_a_run_is_a_list_of_one(tmp_path):
    make_run(tmp_path / "mine", 100)
    (only,) = list_runs(tmp_path / "mine")
    assert only.name == "mine" and only.events_nbytes == len(line(1)) + 1
    assert find_run(tmp_path / "mine" / EVENTS) == tmp_path / "mine"


@pytest.mark.parametrize(("name", "says"), [("none", "is not there"), ("empty", f"holds no {EVENTS}")])
def test_no_run_is_said(tmp_path, name, says):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match=says):
        find_run(tmp_path / name)
