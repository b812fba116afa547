"""Listing remote folders and globs of millions of files.

Covers: names below a remote folder, folder by folder, each sorted, a few thousand at a time; S3 is asked page by page,
and the folders to come are listed while the one at hand is used. A glob goes only where it may match.
Does not cover: keeping the names (sample_files.py, shard_files.py), patterns (remote_glob.py).

Nothing here holds more than `AHEAD` folders of `PAGES` pages. The page that a web server shows is read in pieces
(remote_page.py) and its names are sorted packed, on disk if they are many. Other stores are asked through
fsspec, which answers with a whole folder at once: there, one folder is the unit.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.sources.listing.remote_page import links
from penstock.sources.listing.sorter import NameSorter, chunks
from penstock.sources.storage.remote import filesystem, retried

AHEAD = 16
"""Folders listed at the same time: at 30 ms a page, 16 give half a million names a second."""

PAGES = 8
"""Pages of a folder that are read ahead; the rest of it comes when it is its turn."""

PAGE_KEYS = 1000
"""Names a page: S3 gives no more."""

WEB_NAMES = 4096
"""Names of a web page that are Python objects at the same time."""

WEB_SORT_NBYTES = 8_000_000
"""Names of a web page that are sorted in memory; more go through a temporary file."""


@dataclass
class Page:
    """Part of a folder: names of files and of folders, and where the next part begins (None: this was the last)."""

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    token: str | None = None
    linked: list[str] = field(default_factory=list)
    """Files further below that a web page links though it does not link their folders: chosen already."""


class Choice(Protocol):
    """Which names of one folder are wanted."""

    @property
    def start(self) -> str:
        """What all wanted names begin with: a store may leave out the others."""

    def files(self, names: list[str]) -> list[str]: ...

    def folder(self, name: str) -> Choice | None:
        """What is wanted in a folder below; None if nothing."""


@dataclass(frozen=True)
class Visible:
    """All names but hidden ones, with one of the suffixes (none: with any)."""

    suffixes: tuple[str, ...]
    start = ""

    def files(self, names: list[str]) -> list[str]:
        endings = self.suffixes or ("",)
        return [n for n in names if n[0] not in "._" and n.lower().endswith(endings)]

    def folder(self, name: str) -> Visible | None:
        return None if name[0] in "._" else self


@dataclass(frozen=True)
class Place:
    """A folder below the URL that is walked, and what is wanted in it."""

    url: str
    folder: str
    choice: Choice


def walk(url: str, choice: Choice) -> Iterator[list[str]]:
    """Wanted names below a remote folder, relative to it, in parts."""
    stack, ahead = [Place(url, "", choice)], dict[str, Future[list[Page]]]()
    web = url.startswith(("http://", "https://"))
    pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="penstock-list")
    try:
        while stack:
            for place in () if web else stack[: -AHEAD - 1 : -1]:
                if place.folder not in ahead:
                    ahead[place.folder] = pool.submit(_head, place)
            place = stack.pop()
            prefix = f"{place.folder}/" if place.folder else ""
            below: dict[str, Choice] = {}
            for page in _web_pages(place) if web else _all(place, ahead.pop(place.folder).result()):
                for name in page.folders:
                    if (wanted := place.choice.folder(name)) is not None:
                        below[prefix + name] = wanted
                yield [prefix + name for name in (*place.choice.files(page.files), *page.linked)]
            stack += [Place(url, folder, below[folder]) for folder in sorted(below, reverse=True)]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _head(place: Place) -> list[Page]:
    """The first pages of a folder."""
    pages = [_page(place, None)]
    while pages[-1].token is not None and len(pages) < PAGES:
        pages.append(_page(place, pages[-1].token))
    return pages


def _all(place: Place, head: list[Page]) -> Iterator[Page]:
    yield from head
    token = head[-1].token
    while token is not None:
        page = _page(place, token)
        token = page.token
        yield page


def _web_pages(place: Place) -> Iterator[Page]:
    """What a web server's page links, sorted and each once, a few thousand at a time. Folders come first."""
    sorter, folders = NameSorter(WEB_SORT_NBYTES), set[str]()
    for some in chunks(links(f"{place.url}/{place.folder}".rstrip("/")), WEB_NAMES):
        folders.update(name[:-1] for name in some if name.endswith("/") and name.count("/") == 1)
        sorter.add([os.fsencode(name) for name in some if not name.endswith("/")])
    yield Page(folders=sorted(folders))
    names = (os.fsdecode(name) for part in sorter.sorted() for name in part)
    for some in chunks((name for name, _ in itertools.groupby(names)), WEB_NAMES):
        further = [name for name in some if "/" in name and name.partition("/")[0] not in folders]
        linked = [name for name in further if _wanted_below(place.choice, name)]
        yield Page([name for name in some if "/" not in name], linked=linked)


def _wanted_below(choice: Choice, name: str) -> bool:
    *folders, last = name.split("/")
    below: Choice | None = choice
    for folder in folders:
        below = below.folder(folder) if below is not None and folder else None
    return below is not None and bool(below.files([last]))


def _page(place: Place, token: str | None) -> Page:
    fs, top = filesystem(place.url)
    where = f"{top.rstrip('/')}/{place.folder}".rstrip("/")
    start = place.choice.start

    def ask() -> Page:
        return _s3_page(fs, where, start, token) if hasattr(fs, "call_s3") else _whole_folder(fs, where)

    return retried(f"{place.url}/{place.folder}", ask)


def _s3_page(fs: Any, where: str, start: str, token: str | None) -> Page:
    """One answer of S3, which sorts by the bytes of names. s3fs itself would keep a dict for every name."""
    bucket, _, key = where.partition("/")
    prefix = f"{key}/" if key else ""
    more = {"ContinuationToken": token} if token else {}
    wanted = prefix + start
    answer = fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=wanted, Delimiter="/", MaxKeys=PAGE_KEYS, **more)
    return Page(
        [name for entry in answer.get("Contents", ()) if (name := entry["Key"][len(prefix) :])],
        [
            entry["Prefix"][len(prefix) : -1]
            for entry in answer.get("CommonPrefixes", ())
            if entry["Prefix"] != f"{prefix}/"
        ],
        answer.get("NextContinuationToken") if answer.get("IsTruncated") else None,
    )


def _whole_folder(fs: Any, where: str) -> Page:
    """What fsspec gives: all entries of a folder."""
    page = Page()
    for entry in fs.ls(where, detail=True):
        name = entry["name"].rstrip("/")
        if name != where.rstrip("/") and (last := name.rpartition("/")[2]):
            (page.files if entry["type"] == "file" else page.folders).append(last)
    fs.invalidate_cache(where)  # fsspec keeps a dict a file for ever otherwise
    page.files.sort()
    return page
