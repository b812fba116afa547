"""The files of a dataset that is made of shards: every name found, in a fixed order, none of them held for long.

Covers: folders, globs and single files, local and remote; packing many names into an index on disk.
Does not cover: walking local folders (walk.py), labels and lists that are kept between runs (sample_files.py), reading
files (sources/storage/files.py).

Names go from the listing through a sorter that spills to disk into a mapped index. A million names of shards would be
100 MB of Python strings, in each process that reads them.
"""

from __future__ import annotations

import fnmatch
import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from penstock.core.errors import InvalidInput, NotFound
from penstock.sources.listing import remote_glob, remote_walk
from penstock.sources.listing.packed_names import IndexWriter, PathIndex
from penstock.sources.listing.sorter import NameSorter, chunks
from penstock.sources.listing.walk import Folder, below, split_glob, visible
from penstock.sources.storage import remote
from penstock.sources.storage.index_folder import cache_folder, clear_old, partial

HELD = 4096
"""Names that are simply a list; more are packed."""

FEW = 16384
"""Names that are Python objects at the same time: about 3 MB."""

Suffixes = tuple[str, ...] | None


def pack(names: Iterable[str]) -> Sequence[str]:
    """Names in the order given: a list of a few, an index on disk of many."""
    stream = iter(names)
    held = list(itertools.islice(stream, HELD + 1))
    if not held:
        raise InvalidInput("No path was given: the list is empty.")
    if len(held) <= HELD:
        return held
    folder = cache_folder()
    with partial(folder) as kept:
        path = kept.keep(f"listing-{write(IndexWriter(kept.file), itertools.chain([held], chunks(stream, FEW)))}")
    clear_old(folder)
    return PathIndex(path)


def write(writer: IndexWriter, parts: Iterable[list[str]]) -> str:
    """Names, some at a time, into an index; its digest."""
    for part in parts:
        writer.add(np.array([os.fsencode(name) for name in part], dtype=bytes))
    return writer.finish(root="")


def local_files(path: str, suffixes: Suffixes) -> Iterator[str]:
    """The files of a local folder (sorted), of a glob (sorted), or the one file there is."""
    if os.path.isdir(path):
        ending = f" ending in {' or '.join(suffixes)}" if suffixes else ""
        return _sorted(_below(path, suffixes), f"Folder {path!r} holds no file{ending}.")
    if os.path.exists(path):  # before globbing: a file may well be called "a[1].csv"
        return iter([path])
    if not glob.has_magic(path):
        raise NotFound(f"{path!r} does not exist.")
    return _sorted(_matching(path), f"No file matches {path!r}.")


def _sorted(names: Iterable[bytes], missing: str) -> Iterator[str]:
    sorter = NameSorter()
    for chunk in chunks(names, FEW):
        sorter.add(chunk)
    if not sorter.count:
        raise NotFound(missing)
    for part in sorter.sorted():
        for some in chunks(part, FEW):
            yield from map(os.fsdecode, some)


def _below(folder: str, suffixes: Suffixes) -> Iterator[bytes]:
    wanted = visible(suffixes)
    for _, found in below(os.fsencode(folder)):
        lead = os.path.join(found.path, b"")
        for name in found.names(wanted):
            yield lead + name


def _matching(pattern: str) -> Iterator[bytes]:
    folders, wanted = split_glob(pattern)
    for lead in map(os.fsencode, folders):
        for name in Folder(lead or b".").names(wanted):
            yield lead + name


def remote_files(url: str, suffixes: Suffixes) -> Iterator[str]:
    """The files of a remote folder (sorted), of a glob (sorted), or the URL itself."""
    if "::" in url:
        return iter([url])  # a chained URL names one file: its listing could not be written back as URLs
    head = url.partition("://")[0]
    fs, path = remote.filesystem(url)
    if glob.has_magic(path) and not (head.startswith("http") and "*" not in path):
        return _sorted(map(os.fsencode, _matching_urls(url)), f"No file matches {url!r}.")
    if head.startswith("http") or remote.retried(url, lambda: fs.isfile(path)):
        return iter([url])
    ending = f" ending in {' or '.join(suffixes)}" if suffixes else ""
    found = _walked(url.rstrip("/"), remote_walk.Visible(suffixes or ()))
    return _sorted(map(os.fsencode, found), f"{url} does not exist or holds no file{ending}.")


def _matching_urls(url: str) -> Iterator[str]:
    pattern = remote_glob.split(url)
    if pattern is not None:
        return _walked(*pattern)
    head, _, path = url.partition("://")
    bucket, slash, rest = path.partition("/")
    if not head.startswith("http") and glob.has_magic(bucket) and rest:
        return itertools.chain.from_iterable(
            _in_bucket(f"{head}://{name}{slash}{rest}") for name in _named(head, bucket)
        )
    return _globbed(url)


def _named(head: str, pattern: str) -> list[str]:
    """Buckets by a pattern of their names. `glob` of s3fs refuses to look for them."""
    url = f"{head}://{pattern}"
    fs = remote.filesystem(url)[0]
    there = remote.retried(url, lambda: fs.ls("", detail=False))
    return sorted(fnmatch.filter((name.strip("/") for name in there), pattern))


def _in_bucket(url: str) -> Iterator[str]:
    if glob.has_magic(url.partition("://")[2]):
        return _matching_urls(url)
    fs, path = remote.filesystem(url)
    return iter([url] if remote.retried(url, lambda: fs.isfile(path)) else [])


def _globbed(url: str) -> Iterator[str]:
    """What fsspec finds by itself, all at once: names of buckets are few."""
    head = url.partition("://")[0]
    fs, path = remote.filesystem(url)
    found = remote.retried(url, lambda: [p for p, info in fs.glob(path, detail=True).items() if info["type"] == "file"])
    fs.dircache.clear()  # fsspec keeps a dict a file for ever otherwise
    return (name if name.startswith(f"{head}://") else f"{head}://{name}" for name in found)


def _walked(root: str, choice: remote_walk.Choice) -> Iterator[str]:
    for names in remote_walk.walk(root, choice):
        for name in names:
            yield f"{root}/{name}"
