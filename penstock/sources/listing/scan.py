"""Finding a dataset's files, however many there are, in bounded memory and always in the same order.

Covers: folders, globs, lists and CSV manifests, local and remote, into a packed index.
Does not cover: the index itself (packed_names.py), lists of shard files (find.py).
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.errors import InvalidInput, NotFound
from penstock.sources.listing import remote_walk
from penstock.sources.listing.packed_names import SMALL_NBYTES, FolderTimes, IndexWriter, PathIndex, open_if_current
from penstock.sources.listing.remote_glob import Glob, split
from penstock.sources.listing.sorter import CHUNK, NameSorter, chunks
from penstock.sources.storage import files as storage
from penstock.sources.storage.index_folder import cache_folder, clear_old, partial, written

_HIDDEN = b"._"


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
    root, folders, pattern = _glob_folders(path)
    key = ("glob", path, *folders)
    return _kept(key, rules, lambda writer: _scan_glob(path, (root, folders, pattern), rules, writer))


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
    walk = _Walk(root, _name_filter(rules.suffixes), writer, tuple(map(os.fsencode, rules.suffixes)))
    names, folders, status = walk.read(b"")
    by_class = rules.by_folder and bool(folders)
    if by_class and names.count:
        raise InvalidInput(
            f"{root!r} holds {names.count} images beside its class folders. Move them into a class folder, or pass "
            f"labels=None to read all images without labels."
        )
    found = tuple(os.fsdecode(name) for name in folders) if by_class else ()
    classes = _classes(found, rules, root)
    walk.write(b"", names, None)
    for folder in folders:
        walk.down(folder, (status,), classes.index(os.fsdecode(folder)) if by_class else None)
    _require(writer.rows, f"Folder {root!r}", rules)
    writer.finish(root=root, classes=classes if by_class else (), watch=FolderTimes(walk.folders, walk.mtimes_ns))


class _Walk:
    """Reads folders below a root, each sorted, and remembers their times.

    Names that end in one of `endings` and are not hidden are `wanted` for sure, and that is cheaper to find out.
    """

    def __init__(
        self, root: str, wanted: re.Pattern[bytes], writer: IndexWriter, endings: tuple[bytes, ...] = ()
    ) -> None:
        self.root = os.fsencode(root)
        self.wanted, self.endings = wanted, endings
        self.writer = writer
        self.folders: list[bytes] = []
        self.mtimes_ns: list[int] = []

    def read(self, folder: bytes) -> tuple[NameSorter, list[bytes], tuple[int, int]]:
        """A folder's wanted names, its subfolders (sorted), and which folder it is."""
        path = os.path.join(self.root, folder) if folder else self.root
        names, folders, batch = NameSorter(), [], []
        is_wanted, endings = self.wanted.search, self.endings
        try:
            status = os.stat(path)  # before reading: a file added meanwhile makes the list out of date, not wrong
            with os.scandir(path) as entries:
                for entry in entries:
                    name = entry.name
                    if entry.is_dir():
                        if name[:1] not in (b".", b"_"):
                            folders.append(name)
                    elif (name.endswith(endings) and name[0] not in _HIDDEN) or is_wanted(name):
                        batch.append(name)
                        if len(batch) == CHUNK:
                            names.add(batch)
                            batch = []
        except OSError as error:
            raise NotFound(f"Folder {os.fsdecode(path)!r} cannot be read: {error.strerror}.") from error
        names.add(batch)
        self.folders.append(folder)
        self.mtimes_ns.append(status.st_mtime_ns)
        return names, sorted(folders), (status.st_dev, status.st_ino)

    def write(self, folder: bytes, names: NameSorter, label: int | None) -> None:
        """Append a folder's names to the index."""
        for part in names.sorted():
            if folder:
                part = np.strings.add(np.bytes_(folder + b"/"), part)
            self.writer.add(part, None if label is None else np.full(len(part), label, np.int32))

    def down(self, top: bytes, above: tuple[tuple[int, int], ...], label: int | None) -> None:
        """A folder and everything below it, depth first; a link back to a folder above is not followed."""
        stack = [(top, above)]
        while stack:
            folder, parents = stack.pop()
            names, folders, identity = self.read(folder)
            if identity in parents:
                continue
            self.write(folder, names, label)
            stack += [(folder + b"/" + name, (*parents, identity)) for name in reversed(folders)]


def _glob_folders(path: str) -> tuple[str, list[str], str]:
    """Split a glob into the folder above its first wildcard, the folders it means, and the pattern of the names."""
    head, tail = os.path.split(path)
    root = head
    while glob.has_magic(root):
        root = os.path.dirname(root)
    if tail == "**":
        head, tail = path, "*"
    folders = sorted({os.path.normpath(p) for p in glob.glob(os.path.join(head, ""), recursive=True)})
    return root, folders, tail


def _scan_glob(path: str, where: tuple[str, list[str], str], rules: FileRules, writer: IndexWriter) -> None:
    root, folders, pattern = where
    start = r"\A" if pattern.startswith(".") else r"\A(?!\.)"  # as in a shell, "*" does not match hidden files
    walk = _Walk(root, re.compile((start + fnmatch.translate(pattern)).encode("utf-8", "surrogateescape")), writer)
    codes: dict[str, int] = {}
    counts: list[tuple[int, int]] = []
    for folder in folders:
        relative = os.path.relpath(folder, root)
        key = b"" if relative == "." else os.fsencode(relative)
        names = walk.read(key)[0]
        if names.count:  # a folder that is only passed through, as by "**", is no class
            counts.append((codes.setdefault(os.path.basename(folder), len(codes)), names.count))
            walk.write(key, names, None)
    if not writer.rows:
        raise NotFound(f"No file matches {path!r}.")
    watch = FolderTimes(walk.folders, walk.mtimes_ns)
    if not rules.by_folder or len(codes) == 1:  # one folder for all is a place, not a class
        writer.finish(root=root, watch=watch)
        return
    classes = _classes(tuple(sorted(codes)), rules, path)
    order = np.array([classes.index(name) for name in codes], np.int32)
    labels = np.repeat(order[[code for code, _ in counts]], [count for _, count in counts])
    writer.finish(root=root, classes=classes, watch=watch, labels=labels)


def _name_filter(suffixes: tuple[str, ...]) -> re.Pattern[bytes]:
    endings = "|".join(re.escape(suffix) for suffix in suffixes)
    return re.compile(rf"^[^._].*(?:{endings})\Z".encode(), re.IGNORECASE | re.DOTALL)


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
    return _keep_rows(chunks(_named(paths, rules)), rules, root="", where="The list")


def _named(paths: Iterable[storage.PathLike], rules: FileRules) -> Iterator[str]:
    for path in paths:
        text = os.fspath(path)
        if text.lower().endswith(rules.suffixes) and not glob.has_magic(text):
            yield _absolute(text)  # files are not looked at one by one
        else:
            yield from map(_absolute, storage.found([text], rules.suffixes))


def _absolute(path: str) -> str:
    return path if storage.is_remote(path) else os.path.abspath(storage.local_path(path))


def _list_remote(url: str, rules: FileRules) -> PathIndex:
    pattern = split(url)
    if pattern is not None:
        names = _matching(url, *pattern)
        return _keep_rows(
            names, rules, root=pattern[0], where=url, class_of=lambda name: _parent(f"{pattern[0]}/{name}")
        )
    if glob.has_magic(url.partition("://")[2]) or url.lower().endswith(rules.suffixes):
        return _keep_rows(chunks(storage.found([url])), rules, root="", where=url)
    root = url.rstrip("/")
    return _keep_rows(remote_walk.walk(root, remote_walk.Visible(rules.suffixes)), rules, root=root, where=url)


def _matching(url: str, root: str, choice: Glob) -> Iterator[list[str]]:
    found = False
    for names in remote_walk.walk(root, choice):
        found = found or bool(names)
        yield names
    if not found:
        raise NotFound(f"No file matches {url!r}.")


def _keep_rows(
    parts: Iterator[list[str]],
    rules: FileRules,
    *,
    root: str,
    where: str,
    class_of: Callable[[str], str] | None = None,
) -> PathIndex:
    """Names in the order given, with the class of each: what `class_of` says of it; else the top folder below `root`,
    or the folder that holds it where there is no root.

    Names go to a file as they come; in memory there are a chunk of them and four bytes a row for its class.
    """
    codes: dict[str, int] = {}
    labels: list[np.ndarray] = []
    with partial(cache_folder()) as kept:
        writer = IndexWriter(kept.file)
        for chunk in parts:
            if not chunk:
                continue
            writer.add(np.array([os.fsencode(name) for name in chunk], dtype=bytes))
            tops = map(class_of or (_top if root else _parent), chunk)
            labels.append(np.array([codes.setdefault(top, len(codes)) for top in tops], np.int32))
        _require(writer.rows, where, rules)
        # One folder for all is a place, not a class; below a root, files of one subfolder do have a class.
        below = bool(root) and class_of is None
        by_class = rules.by_folder and (len(codes) > 1 or (below and "" not in codes))
        if by_class and below and "" in codes:
            raise InvalidInput(
                f"{where!r} holds images beside its class folders. Pass labels=None to read all without labels."
            )
        classes = _classes(tuple(sorted(codes)), rules, where) if by_class else ()
        joined = None
        if by_class:
            joined = np.array([classes.index(name) for name in codes], np.int32)[np.concatenate(labels)]
        digest = writer.finish(root=root, classes=classes, labels=joined)
        if kept.file.tell() <= SMALL_NBYTES:
            return PathIndex(kept.contents())
        return PathIndex(kept.keep(f"listing-{digest}"))


def _top(name: str) -> str:
    return name.split("/", 1)[0] if "/" in name else ""


def _parent(path: str) -> str:
    return os.path.basename(os.path.dirname(path))
