"""A real S3 server behind a gate that is slow and fails: reads come out right, in parallel, or with a clear error."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from s3_gate import Gate, gated

from penstock.core.errors import DataError, NotFound
from penstock.sources.listing import remote_walk
from penstock.sources.listing.sample_files import FileRules, list_files
from penstock.sources.storage import files as storage
from penstock.sources.storage import remote

DATA = np.random.default_rng(0).integers(0, 256, 3_000_000, dtype=np.uint8).tobytes()


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    with gated() as gate:
        import s3fs

        fill(s3fs.S3FileSystem())
        yield gate


def fill(fs) -> None:
    fs.mkdir("bucket")
    fs.pipe("bucket/data.bin", DATA)
    for i in range(6):
        fs.pipe(f"bucket/shards/part-{i}.bin", DATA[i * 1000 : (i + 1) * 1000])


@pytest.fixture(autouse=True)
def calm(gate):
    gate.together, gate.failing, gate.requests, gate.most_inside = 0, [], 0, 0
    yield
    gate.together, gate.failing = 0, []


URL = "s3://bucket/data.bin"


def test_reads_and_listing(gate):
    assert storage.file_size(URL) == len(DATA)
    assert storage.read_range(URL, 1_234_567, 1000) == DATA[1_234_567:1_235_567]
    assert storage.read_range(URL, len(DATA) - 5, 100) == DATA[-5:]
    assert storage.read_range(URL, len(DATA) + 5, 100) == b""
    assert storage.read_file(URL) == DATA
    assert storage.expand("s3://bucket/shards") == [f"s3://bucket/shards/part-{i}.bin" for i in range(6)]
    assert storage.expand("s3://bucket/shards/*-[135].bin") == [f"s3://bucket/shards/part-{i}.bin" for i in (1, 3, 5)]


def test_large_folders_are_listed_page_by_page_and_ahead(gate, monkeypatch):
    import s3fs

    fs = s3fs.S3FileSystem()
    names = [f"{folder}{i:03}.jpg" for folder in ("", "a/", "a-b/", "b/deep/er/", "_hidden/") for i in range(53)]
    for name in [*names, "a/.hidden.jpg", "a/note.txt"]:
        fs.pipe(f"bucket/many/{name}", b"x")
    monkeypatch.setattr(remote_walk, "PAGE_KEYS", 10)
    monkeypatch.setattr(remote_walk, "PAGES", 2)
    gate.requests, gate.failing = 0, ["503"] * 3
    parts = list(remote_walk.walk("s3://bucket/many", remote_walk.Visible((".jpg",))))
    found = [name for part in parts for name in part]
    assert sorted(found) == sorted(name for name in names if name[0] != "_")
    assert max(map(len, parts)) <= 10 and found == [name for name in names if name[0] != "_"]
    assert gate.requests <= 3 + 7 + 6 + 6 + 1 + 1 + 6 + 3  # pages of the folders, and the three that failed


def test_globs_are_listed_page_by_page_and_only_where_they_may_match(gate, monkeypatch):
    import s3fs

    fs = s3fs.S3FileSystem()
    for folder in ("train-a", "train-b", "test"):
        for i in range(25):
            fs.pipe(f"bucket/globbed/{folder}/{'xy'[i % 2]}{i:02}.jpg", b"x")
    monkeypatch.setattr(remote_walk, "PAGE_KEYS", 5)
    gate.seen.clear()
    index = list_files("s3://bucket/globbed/train-*/x*.jpg", FileRules((".jpg",)))
    expected = [f"s3://bucket/globbed/train-{c}/x{i:02}.jpg" for c in "ab" for i in range(0, 25, 2)]
    assert [index.path(row) for row in range(len(index))] == expected and index.classes == ("train-a", "train-b")
    assert len(gate.seen) == 1 + 3 + 3 and not [request for request in gate.seen if "test" in request]


def test_wildcards_in_the_name_of_a_bucket(gate, monkeypatch):
    import s3fs

    fs = s3fs.S3FileSystem()
    for bucket in ("site-a", "site-b", "other"):
        fs.mkdir(bucket)
        for name in ("x1.bin", "x2.bin", "y/x1.bin"):
            fs.pipe(f"{bucket}/day/{name}", b"x")
    monkeypatch.setattr(remote_walk, "PAGE_KEYS", 1)
    in_both = [f"s3://site-{c}/day/x{i}.bin" for c in "ab" for i in (1, 2)]
    assert storage.expand("s3://site-*/day/*.bin") == in_both
    assert storage.expand("s3://site-?/day/x1.bin") == in_both[::2]
    with pytest.raises(NotFound, match="No file matches"):
        storage.expand("s3://nowhere-*/day/*.bin")


def test_the_stamp_follows_the_object(gate):
    import s3fs

    fs = s3fs.S3FileSystem()
    fs.pipe("bucket/changing", b"one")
    first = storage.stamp("s3://bucket/changing")
    assert storage.stamp("s3://bucket/changing") == first
    fs.pipe("bucket/changing", b"two")
    assert storage.stamp("s3://bucket/changing") != first


@pytest.mark.parametrize("failure", ["503", "500", "429", "reset", "cut"])
def test_failures_that_pass_are_not_seen(gate, failure):
    storage.read_range(URL, 0, 1)
    gate.requests = 0
    gate.failing = [failure] * 2
    assert storage.read_range(URL, 500_000, 100_000) == DATA[500_000:600_000]
    assert gate.requests == 3


def test_a_missing_object_is_asked_for_once(gate):
    storage.read_range(URL, 0, 1)
    gate.requests = 0
    with pytest.raises(NotFound, match=r"s3://bucket/missing does not exist"):
        storage.read_range("s3://bucket/missing", 0, 10)
    assert gate.requests == 1


def test_a_refusal_is_not_repeated(gate):
    storage.read_range(URL, 0, 1)
    gate.requests, gate.failing = 0, ["403"] * 20
    with pytest.raises(DataError, match=r"s3://bucket/data\.bin cannot be read: access denied"):
        storage.read_range(URL, 0, 10)
    assert gate.requests == 1


def test_an_outage_ends_in_an_error_that_names_the_url(gate, monkeypatch):
    monkeypatch.setattr(remote, "FIRST_DELAY_S", 0.001)
    gate.failing = ["503"] * 100
    with pytest.raises(DataError, match=rf"{URL} could not be read in {remote.TRIES} tries"):
        storage.read_range(URL, 0, 10)
    assert gate.requests == remote.TRIES


def test_ranges_of_one_call_are_in_flight_together(gate):
    storage.read_range(URL, 0, 1)
    gate.together, gate.most_inside, gate.requests = 8, 0, 0
    ranges = [(i * 200_000, 1000) for i in range(12)] + [(5000, 100)]
    assert storage.read_ranges(URL, ranges) == [DATA[o : o + n] for o, n in ranges]
    assert gate.requests == 12, "the near range should have shared a request"
    assert gate.most_inside >= 8


def test_many_threads_share_one_client(gate):
    gate.together, gate.most_inside = 12, 0
    gate.failing = ["503", "reset", "cut"] * 4
    places = [i * 29_000 for i in range(100)]
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda place: storage.read_range(URL, place, 5000), places))
    assert found == [DATA[place : place + 5000] for place in places]
    assert gate.most_inside >= 12


def test_a_file_object_reads_all_with_few_requests(gate):
    with storage.open_file(URL) as file:
        gate.requests = 0
        gate.failing = ["503", "cut"]
        assert b"".join(iter(lambda: file.read(10_000), b"")) == DATA
        assert gate.requests <= 12
        file.seek(2_000_000)
        assert file.read(10) == DATA[2_000_000:2_000_010]


def test_a_forked_child_connects_for_itself(gate):
    assert storage.read_range(URL, 0, 10) == DATA[:10]
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if storage.read_range(URL, 5, 10) == DATA[5:15] else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert storage.read_range(URL, 0, 10) == DATA[:10]


def test_images_in_a_bucket(gate, tmp_path, monkeypatch):
    import cv2
    import s3fs

    from penstock.sources.images.decode import ImageOptions
    from penstock.sources.images.source import SUFFIXES, ImageSource
    from penstock.sources.listing.sample_files import FileRules, list_files

    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    fs = s3fs.S3FileSystem()
    for i in range(8):
        data = cv2.imencode(".png", np.full((20, 20, 3), 30 * i, np.uint8))[1].tobytes()
        fs.pipe(f"bucket/train/{'cat' if i < 4 else 'dog'}/{i}.png", data)
    images = ImageSource(list_files("s3://bucket/train", FileRules(SUFFIXES)), ImageOptions(size=(8, 8)))
    gate.together, gate.most_inside, gate.failing = 3, 0, ["503", "reset"]
    block = images.decode(images.fetch(np.array([6, 0, 3, 4, 1])))
    assert block.columns["label"].tolist() == [1, 0, 0, 1, 0] and images.classes == ("cat", "dog")
    assert [int(image.mean()) for image in block.columns["image"]] == [180, 0, 90, 120, 30]
    assert gate.most_inside >= 3


class PlainFile(BaseHTTPRequestHandler):
    """A web server that knows no ranges."""

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.send_response(200 if self.path == "/x" else 404)
        self.send_header("Content-Length", "1000")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(DATA[:1000])


class Index(BaseHTTPRequestHandler):
    """A page of links, as web servers show a folder; one of them leads out of it."""

    def do_GET(self) -> None:
        page = b"".join(b'<a href="%s">x</a>' % name for name in (b"b.bin", b"a.bin", b"c.txt", b"/out/d.bin"))
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *args: object) -> None:
        """Silent."""


def test_a_glob_over_a_web_page_of_links():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/data"
    try:
        assert storage.expand(f"{url}/*.bin") == [f"{url}/a.bin", f"{url}/b.bin"]
        assert not remote.filesystem(url)[0].dircache
    finally:
        server.shutdown()
        server.server_close()


def test_a_web_server_without_ranges_is_read_right():
    server = ThreadingHTTPServer(("127.0.0.1", 0), PlainFile)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/x"
    try:
        assert storage.read_range(url, 100, 50) == DATA[100:150]
        assert storage.read_file(url) == DATA[:1000] and storage.file_size(url) == 1000
        with pytest.raises(NotFound):
            storage.read_range(url + "y", 0, 5)
    finally:
        server.shutdown()
        server.server_close()
