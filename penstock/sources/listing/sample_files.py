"""Finding a dataset's files, however many there are, in bounded memory and always in the same order.

Covers: folders, globs, lists and CSV manifests, local and remote, into a packed index.
Does not cover: walking local folders (walk.py), the index itself (packed_names.py), shards
(shard_files.py).
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.errors import InvalidInput, NotFound
from penstock.sources.listing import remote_walk
from penstock.sources.listing.packed_names import SMALL_NBYTES, FolderTimes, IndexWriter, PathIndex, open_if_current
from penstock.sources.listing.remote_glob import Glob, split
from penstock.sources.listing.shared import listed_once
from penstock.sources.listing.sorter import NameSorter, chunks
from penstock.sources.listing.walk import Folder, Identity, Wanted, below, split_glob, visible
from penstock.sources.storage import files as storage
from penstock.sources.storage.index_folder import cache_folder, clear_old, partial, written


@dataclass(frozen=True)
class FileRules:
    """Which files count, and how they are labelled. `classes` fixes the numbering; None takes what is found."""

    suffixes: tuple[str, ...]
    by_folder: bool = True
    classes: tuple[str, ...] | None = None


def list_files(paths: storage.Paths, rules: FileRules) -> PathIndex:
    """The index of a folder, a glob, a URL or a list of files; opened if kept from before and still true."""
    if not isinstance(paths, (str, os.PathLike)):
        return list_named(paths, rules)
    text = os.fspath(paths)
    if storage.is_remote(text):
        return _list_remote(text, rules)
    path = os.path.abspath(storage.local_path(text))
    if os.path.isdir(path):
        return _kept(("folder", path), rules, lambda writer: _scan_folder(path, rules, writer))
    if os.path.exists(path):
        return list_named([path], rules)
    if not glob.has_magic(path):
        raise NotFound(f"{text!r} does not exist.")
    spelled, wanted = split_glob(path)
    folders = sorted(set(map(os.path.normpath, spelled)))
    key = ("glob", path, *folders)
    return _kept(key, rules, lambda writer: _scan_glob(path, folders, wanted, rules, writer))


def _kept(key: tuple[str, ...], rules: FileRules, scan: Callable[[IndexWriter], None]) -> PathIndex:
    folder = cache_folder()
    name = hashlib.blake2b(repr((key, rules)).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    path = os.path.join(folder, f"listing-{name}")
    index = open_if_current(path)
    if index is None:
        with written(path) as file:
            scan(IndexWriter(file))
        clear_old(folder)
        index = PathIndex(path)
    return index


# Folders and globs ---------------------------------------------------------------------------------------------------


def _scan_folder(root: str, rules: FileRules, writer: IndexWriter) -> None:
    listing = _Listing(root, visible(rules.suffixes), writer)
    top = Folder(os.fsencode(root))
    names = listing.read(b"", top)
    folders = sorted(top.folders)
    by_class = rules.by_folder and bool(folders)
    if by_class and names.count:
        raise InvalidInput(
            f"{root!r} holds {names.count} images beside its class folders. Move them into a class folder, or pass "
            f"labels=None to read all images without labels."
        )
    found = tuple(os.fsdecode(name) for name in folders) if by_class else ()
    classes = _classes(found, rules, root)
    listing.write(b"", names)
    for folder in folders:
        label = classes.index(os.fsdecode(folder)) if by_class else None
        listing.write_below(folder, (top.identity,), label)
    _require(writer.rows, f"Folder {root!r}", rules)
    writer.finish(root=root, classes=classes if by_class else (), watch=listing.watch)


class _Listing:
    """Writes folders below a root to an index, the names of each sorted, and remembers their times."""

    def __init__(self, root: str, wanted: Wanted, writer: IndexWriter) -> None:
        self.root, self.wanted, self.writer = os.fsencode(root), wanted, writer
        self._folders: list[bytes] = []
        self._mtimes_ns: list[int] = []

    @property
    def watch(self) -> FolderTimes:
        """The folders that were read, by their path below the root, and their times."""
        return FolderTimes(self._folders, self._mtimes_ns)

    def read(self, key: bytes, folder: Folder) -> NameSorter:
        """A folder's wanted names."""
        names = NameSorter()
        for some in chunks(folder.names(self.wanted)):
            names.add(some)
        self._folders.append(key)
        self._mtimes_ns.append(folder.mtime_ns)
        return names

    def write(self, key: bytes, names: NameSorter, label: int | None = None) -> None:
        """Append a folder's names to the index."""
        for part in names.sorted():
            if key:
                part = np.strings.add(np.bytes_(key + b"/"), part)
            self.writer.add(part, None if label is None else np.full(len(part), label, np.int32))

    def write_below(self, top: bytes, above: tuple[Identity, ...], label: int | None) -> None:
        """Append a folder and everything below it."""
        for key, folder in below(self.root, top, above):
            self.write(key, self.read(key, folder), label)


def _scan_glob(path: str, folders: list[str], wanted: Wanted, rules: FileRules, writer: IndexWriter) -> None:
    root = os.path.dirname(path)  # the folder above the first wildcard
    while glob.has_magic(root):
        root = os.path.dirname(root)
    listing = _Listing(root, wanted, writer)
    codes: dict[str, int] = {}
    counts: list[tuple[int, int]] = []
    for folder in folders:
        relative = os.path.relpath(folder, root)
        key = b"" if relative == "." else os.fsencode(relative)
        names = listing.read(key, Folder(os.fsencode(folder)))
        if names.count:  # a folder that is only passed through, as by "**", is no class
            counts.append((codes.setdefault(os.path.basename(folder), len(codes)), names.count))
            listing.write(key, names)
    if not writer.rows:
        raise NotFound(f"No file matches {path!r}.")
    if not rules.by_folder or len(codes) == 1:  # one folder for all is a place, not a class
        writer.finish(root=root, watch=listing.watch)
        return
    classes = _classes(tuple(sorted(codes)), rules, path)
    order = np.array([classes.index(name) for name in codes], np.int32)
    labels = np.repeat(order[[code for code, _ in counts]], [count for _, count in counts])
    writer.finish(root=root, classes=classes, watch=listing.watch, labels=labels)


def _classes(found: tuple[str, ...], rules: FileRules, where: str) -> tuple[str, ...]:
    if rules.classes is None or not found:
        return found
    unknown = [name for name in found if name not in rules.classes]
    if unknown:
        raise InvalidInput(
            f"{where!r} has the class {unknown[0]!r}, which is not among the {len(rules.classes)} given."
        )
    return rules.classes


def _require(rows: int, what: str, rules: FileRules) -> None:
    if not rows:
        ending = f" ending in {', '.join(rules.suffixes)}" if rules.suffixes else ""
        raise NotFound(f"{what} holds no file{ending}.")


# Lists and remote folders --------------------------------------------------------------------------------------------


def list_named(paths: Sequence[storage.PathLike], rules: FileRules) -> PathIndex:
    """The index of files that were named, in the order given; the folder a file is in gives its class."""
    names = FoundNames(chunks(_named(paths, rules)), root="", where="The list")
    return _keep(lambda writer: _write_rows(writer, names, rules))


def _named(paths: Iterable[storage.PathLike], rules: FileRules) -> Iterator[str]:
    for path in paths:
        text = os.fspath(path)
        if text.lower().endswith(rules.suffixes) and not glob.has_magic(text):
            yield _absolute(text)  # files are not looked at one by one
        else:
            yield from map(_absolute, storage.found([text], rules.suffixes))


def _absolute(path: str) -> str:
    return path if storage.is_remote(path) else os.path.abspath(storage.local_path(path))


@dataclass(frozen=True)
class FoundNames:
    """Names as they are found, below a root, and what else tells the class of one."""

    parts: Iterator[list[str]]
    root: str
    where: str
    class_of: Callable[[str], str] | None = None


def _list_remote(url: str, rules: FileRules) -> PathIndex:
    def write(writer: IndexWriter) -> str:
        return _write_rows(writer, _remote_names(url, rules), rules)

    shared = listed_once(f"{url} {rules}", write)
    return _keep(write) if shared is None else shared


def _remote_names(url: str, rules: FileRules) -> FoundNames:
    pattern = split(url)
    if pattern is not None:
        root = pattern[0]
        return FoundNames(_matching(url, *pattern), root, url, lambda name: _parent(f"{root}/{name}"))
    if glob.has_magic(url.partition("://")[2]) or url.lower().endswith(rules.suffixes):
        return FoundNames(chunks(storage.found([url])), "", url)
    root = url.rstrip("/")
    return FoundNames(remote_walk.walk(root, remote_walk.Visible(rules.suffixes)), root, url)


def _matching(url: str, root: str, choice: Glob) -> Iterator[list[str]]:
    found = False
    for names in remote_walk.walk(root, choice):
        found = found or bool(names)
        yield names
    if not found:
        raise NotFound(f"No file matches {url!r}.")


def _keep(write: Callable[[IndexWriter], str]) -> PathIndex:
    """What `write` writes: in memory if it is small, else in a file named for what is in it."""
    with partial(cache_folder()) as kept:
        digest = write(IndexWriter(kept.file))
        if kept.file.tell() <= SMALL_NBYTES:
            return PathIndex(kept.contents())
        return PathIndex(kept.keep(f"listing-{digest}"))


def _write_rows(writer: IndexWriter, names: FoundNames, rules: FileRules) -> str:
    """Names in the order given, with the class of each: what `class_of` says of it; else the top folder below `root`,
    or the folder that holds it where there is no root.

    Names go to a file as they come; in memory there are a chunk of them and four bytes a row for its class.
    """
    codes: dict[str, int] = {}
    labels: list[np.ndarray] = []
    for chunk in names.parts:
        if not chunk:
            continue
        writer.add(np.array([os.fsencode(name) for name in chunk], dtype=bytes))
        tops = map(names.class_of or (_top if names.root else _parent), chunk)
        labels.append(np.array([codes.setdefault(top, len(codes)) for top in tops], np.int32))
    _require(writer.rows, names.where, rules)
    # One folder for all is a place, not a class; below a root, files of one subfolder do have a class.
    below = bool(names.root) and names.class_of is None
    by_class = rules.by_folder and (len(codes) > 1 or (below and "" not in codes))
    if by_class and below and "" in codes:
        raise InvalidInput(
            f"{names.where!r} holds images beside its class folders. Pass labels=None to read all without labels."
        )
    classes = _classes(tuple(sorted(codes)), rules, names.where) if by_class else ()
    joined = None
    if by_class:
        joined = np.array([classes.index(name) for name in codes], np.int32)[np.concatenate(labels)]
    return writer.finish(root=names.root, classes=classes, labels=joined)


def _top(name: str) -> str:
    return name.split("/", 1)[0] if "/" in name else ""


def _parent(path: str) -> str:
    return os.path.basename(os.path.dirname(path))
