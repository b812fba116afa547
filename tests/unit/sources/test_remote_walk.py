"""A remote folder of a million names, in the answers that S3 gives: packed on disk, a page of objects at a time."""

from __future__ import annotations

import sys
from pathlib import PurePosixPath
from typing import Any

import fsspec
import numpy as np
import psutil
import pytest

import penstock as ps
from penstock.core.errors import NotFound
from penstock.sources.listing.packed_names import IndexWriter
from penstock.sources.listing.remote_glob import Glob, split
from penstock.sources.listing.remote_walk import walk
from penstock.sources.listing.sample_files import FileRules, list_files

CLASSES, EACH = 10, 100_000


class ManyFiles(fsspec.AbstractFileSystem):
    """Ten folders of a hundred thousand names that exist only when they are asked for."""

    protocol = "many"
    cachable = False
    asked: list[str] = []
    most_nbytes = 0

    def call_s3(self, what: str, **options: Any) -> dict[str, Any]:
        assert what == "list_objects_v2" and options["Delimiter"] == "/"
        ManyFiles.most_nbytes = max(ManyFiles.most_nbytes, psutil.Process().memory_info().rss)
        prefix, first = options["Prefix"], int(options.get("ContinuationToken") or 0)
        ManyFiles.asked.append(f"{prefix}{first}")
        if prefix in ("data/", "data/class"):
            return {"CommonPrefixes": [{"Prefix": f"data/class{i}/"} for i in range(CLASSES)], "IsTruncated": False}
        last = min(EACH, first + options["MaxKeys"])
        folder = prefix.rpartition("/")[0]
        answer: dict[str, Any] = {"Contents": [{"Key": f"{folder}/photo-{i:09}.jpg"} for i in range(first, last)]}
        answer["IsTruncated"] = last < EACH
        return {**answer, "NextContinuationToken": str(last)} if last < EACH else answer

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return path.encode()

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": len(path), "type": "file"}


@pytest.fixture
def many(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    fsspec.register_implementation("many", ManyFiles, clobber=True)
    ManyFiles.asked, ManyFiles.most_nbytes = [], 0


@pytest.mark.parametrize("url", ["many://bucket/data", "many://bucket/data/class*/photo-*.jpg"])
def test_a_million_names_are_packed_on_disk_as_they_come(many: None, tmp_path: Any, monkeypatch: Any, url: str) -> None:
    taken: list[int] = []
    add = IndexWriter.add
    monkeypatch.setattr(IndexWriter, "add", lambda self, names: (taken.append(len(names)), add(self, names))[1])
    before = psutil.Process().memory_info().rss
    index = list_files(url, FileRules((".jpg",)))
    assert len(index) == CLASSES * EACH and index.classes == tuple(f"class{i}" for i in range(CLASSES))
    rows = np.array([0, EACH - 1, EACH, 7 * EACH + 12_345])
    assert [index.path(int(row)) for row in rows[1:]] == [
        f"many://bucket/data/class{c}/photo-{i:09}.jpg" for c, i in ((0, EACH - 1), (1, 0), (7, 12_345))
    ]
    assert index.labels(rows).tolist() == [0, 0, 1, 7]
    # Names alone are 26 MB, and as Python objects would be 100 MB; 16 folders of 8 pages are read ahead.
    assert ManyFiles.most_nbytes - before < 60_000_000
    assert index.nbytes < 40_000_000 and len(list(tmp_path.glob("listing-*"))) == 1
    # Each name is asked for once and handled once, in arrays: the work grows with the names and not faster.
    assert len(ManyFiles.asked) == len(set(ManyFiles.asked)) == 1 + CLASSES * EACH // 1000
    assert taken == [1000] * (CLASSES * EACH // 1000)


def test_names_are_a_dataset_whose_first_batch_holds_only_its_own(many: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys.modules[__name__], "EACH", 3000)
    ds = ps.list_files("many://bucket/data", shuffle=True, seed=3).batch(8)
    first = next(iter(ds))
    assert len(set(first)) == 8 and all(name.startswith("many://bucket/data/class") for name in first)


NAMES = [
    "a.jpg", "b.png", ".hidden.jpg", "x/a.jpg", "x/ab.jpg", "x/y/a.jpg", "x/y/z/a.jpg", "x-y/a.jpg", "xx/b.jpg",
    "[1]/c.jpg",
]  # fmt: skip


@pytest.fixture(scope="module")
def tree() -> str:
    fs = fsspec.filesystem("memory")
    for name in NAMES:
        fs.pipe(f"/globbed/{name}", b"x")
    return "memory://globbed"


@pytest.mark.parametrize(
    "pattern",
    ["*", "*.jpg", "?.jpg", "[ab].*", "x/*", "x*/*.jpg", "*/a.jpg", "**", "**/a.jpg", "x/**/a.jpg", "x/**", "*/*/*",
     "**/y/**", "[[]1]/*", "x/y/z/*.jpg", "*/y/a.jpg", "**/*b.jpg"],
)  # fmt: skip
def test_a_glob_finds_what_fsspec_finds_without_holding_it(tree: str, pattern: str) -> None:
    fs = fsspec.filesystem("memory")
    expected = [p for p, info in fs.glob(f"/globbed/{pattern}", detail=True).items() if info["type"] == "file"]
    found = split(f"{tree}/{pattern}")
    assert found is not None
    root, choice = found
    names = [f"{root}/{name}" for part in walk(root, choice) for name in part]
    assert sorted(names) == sorted(f"memory:/{path}" for path in expected) != []
    index = list_files(f"{tree}/{pattern}", FileRules((".jpg",), by_folder=False))
    assert [index.path(row) for row in range(len(index))] == names


def test_a_glob_goes_only_where_it_may_match_and_asks_for_no_more() -> None:
    top = Glob(("class*", "photo-0[12]*.jpg"), frozenset([0]))
    assert top.start == "class" and top.folder("other") is None and top.files(["class1"]) == []
    below = top.folder("class1")
    assert below is not None and below.start == "photo-0" and below.folder("deeper") is None
    assert below.files(["photo-01.jpg", "photo-03.jpg", "photo-02x.jpg"]) == ["photo-01.jpg", "photo-02x.jpg"]


def test_classes_of_a_glob_are_the_folders_and_no_match_is_told(tree: str) -> None:
    index = list_files(f"{tree}/x*/*.jpg", FileRules((".jpg",)))
    parents = [PurePosixPath(index.path(row)).parent.name for row in range(len(index))]
    assert index.classes == ("x", "x-y", "xx")
    assert [index.classes[index.label(row)] for row in range(len(index))] == parents
    assert not list_files(f"{tree}/x/*.jpg", FileRules((".jpg",))).labelled  # one folder is a place, not a class
    mixed = list_files([f"{tree}/x/*.jpg", f"{tree}/a.jpg"], FileRules((".jpg",), by_folder=False))
    assert [mixed.path(row) for row in range(len(mixed))] == [f"{tree}/x/a.jpg", f"{tree}/x/ab.jpg", f"{tree}/a.jpg"]
    with pytest.raises(NotFound, match="No file matches"):
        list_files(f"{tree}/x/*.bmp", FileRules((".jpg",)))
