"""One walk over local folders and globs, for lists of images and of shards alike."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import NotFound
from penstock.sources.listing.sample_files import FileRules, list_files
from penstock.sources.listing.walk import Folder, below, split_glob, visible
from penstock.sources.storage import files as storage

PLAIN = FileRules((".jpg",), by_folder=False)
NAMES = st.text("ab.é_", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))


def keys(root: Path, top: bytes = b"") -> list[bytes]:
    found = []
    for key, folder in below(os.fsencode(root), top):
        list(folder.names(lambda name: True))
        found.append(key)
    return found


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.lists(NAMES, max_size=2), NAMES), max_size=12))
def test_images_and_shards_are_the_same_files(tmp_path_factory, made):
    root = tmp_path_factory.mktemp("tree")
    (root / "always.jpg").touch()
    for folders, name in made:
        folder = root.joinpath(*folders)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.jpg").touch()
    for written in (str(root), f"{root}/**/*.jpg", f"{root}/*/?.jpg", f"{root}/*.jpg"):
        try:
            shards = sorted(storage.expand(written, suffixes=(".jpg",)))
        except NotFound:
            with pytest.raises(NotFound):
                list_files(written, PLAIN)
            continue
        assert sorted(os.path.normpath(path) for path in list_files(written, PLAIN)) == shards


def test_a_question_mark_is_one_letter_however_many_bytes_it_takes(tmp_path):
    for name in ("é.jpg", "ab.jpg"):
        (tmp_path / name).touch()
    assert [os.path.basename(path) for path in list_files(f"{tmp_path}/?.jpg", PLAIN)] == ["é.jpg"]


def test_folders_come_in_the_order_of_their_paths_and_hidden_ones_do_not(tmp_path):
    for folder in ("b/y", "b/x", "a", ".git/a", "_old"):
        (tmp_path / folder).mkdir(parents=True)
    assert keys(tmp_path) == [b"", b"a", b"b", b"b/x", b"b/y"]
    assert keys(tmp_path, b"b") == [b"b", b"b/x", b"b/y"]


def test_a_folder_is_entered_once_on_its_way_down(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert keys(tmp_path) == [b"", b"a", b"b"], "by two names it is two folders; by a link back it is none"


def test_visible_names():
    wanted = visible((".jpg", ".TIF"))
    found = [name for name in (b"a.jpg", b"A.JPG", b"a.tif", b".a.jpg", b"_a.jpg", b"a.png", b"jpg") if wanted(name)]
    assert found == [b"a.jpg", b"A.JPG", b"a.tif"]
    assert visible(None)(b"a.png") and not visible(None)(b".hidden")


def test_a_glob_is_folders_and_names(tmp_path):
    (tmp_path / "a").mkdir()
    folders, wanted = split_glob(f"{tmp_path}/*/*.jpg")
    assert folders == [f"{tmp_path}/a/"]
    assert wanted(b"x.jpg") and not wanted(b".x.jpg") and not wanted(b"x.png")


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(NotFound, match="'/nowhere/at/all' cannot be read: No such file"):
        Folder(b"/nowhere/at/all")
    folder = Folder(os.fsencode(tmp_path))
    tmp_path.rmdir()
    with pytest.raises(NotFound, match="cannot be read"):
        list(folder.names(visible(None)))
