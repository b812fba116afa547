"""Globs over the pages that a web server shows for its folders: the right names, and a large page never held."""

from __future__ import annotations

import functools
import glob
import os
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import NotFound
from penstock.sources.listing import remote_page, remote_walk
from penstock.sources.listing.packed_names import PathIndex
from penstock.sources.listing.sample_files import FileRules, list_files
from penstock.sources.storage import files as storage
from penstock.sources.storage import remote

MANY = 60_000


@contextmanager
def serving(handler: Any) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Folder(SimpleHTTPRequestHandler):
    """Files of a folder, as `python -m http.server` shows them."""

    def log_message(self, *args: object) -> None:
        """Silent."""


class Page(BaseHTTPRequestHandler):
    """One page, sent in pieces; the first `breaks` answers end early."""

    body: Iterator[bytes] | list[bytes] = []
    breaks = 0
    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        broken = type(self).asked <= self.breaks
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(sum(map(len, self.body))))
        self.end_headers()
        for number, piece in enumerate(self.body):
            if broken and number == len(self.body) // 2:
                return
            self.wfile.write(piece)

    def log_message(self, *args: object) -> None:
        """Silent."""


def page(*pieces: bytes, breaks: int = 0) -> type[Page]:
    return type("OnePage", (Page,), {"body": list(pieces), "breaks": breaks, "asked": 0})


def anchors(start: int, stop: int) -> bytes:
    return b"".join(b'<li><a href="shard-%07d.tar">shard-%07d.tar</a></li>\n' % (i, i) for i in range(start, stop))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize(
    "pattern", ["*.csv", "*", "a/*.csv", "*/x.csv", "**/*.csv", "a*/deep/*", "[ab].csv*", "b[0-9]*.csv", "**/x.*"]
)
def test_a_glob_means_on_a_web_server_what_it_means_on_disk(tmp_path: Path, pattern: str) -> None:
    for name in ("b.csv", "a.csv", "b1.csv", "a/x.csv", "a/deep/x.csv", "a-b/x.csv", "a-b/deep/y.txt", "c d.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    there = [p for p in glob.glob(f"{tmp_path}/{pattern}", recursive=True) if not os.path.isdir(p)]
    assert there
    with serving(functools.partial(Folder, directory=str(tmp_path))) as url:
        wanted = sorted(f"{url}/{os.path.relpath(p, tmp_path).replace(' ', '%20')}" for p in there)
        found = storage.expand(f"{url}/{pattern}")
        assert list(found) == wanted
        assert storage.read_file(found[0]) == b"x"
        with pytest.raises(NotFound, match=r"No file matches 'http://.*/\*.parquet'"):
            storage.expand(f"{url}/*.parquet")
        with pytest.raises(NotFound, match="nowhere does not exist"):
            storage.expand(f"{url}/nowhere/*.csv")


def test_a_folder_of_a_web_server_gives_classes(tmp_path: Path) -> None:
    for name in ("dogs/2.jpg", "cats/b.jpg", "cats/a.jpg", "cats/.hidden.jpg", "dogs/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    with serving(functools.partial(Folder, directory=str(tmp_path))) as url:
        found = list_files(url, FileRules((".jpg",), by_folder=True, classes=None))
        assert list(found) == [f"{url}/cats/a.jpg", f"{url}/cats/b.jpg", f"{url}/dogs/2.jpg"]
        assert found.classes == ("cats", "dogs")


def test_only_what_lies_below_a_folder_is_taken_from_its_page() -> None:
    links = (
        b'<a href="../">up</a><a href="?C=M;O=A">by date</a><a href="b.csv"><img src="i.csv"></a><a href="b.csv">b</a>',
        b'<A class=x HREF=\'a.csv\'>a</A><a href="/data/c.csv">c</a><a href="/other/d.csv">d</a>',
        b'<a href="mailto:me@x.csv">me</a><a href="//elsewhere/data/e.csv">e</a><a href="f&amp;g.csv">f</a>',
        b'<a href="far/below/h.csv">h</a><a href="http://[x.csv">i</a><a href="#j.csv">j</a> http://HOST/data/k.csv ',
        b'<a href="' + b"l" * 5000 + b'.csv">l</a><a href="\xff\xfem.csv">m</a>',
    )
    handler = page()
    with serving(handler) as url:
        handler.body = [piece.replace(b"HOST", url.removeprefix("http://").encode()) for piece in links]
        names = [name.removeprefix(f"{url}/data/") for name in storage.expand(f"{url}/data/*.csv")]
        assert names == ["a.csv", "b.csv", "c.csv", "f&g.csv", "k.csv", "m.csv"]
        assert storage.expand(f"{url}/data/**/h.csv") == [f"{url}/data/far/below/h.csv"]


@pytest.mark.parametrize("nbytes", [1, 7, 64, 1000])
def test_links_are_whole_however_a_page_is_cut(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    monkeypatch.setattr(remote_page, "PIECE_NBYTES", nbytes)
    text = "".join(f'<p>see http://h/d/bare-{i}.bin or <a  href="é{i}.bin">é</a>' for i in range(30)).encode()
    with serving(page(text.replace(b"http://h", b"https://127.0.0.1"))) as url:
        port = url.rpartition(":")[2]
        names = storage.expand(f"{url}/d/*.bin")
        assert names == sorted(f"{url}/d/é{i}.bin" for i in range(30))
    with serving(page()) as url:
        assert port != url  # the bare links of another port are no files of this server


def test_text_without_any_tag_is_not_held_for_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_page, "LONGEST_LINK", 100)
    held = list(remote_page._found(["<a href='" + "x" * 300, "y" * 300, " http://h/a.bin and ", "<a href='b.bin'>"]))
    assert held == ["http://h/a.bin", "b.bin"]


def test_a_large_page_is_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_page, "PIECE_NBYTES", 1 << 16)
    monkeypatch.setattr(remote_walk, "WEB_SORT_NBYTES", 500_000)
    pieces = [anchors(start, start + 1000) for start in reversed(range(0, MANY, 1000))]
    nbytes = sum(map(len, pieces))
    with serving(page(*pieces, breaks=1)) as url:
        found = storage.expand(f"{url}/data/*.tar")  # also imports, and meets the answer that breaks off
        tracemalloc.start()
        try:
            count = sum(map(len, remote_walk.walk(f"{url}/data", remote_walk.Visible((".tar",)))))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert isinstance(found, PathIndex) and len(found) == count == MANY
        assert found[0] == f"{url}/data/shard-0000000.tar" and found[-1] == f"{url}/data/shard-{MANY - 1:07d}.tar"
        assert peak < nbytes  # the text, its links, a set and dicts of them took 14 times as much
        assert not remote.filesystem(url)[0].dircache


def test_a_page_that_breaks_off_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_DELAY_S", 0.001)
    handler = page(*[anchors(start, start + 100) for start in range(0, 2000, 100)], breaks=3)
    with serving(handler) as url:
        assert len(storage.expand(f"{url}/*.tar")) == 2000
        assert handler.asked == 4
