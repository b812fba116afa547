"""One interface for local and remote paths: finding, reading, retrying, keeping files open."""

from __future__ import annotations

import errno
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.byte_cache import CachedUrl
from penstock.core.errors import BadData, DataError, InvalidInput, NotFound
from penstock.engine.cache.pages import Pages
from penstock.sources.storage import files as storage
from penstock.sources.storage import remote, remote_file

fsspec = pytest.importorskip("fsspec")
DATA = bytes(range(256)) * 1000


@pytest.fixture(params=["local", "file-url", "memory"])
def path(request, tmp_path):
    """The same file in three places."""
    if request.param == "memory":
        fsspec.filesystem("memory").pipe("/storage-test/data.bin", DATA)
        yield "memory://storage-test/data.bin"
        fsspec.filesystem("memory").rm("/storage-test", recursive=True)
        return
    (tmp_path / "data.bin").write_bytes(DATA)
    yield f"{'file://' if request.param == 'file-url' else ''}{tmp_path}/data.bin"


@pytest.fixture
def tree(tmp_path):
    for name in ("b.csv", "a.csv", "c.CSV", "notes.txt", "_SUCCESS.csv", ".hidden.csv", "part/d.csv", "_tmp/e.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [("s3://b/k", True), ("http://h/x", True), ("file:///a", False), ("/a/b", False), ("a:b", False),
     ("simplecache::s3://b/k", True), ("C://x", True), ("./s3:/x", False)],
)  # fmt: skip
def test_a_scheme_makes_a_path_remote(text, expected):
    assert storage.is_remote(text) is expected


def test_a_folder_is_walked_sorted_without_hidden_files(tree):
    found = [os.path.relpath(p, tree) for p in storage.expand(tree, suffixes=(".csv",))]
    assert found == ["a.csv", "b.csv", "c.CSV", "part/d.csv"]


def test_globs_lists_and_plain_files(tree):
    assert storage.expand(f"{tree}/*.csv") == [f"{tree}/_SUCCESS.csv", f"{tree}/a.csv", f"{tree}/b.csv"]
    assert storage.expand([tree / "b.csv", f"{tree}/a.csv"]) == [f"{tree}/b.csv", f"{tree}/a.csv"]
    assert storage.expand(f"{tree}/**/d.csv") == [f"{tree}/part/d.csv"]
    assert storage.expand(f"file://{tree}/a.csv") == [f"{tree}/a.csv"]


def test_a_file_whose_name_looks_like_a_glob_is_found(tmp_path):
    (tmp_path / "a[1].csv").write_text("x")
    assert storage.expand(f"{tmp_path}/a[1].csv") == [f"{tmp_path}/a[1].csv"]


def test_what_is_not_there_is_said_in_one_sentence(tree):
    with pytest.raises(NotFound, match=r"^No file matches '.*\*\.zip'\.$"):
        storage.expand(f"{tree}/*.zip")
    with pytest.raises(NotFound, match=r"^'.*nowhere' does not exist\.$"):
        storage.expand(f"{tree}/nowhere")
    with pytest.raises(NotFound, match=r"holds no file ending in \.zip\.$"):
        storage.expand(tree, suffixes=(".zip",))
    with pytest.raises(InvalidInput, match="list is empty"):
        storage.expand([])
    with pytest.raises(InvalidInput, match="not int"):
        storage.expand([3])


def test_remote_folders_and_globs_are_expanded_alike():
    memory = fsspec.filesystem("memory")
    for name in ("b.csv", "a.csv", "_x.csv", "s/c.csv", "t.txt"):
        memory.pipe(f"/expand-test/{name}", b"1")
    assert storage.expand("memory://expand-test", suffixes=(".csv",)) == [
        f"memory://expand-test/{name}" for name in ("a.csv", "b.csv", "s/c.csv")
    ]
    assert len(storage.expand("memory://expand-test/*.csv")) == 3
    with pytest.raises(NotFound, match="No file matches"):
        storage.expand("memory://expand-test/*.zip")
    with pytest.raises(NotFound, match="does not exist"):
        storage.expand("memory://expand-nowhere")
    memory.rm("/expand-test", recursive=True)


def test_an_unknown_scheme_is_refused():
    with pytest.raises(InvalidInput, match="no reader for zork://"):
        storage.read_file("zork://x/y")


def test_sizes_ranges_and_whole_reads_agree(path):
    assert storage.file_size(path) == len(DATA)
    assert storage.read_file(path) == DATA
    assert storage.read_range(path, 1000, 500) == DATA[1000:1500]
    assert storage.read_range(path, len(DATA) - 3, 100) == DATA[-3:]
    assert storage.read_range(path, len(DATA) + 10, 5) == b""
    assert storage.read_range(path, 5, 0) == b""
    with pytest.raises(InvalidInput):
        storage.read_range(path, -1, 5)


@settings(max_examples=100, deadline=None)
@given(ranges=st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 90_000)), max_size=12))
def test_many_ranges_are_the_same_as_one_by_one(tmp_path_factory, ranges):
    path = tmp_path_factory.getbasetemp() / "ranges.bin"
    if not path.exists():
        path.write_bytes(DATA)
    expected = [DATA[o : o + n] for o, n in ranges]
    assert storage.read_ranges(str(path), ranges) == expected
    assert list(storage.each_range(str(path), ranges)) == expected


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**7)), max_size=30))
def test_merged_ranges_cover_their_members_and_stay_bounded(ranges):
    groups = storage.merge_ranges(ranges)
    assert sorted(i for *_, members in groups for i in members) == list(range(len(ranges)))
    for start, stop, members in groups:
        assert all(start <= ranges[i][0] and sum(ranges[i]) <= stop for i in members)
        assert stop - start <= storage.MERGE_NBYTES


@pytest.mark.parametrize(("nbytes", "together"), [(1_000_000, 16), (250_000, 16), (64_000, 62), (100, 64), (0, 64)])
def test_of_short_ranges_more_are_asked_for_together(nbytes, together):
    """A request waits as long however short it is, and a store keeps 64 connections."""
    assert remote.requests_for(nbytes) == together


def test_near_ranges_share_a_read():
    assert [g[:2] for g in storage.merge_ranges([(0, 10), (5000, 10), (10**6, 10)])] == [(0, 5010), (10**6, 10**6 + 10)]


def test_file_objects_seek_and_read(path):
    with storage.open_file(path) as file:
        assert file.read(10) == DATA[:10]
        file.seek(-4, os.SEEK_END)
        assert file.read() == DATA[-4:]
        file.seek(100)
        assert file.read(200_000) == DATA[100:200_100]
        file.seek(0)
        assert b"".join(iter(lambda: file.read(777), b"")) == DATA


def test_a_stamp_changes_with_the_file(path):
    before = storage.stamp(path)
    assert storage.stamp(path) == before
    if storage.is_remote(path):
        fsspec.filesystem("memory").pipe("/storage-test/data.bin", DATA + b"more")
    else:
        with open(storage.local_path(path), "ab") as file:
            file.write(b"more")
    assert storage.stamp(path) != before


def test_a_missing_file_is_not_found_everywhere(path):
    for call in (storage.read_file, storage.file_size, storage.stamp, storage.open_file):
        with pytest.raises(NotFound, match="does not exist"):
            call(path + ".missing")
    with pytest.raises(NotFound):
        storage.read_range(path + ".missing", 0, 1)


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(NotFound, match="is a folder"):
        storage.read_file(str(tmp_path))


def test_a_file_beyond_the_limit_is_refused(path):
    assert storage.read_file(path, limit_nbytes=len(DATA)) == DATA
    with pytest.raises(BadData, match="more than the 1 KB"):
        storage.read_file(path, limit_nbytes=1000)


def test_several_files_give_their_bytes_or_their_errors(path):
    data, error = storage.read_files([path, path + ".missing"])
    assert data == DATA and isinstance(error, NotFound)


# Open files


def test_kept_files_and_others_come_in_order_and_only_the_others_are_asked_for(tmp_path, monkeypatch):
    fs = fsspec.filesystem("memory")
    urls = [f"memory://kept/{k}" for k in range(6)]
    for k, url in enumerate(urls[:5]):
        fs.pipe_file(url.removeprefix("memory:/"), bytes([k]) * (k + 1))
    pages = Pages(str(tmp_path), None)
    urls = [CachedUrl(url, pages) for url in urls]
    assert storage.read_files([urls[1], urls[3]]) == [b"\1\1", b"\3\3\3\3"]
    asked = []
    fetch = type(fs).cat_file
    monkeypatch.setattr(type(fs), "cat_file", lambda fs, path, **more: asked.append(path) or fetch(fs, path, **more))
    found = storage.read_files(urls, limit_nbytes=3)
    assert found[:3] == [b"\0", b"\1\1", b"\2\2\2"]
    assert [type(error) for error in found[3:]] == [BadData, BadData, NotFound]
    assert sorted({path[-1] for path in asked}) == ["0", "2", "4", "5"]
    pages.close()


def test_open_files_are_bounded_and_closed(tmp_path):
    files = storage.OpenFiles(limit=4)
    before = len(os.listdir("/proc/self/fd"))
    for i in range(20):
        (tmp_path / str(i)).write_text(str(i))
        with files.use(str(tmp_path / str(i))) as fd:
            assert os.pread(fd, 10, 0) == str(i).encode()
    assert len(files) == 4 and len(os.listdir("/proc/self/fd")) == before + 4
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_in_use_is_not_closed_under_its_reader(tmp_path):
    files = storage.OpenFiles(limit=1)
    for name in "ab":
        (tmp_path / name).write_text(name)
    with files.use(str(tmp_path / "a")) as fd:
        with files.use(str(tmp_path / "b")):
            assert os.pread(fd, 1, 0) == b"a"
        files.close()
        assert os.pread(fd, 1, 0) == b"a"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pread(fd, 1, 0)


def test_a_replaced_file_is_read_anew(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    assert storage.read_range(str(path), 0, 3) == b"old"
    (tmp_path / "y").write_text("new")
    os.replace(tmp_path / "y", path)
    assert storage.read_range(str(path), 0, 3) == b"new"


def test_threads_read_ranges_of_many_files_at_once(tmp_path):
    for i in range(100):  # more than are kept open
        (tmp_path / str(i)).write_bytes(bytes([i]) * 1000)
    wrong: list[int] = []

    def work() -> None:
        for k in range(500):
            i = (k * 37) % 100
            if storage.read_range(str(tmp_path / str(i)), 100, 50) != bytes([i]) * 50:
                wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    storage.close_files()


def test_a_forked_child_reads_on(tmp_path):
    (tmp_path / "x").write_bytes(b"hello")
    assert storage.read_range(str(tmp_path / "x"), 0, 5) == b"hello"
    pid = os.fork()
    if pid == 0:
        os._exit(0 if storage.read_range(str(tmp_path / "x"), 1, 3) == b"ell" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert storage.read_range(str(tmp_path / "x"), 0, 5) == b"hello"


# Retrying


class Answer(Exception):
    """An error as HTTP clients raise it."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"status {status}")


@pytest.mark.parametrize(
    "error",
    [Answer(503), Answer(500), Answer(429), TimeoutError(), ConnectionResetError(), OSError(errno.EBUSY, "slow down"),
     EOFError()],
)  # fmt: skip
def test_what_may_pass_is_tried_again_with_growing_pauses(error):
    pauses: list[float] = []
    calls = iter([error, error, error, b"data"])

    def call() -> bytes:
        answer = next(calls)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    assert remote.retried("s3://b/k", call, sleep=pauses.append) == b"data"
    assert len(pauses) == 3
    for i, pause in enumerate(pauses):
        assert remote.FIRST_DELAY_S * 2**i / 2 <= pause <= remote.FIRST_DELAY_S * 2**i


@pytest.mark.parametrize(
    ("error", "kind"),
    [(Answer(404), NotFound), (Answer(403), DataError), (FileNotFoundError(), NotFound), (PermissionError(), DataError),
     (Answer(501), DataError), (KeyError("x"), DataError)],
)  # fmt: skip
def test_what_stays_wrong_is_not_tried_again(error, kind):
    calls: list[int] = []

    def call() -> bytes:
        calls.append(1)
        raise error

    with pytest.raises(kind, match="s3://b/k"):
        remote.retried("s3://b/k", call, sleep=calls.append)
    assert calls == [1]


def test_a_store_that_stays_away_gives_a_clear_error_after_a_few_tries():
    pauses: list[float] = []

    def call() -> bytes:
        raise Answer(503)

    with pytest.raises(DataError, match=r"s3://b/k could not be read in 7 tries.*status 503"):
        remote.retried("s3://b/k", call, sleep=pauses.append)
    assert len(pauses) == remote.TRIES - 1 and sum(pauses) < 10


def test_the_status_is_found_below_the_error_that_a_client_made_of_it():
    outer = OSError(errno.EIO, "something")
    outer.__cause__ = Answer(503)
    assert remote.is_transient(outer)
    outer.__cause__ = Answer(404)
    assert not remote.is_transient(outer)


def test_reading_ahead_grows_in_sequence_and_starts_over_after_a_seek():
    url = "memory://ahead-test/x.bin"
    fsspec.filesystem("memory").pipe("/ahead-test/x.bin", DATA * 40)
    file = remote_file.RemoteFile(url, len(DATA) * 40)
    sizes = []
    for _ in range(5):
        file.seek(file._held_at + len(file._held))
        file.read(10)
        sizes.append(len(file._held))
    assert sizes == [remote_file.SMALLEST_AHEAD * 2**i for i in range(1, 6)]
    file.seek(1)
    file.read(10)
    assert len(file._held) == remote_file.SMALLEST_AHEAD
    fsspec.filesystem("memory").rm("/ahead-test", recursive=True)


def test_the_kernel_is_asked_for_ranges_that_are_not_in_memory(tmp_path, monkeypatch):
    path, ranges = tmp_path / "data", [(at, 1_000) for at in range(0, 4_000_000, 100_000)]
    path.write_bytes(bytes(range(256)) * 16_000)
    asked, advise = [], os.posix_fadvise
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if storage._in_memory(file.fileno(), [0]):
            pytest.skip("this file system keeps pages that nobody needs")
    monkeypatch.setattr(os, "posix_fadvise", lambda *call: (asked.append(call[1:]), advise(*call)))
    cold = list(storage.each_range(str(path), ranges))
    assert asked == [(at, 1_000, os.POSIX_FADV_WILLNEED) for at, _ in ranges]
    assert list(storage.each_range(str(path), ranges)) == cold == [path.read_bytes()[at : at + n] for at, n in ranges]
    storage.read_range(str(path), 0, 4_096_000)
    asked.clear()
    assert list(storage.each_range(str(path), ranges)) == cold and not asked
