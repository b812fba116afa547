"""Every reader of remote files reads all of them through the cache that it is given, and through no other."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import penstock as ps
from penstock.core.byte_cache import CachedUrl, Fetch, ReadsThrough, below, cache_of
from penstock.core.source import PieceSource, RowSource, Source
from penstock.order.split import Rule, UnitSide, split
from tests.contract.readers import READERS, Reader

ROWS = 12
OF_FILES = [reader for reader in READERS if reader.public.startswith("read_") and reader.public != "read_sql"]


class Whole:
    """A cache that keeps whole files and asks for each once."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.facts: dict[str, dict[str, Any]] = {}

    def info(self, url: str, ask: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        if url not in self.facts:
            self.facts[url] = ask(url)
        return self.facts[url]

    def whole(self, url: str, fetch: Callable[[], bytes], limit_nbytes: int | None) -> bytes:
        if url not in self.files:
            self.files[url] = fetch()
        return self.files[url]

    def kept_whole(self, url: str) -> bytes | None:
        return self.files.get(url)

    def has_range(self, url: str, tag: str, span: tuple[int, int]) -> bool:
        return url in self.files

    def range(self, url: str, tag: str, span: tuple[int, int], fetch: Fetch) -> bytes:
        if url not in self.files:
            self.files[url] = fetch(url, 0, 1 << 30)
        return self.files[url][span[0] : span[0] + span[1]]


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of fsspec's store in memory, gone when the test is over."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "indexes"))
    yield "memory://far"
    remove_all()


def remove_all() -> None:
    fs = fsspec.filesystem("memory")
    if fs.exists("/far"):
        fs.rm("/far", recursive=True)


def rows(source: Source) -> list[Any]:
    if isinstance(source, RowSource):
        blocks = [source.decode(source.fetch(np.arange(source.num_rows())))]
    else:
        blocks = [block for unit in range(source.num_units()) for block in source.open(unit)]
        if isinstance(source, PieceSource) and source.num_pieces():
            blocks.append(source.read_pieces(np.arange(source.num_pieces())))
    return [str([list(column) for column in block.columns.values()]) for block in blocks]


def read(reader: Reader, folder: Path, url: str) -> ps.Dataset:
    """The reader's files, put into the store and read from there."""
    reader.write(folder, ROWS, ())
    fsspec.filesystem("memory").put(f"{folder}/", "/far/", recursive=True)
    positional, options = reader.arguments(folder)
    ds: ps.Dataset = getattr(ps, reader.public)(*(str(p).replace(str(folder), url) for p in positional), **options)
    return ds


@pytest.mark.parametrize("reader", OF_FILES, ids=lambda reader: reader.name)
def test_what_was_read_once_is_not_asked_for_again(reader: Reader, tmp_path: Path, remote: str) -> None:
    (tmp_path / "files").mkdir()
    source = read(reader, tmp_path / "files", remote).node.step.source
    assert isinstance(source, ReadsThrough) and source.remote
    cache, expected = Whole(), rows(source)
    through = source.through(cache)
    assert rows(through) == expected and through.fingerprint() == source.fingerprint() and cache.files
    remove_all()
    assert rows(source.through(cache)) == expected
    assert source.through(cache).schema() == source.schema()


def test_a_side_of_a_split_is_read_through_the_cache_too(tmp_path: Path, remote: str) -> None:
    (tmp_path / "files").mkdir()
    reader = next(reader for reader in OF_FILES if reader.name == "csv")
    source = read(reader, tmp_path / "files", remote).node.step.source
    side = UnitSide(source, Rule(1, 3), "train")
    assert side.num_pieces() == 0  # found out now, of the files as they are
    cache = Whole()
    assert rows(side.through(cache)) == rows(split(source, 1 / 3, "train")) and cache.files


def test_a_url_carries_its_cache_below_and_leaves_it_in_its_process() -> None:
    cache = Whole()
    url = CachedUrl("memory://far/a", cache)
    assert cache_of(url) is cache and cache_of(below(url, "b", "c")) is cache and below(url, "b") == "memory://far/a/b"
    assert url == "memory://far/a" and hash(url) == hash("memory://far/a")
    again = pickle.loads(pickle.dumps(url))
    assert type(again) is str and again == url and cache_of(again) is None
