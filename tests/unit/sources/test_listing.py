"""Lists of files: right, sorted, labelled, packed, kept and renewed when the folder changes."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import BadData, DataError, InvalidInput, NotFound
from penstock.sources.images.manifest import list_manifest
from penstock.sources.listing import packed_names as listing
from penstock.sources.listing import sample_files
from penstock.sources.listing.sample_files import FileRules, NameSorter, list_files
from penstock.sources.storage.index_folder import cache_folder, clear_old, written

RULES = FileRules((".jpg", ".png"))
PLAIN = FileRules((".jpg", ".png"), by_folder=False)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    return folder


@pytest.fixture
def classes(tmp_path):
    root = tmp_path / "train"
    for name in (
        "dog/b.jpg",
        "dog/a.PNG",
        "cat/x.jpg",
        "cat/deep/er/y.jpg",
        "cat/notes.txt",
        "ape/.hid.jpg",
        ".git/z.jpg",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    age(root)
    return root


def age(root) -> None:
    """Make folders look quiet, so that a list of them can be trusted."""
    for where, _, _ in os.walk(root):
        os.utime(where, (time.time() - 100, time.time() - 100.123))


def names(index, root) -> list[str]:
    return [os.path.relpath(index.path(i), root) for i in range(len(index))]


def test_class_folders_are_sorted_and_labelled(classes):
    index = list_files(classes, RULES)
    assert names(index, classes) == ["cat/x.jpg", "cat/deep/er/y.jpg", "dog/a.PNG", "dog/b.jpg"]
    assert index.classes == ("ape", "cat", "dog")
    assert [index.label(i) for i in range(4)] == [1, 1, 2, 2]
    assert index.labels(np.array([3, 0])).tolist() == [2, 1] and index.label_dtype == np.int64


def test_without_labels_everything_below_is_one_list(classes):
    index = list_files(classes, PLAIN)
    assert len(index) == 4 and not index.labelled and index.classes == ()
    with pytest.raises(DataError, match="no labels"):
        index.label(0)


def test_given_classes_fix_the_numbering(classes):
    rules = FileRules(RULES.suffixes, classes=("dog", "cat", "ape", "eel"))
    assert [list_files(classes, rules).label(i) for i in range(4)] == [1, 1, 0, 0]
    with pytest.raises(InvalidInput, match="class 'ape'"):
        list_files(classes, FileRules(RULES.suffixes, classes=("dog", "cat")))


def test_a_flat_folder_has_no_labels(tmp_path):
    for name in "cab":
        (tmp_path / f"{name}.jpg").touch()
    index = list_files(tmp_path, RULES)
    assert names(index, tmp_path) == ["a.jpg", "b.jpg", "c.jpg"] and not index.labelled


def test_images_beside_class_folders_are_not_dropped_in_silence(classes):
    (classes / "stray.jpg").touch()
    with pytest.raises(InvalidInput, match="holds 1 images beside its class folders"):
        list_files(classes, RULES)
    assert len(list_files(classes, PLAIN)) == 5


def test_globs(classes):
    index = list_files(f"{classes}/*/*.jpg", RULES)
    assert names(index, classes) == ["cat/x.jpg", "dog/b.jpg"]
    assert index.classes == ("cat", "dog") and [index.label(i) for i in range(2)] == [0, 1]
    assert list_files(f"{classes}/**/*.jpg", RULES).classes == ("cat", "dog", "er")
    deep = list_files(f"{classes}/**/*.jpg", PLAIN)
    assert sorted(names(deep, classes)) == ["cat/deep/er/y.jpg", "cat/x.jpg", "dog/b.jpg"]
    assert not list_files(f"{classes}/dog/*", RULES).labelled


def test_lists_keep_their_order_and_take_the_folder_as_class(classes):
    paths = [classes / "dog/b.jpg", f"{classes}/cat/x.jpg", str(classes / "dog")]
    index = list_files(paths, RULES)
    assert names(index, classes) == ["dog/b.jpg", "cat/x.jpg", "dog/a.PNG", "dog/b.jpg"]
    assert index.classes == ("cat", "dog") and [index.label(i) for i in range(4)] == [1, 0, 1, 1]


def test_what_is_not_there_is_said(tmp_path):
    for paths, words in (
        (f"{tmp_path}/nope", "does not exist"),
        (f"{tmp_path}/*.jpg", "No file matches"),
        (tmp_path, "holds no file"),
    ):
        with pytest.raises(NotFound, match=words):
            list_files(paths, RULES)


def test_a_link_in_a_circle_ends(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.jpg").touch()
    (tmp_path / "a/loop").symlink_to(tmp_path / "a")
    assert names(list_files(tmp_path, RULES), tmp_path) == ["a/x.jpg"]


def test_names_that_are_not_text_survive(tmp_path):
    odd = os.fsdecode(b"\xff\xfe name\n\xe4.jpg")
    (tmp_path / odd).touch()
    index = pickle.loads(pickle.dumps(list_files(tmp_path, RULES)))
    assert os.path.exists(index.path(0)) and index.path(0).endswith(odd)


# Kept and renewed


def test_the_second_start_opens_what_was_kept(classes, monkeypatch):
    first = list_files(classes, RULES)
    monkeypatch.setattr(sample_files, "_scan_folder", lambda *_: pytest.fail("the folder was read again"))
    second = list_files(classes, RULES)
    assert names(second, classes) == names(first, classes) and second.digest == first.digest


@pytest.mark.parametrize("change", ["add", "remove", "new class", "deep"])
def test_a_changed_folder_is_listed_anew(classes, change):
    before = list_files(classes, RULES)
    if change == "remove":
        (classes / "dog/b.jpg").unlink()
    else:
        target = {"add": "dog/new.jpg", "new class": "bee/new.jpg", "deep": "cat/deep/er/new.jpg"}[change]
        (classes / target).parent.mkdir(exist_ok=True)
        (classes / target).touch()
    after = list_files(classes, RULES)
    assert len(after) == len(before) + (-1 if change == "remove" else 1)
    assert after.digest != before.digest


def test_a_new_folder_that_a_glob_matches_is_seen(classes):
    assert len(list_files(f"{classes}/*/*.jpg", RULES)) == 2
    (classes / "new").mkdir()
    (classes / "new/n.jpg").touch()
    assert len(list_files(f"{classes}/*/*.jpg", RULES)) == 3


def test_a_folder_that_changed_just_now_is_not_trusted(tmp_path):
    (tmp_path / "a.jpg").touch()
    index = list_files(tmp_path, RULES)
    assert not listing.is_current(index)
    age(tmp_path)
    assert listing.is_current(list_files(tmp_path, RULES))


@pytest.mark.parametrize("damage", [lambda d: d[: len(d) // 2], lambda d: b"", lambda d: d[:-30] + b"\0" * 30])
def test_a_damaged_index_is_made_anew(classes, own_cache, damage):
    expected = names(list_files(classes, RULES), classes)
    (kept,) = own_cache.iterdir()
    kept.write_bytes(damage(kept.read_bytes()))
    assert names(list_files(classes, RULES), classes) == expected


def test_nothing_half_written_is_left(own_cache):
    with pytest.raises(RuntimeError), written(str(own_cache / "x")) as file:
        file.write(b"half")
        raise RuntimeError
    assert list(own_cache.iterdir()) == []


def test_old_indexes_are_cleared_and_others_left(own_cache):
    for name in ("listing-old", "listing-new", "mine.txt"):
        (own_cache / name).touch()
    os.utime(own_cache / "listing-old", (0, 0))
    os.utime(own_cache / "mine.txt", (0, 0))
    assert clear_old(str(own_cache)) == 1
    assert sorted(p.name for p in own_cache.iterdir()) == ["listing-new", "mine.txt"]


def test_the_cache_folder_falls_back(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == str(tmp_path / "xdg" / "penstock")


# Packed


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=40).filter(lambda b: b"\0" not in b), max_size=400), st.integers(64, 4000)
)
def test_sorting_through_a_file_equals_sorting_in_memory(found, limit):
    sorter = NameSorter(limit_nbytes=limit)
    for start in range(0, len(found), 37):
        sorter.add(found[start : start + 37])
    assert [bytes(name) for part in sorter.sorted() for name in part] == sorted(found)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5000), st.integers(0, 10**6))
def test_an_index_gives_back_what_was_put_in(count, seed):
    rng = np.random.default_rng(seed)
    put = [f"{'x' * int(n)}{i}.jpg".encode() for i, n in enumerate(rng.integers(0, 60, count))]
    labels = rng.integers(0, 9, count).astype(np.int32)
    file = io.BytesIO()
    writer = listing.IndexWriter(file)
    writer.add(np.array(put, dtype=bytes), labels)
    writer.finish(root="/r", classes=[])
    index = listing.PathIndex(file.getvalue())
    for i in {0, count - 1, count // 2, *range(0, count, 511)}:
        assert index.path(i) == f"/r/{put[i].decode()}" and index.label(i) == labels[i]
    with pytest.raises(IndexError):
        index.path(count)


def test_a_long_list_is_pickled_by_the_name_of_its_file(tmp_path):
    index = list_files([f"/data/{i % 10}/{i:040d}.jpg" for i in range(40_000)], RULES)
    state = pickle.dumps(index)
    assert len(state) < 1000
    assert pickle.loads(state).path(39_999) == f"/data/9/{39_999:040d}.jpg"


GROWTH = """
import sys
from penstock.sources.listing.sample_files import FileRules, list_files

def anonymous():  # names that were looked at are pages of the mapped file: the kernel may drop them at any time
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))

list_files(sys.argv[2], FileRules((".jpg",)))  # imports and warms up
before = anonymous()
index = list_files(sys.argv[1], FileRules((".jpg",)))
print(len(index), anonymous() - before)
"""


def test_fifty_thousand_files_take_no_object_each(tmp_path):
    many, few = tmp_path / "many", tmp_path / "few"
    for folder, count in ((many, 50_000), (few, 10)):
        folder.mkdir()
        for i in range(count):
            os.close(os.open(f"{folder}/image_{i * 7919 % count:06d}.jpg", os.O_CREAT | os.O_WRONLY))
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(many), str(few)], capture_output=True, text=True, check=True
    )
    rows, growth = map(int, done.stdout.split())
    # Allow for what the allocator keeps of the batch of 50,000 names that was sorted.
    assert rows == 50_000 and growth < 16 * 50_000 + 6_000_000


# Manifests


def manifest(tmp_path, text: str) -> str:
    (tmp_path / "m.csv").write_text(text)
    return str(tmp_path / "m.csv")


def test_manifest_with_text_labels(tmp_path):
    path = manifest(tmp_path, "path,label,other\na/1.jpg,dog,x\n/abs/2.jpg,cat,y\ns3://b/3.jpg,dog,z\n")
    index = list_manifest(path, path_column="path", label_column="label")
    assert [index.path(i) for i in range(3)] == [f"{tmp_path}/a/1.jpg", "/abs/2.jpg", "s3://b/3.jpg"]
    assert index.classes == ("cat", "dog") and index.labels(np.arange(3)).tolist() == [1, 0, 1]


def test_manifest_with_numbers_and_a_root(tmp_path):
    path = manifest(tmp_path, "file,y\n1.jpg,7\n2.jpg,-1\n")
    index = list_manifest(path, path_column="file", label_column="y", root="/data")
    assert index.path(0) == "/data/1.jpg" and index.labels(np.arange(2)).tolist() == [7, -1] and index.classes == ()
    floats = list_manifest(manifest(tmp_path, "path,y\n1.jpg,0.5\n2.jpg,2\n"), path_column="path", label_column="y")
    assert floats.labels(np.arange(2)).tolist() == [0.5, 2.0] and floats.label_dtype == np.float32


def test_a_changed_manifest_is_read_anew(tmp_path):
    path = manifest(tmp_path, "path\n1.jpg\n")
    assert len(list_manifest(path, path_column="path", label_column=None)) == 1
    manifest(tmp_path, "path\n1.jpg\n2.jpg\n")
    assert len(list_manifest(path, path_column="path", label_column=None)) == 2


def test_a_long_manifest_is_packed(tmp_path):
    rows = 120_000
    lines = "".join(f"images/{i:032d}.jpg,{'abc'[i % 3]}\n" for i in range(rows))
    index = list_manifest(manifest(tmp_path, "path,label\n" + lines), path_column="path", label_column="label")
    assert len(index) == rows and index.path(rows - 1).endswith(f"{rows - 1:032d}.jpg")
    assert np.array_equal(index.labels(np.arange(rows)), np.arange(rows) % 3)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [("path,label\n", NotFound, "no row"), ("a,b\n1,2\n", NotFound, "no column 'path'. It has: a, b"),
     ("path,label\nx.jpg\n", BadData, "m.csv"), ("path,label\n,3\n", InvalidInput, "empty path"),
     ("path,label\nx.jpg,\ny.jpg,3\n", BadData, "empty value")],
)  # fmt: skip
def test_wrong_manifests_are_explained(tmp_path, text, kind, words):
    with pytest.raises(kind, match=words):
        list_manifest(manifest(tmp_path, text), path_column="path", label_column="label")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((12345678901234567890, 1), "the label 12345678901234567890 is beyond int64"),
        ((1.5, 702608000000000001), "float32, which would change 702608000000000001"),
        ((1, 2.5), "are whole numbers, but one is '2.5'"),
        (("0.5", "NA"), "empty value"),
    ],
    ids=["long", "among fractions", "in a later block", "missing"],
)
def test_labels_that_would_be_other_numbers_are_refused(tmp_path, monkeypatch, labels, message):
    if labels == (1, 2.5):
        monkeypatch.setattr("penstock.sources.images.manifest.BLOCK_NBYTES", 20)
    rows = "".join(f"{i}.jpg,{label}\n" for i, label in enumerate(labels))
    with pytest.raises(BadData, match=message):
        list_manifest(manifest(tmp_path, "path,label\n" + rows), path_column="path", label_column="label")


def test_hexadecimal_labels_are_names(tmp_path):
    text = "path,label\na.jpg,0x1f\nb.jpg,0xbfdbc39743b7872e\n"
    index = list_manifest(manifest(tmp_path, text), path_column="path", label_column="label")
    assert index.classes == ("0x1f", "0xbfdbc39743b7872e") and index.labels(np.arange(2)).tolist() == [0, 1]
