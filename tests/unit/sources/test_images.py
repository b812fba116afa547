"""The image source: samples, labels, slots, damage, remote folders, pickling."""

from __future__ import annotations

import pickle

import cv2
import numpy as np
import pytest

from penstock.core.errors import BadData, InvalidInput, MapError, NotFound, TooManyErrors
from penstock.core.source import RowSource
from penstock.read.images import read_images
from penstock.sources.images.source import ImageSource


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))


def shade(i: int) -> np.ndarray:
    return np.full((20 + i, 30, 3), 20 * i, np.uint8)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "train"
    for i in range(8):
        path = root / ("cat" if i < 4 else "dog") / f"{i}.{'png' if i % 2 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(path), shade(i))
    return root


def source(*args, **options) -> ImageSource:
    return read_images(*args, **options).node.step.source


def fetched(images: ImageSource, rows):
    return images.fetch(np.array(rows, np.int64))


def test_it_is_a_row_source_of_pairs(folder):
    images = source(folder, size=(16, 24))
    assert isinstance(images, RowSource) and images.num_rows() == 8
    assert str(images.schema()) == "(image: uint8[16, 24, 3], label: int64)"
    assert images.schema().tree == ("image", "label") and images.schema().fixed
    assert images.classes == ("cat", "dog") and images.label == f"images({folder})"


def test_rows_come_in_the_order_asked_for(folder):
    images = source(folder, size=16)
    block = images.decode(fetched(images, [7, 0, 3]))
    assert block.columns["image"].shape == (3, 16, 16, 3) and block.schema == images.schema()
    assert block.columns["label"].tolist() == [1, 0, 0]
    assert [int(image.mean().round()) for image in block.columns["image"]] == [140, 0, 60]
    assert block.where(0) == str(folder / "dog/7.png")


def test_decoding_into_slots_equals_decoding_a_block(folder):
    images = source(folder, size=(16, 24), crop="center")
    got = fetched(images, [5, 1, 6])
    whole = {"image": np.full((5, 16, 24, 3), 9, np.uint8), "label": np.full(5, 9, np.int64)}
    images.decode_into(got, {name: column[1:4] for name, column in whole.items()})
    block = images.decode(got)
    for name, column in whole.items():
        assert np.array_equal(column[1:4], block.columns[name])
        assert (column[0] == 9).all() and (column[4] == 9).all()


def test_without_a_size_every_image_keeps_its_own(folder):
    images = source(folder)
    block = images.decode(fetched(images, [0, 7]))
    assert str(images.schema()) == "(image: uint8[?, ?, 3], label: int64)"
    assert [image.shape for image in block.columns["image"]] == [(20, 30, 3), (27, 30, 3)]


def test_images_without_labels_are_bare(folder):
    for images in (source(folder / "cat", size=8), source(folder, size=8, labels=None)):
        assert images.schema().tree == "image" and list(images.decode(fetched(images, [0])).columns) == ["image"]


def test_labels_from_a_function(folder):
    images = source(folder, size=8, labels=label_of)
    assert images.decode(fetched(images, [2, 5])).columns["label"].tolist() == [2, 5]
    broken = source(folder, size=8, labels=lambda path: path.no_such_thing)
    with pytest.raises(MapError, match="0.jpg"):
        broken.decode(fetched(broken, [0]))


def label_of(path: str) -> int:
    return int(path[-5])


def test_a_manifest(folder):
    (folder / "m.csv").write_text("path,label\ndog/5.png,wolf\ncat/2.jpg,lion\n")
    images = source(folder / "m.csv", size=8)
    block = images.decode(fetched(images, [0, 1]))
    assert images.classes == ("lion", "wolf") and block.columns["label"].tolist() == [1, 0]
    assert source(folder / "m.csv", size=8, labels=None).schema().tree == "image"


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "gone"])
def test_damage_raises_and_names_the_file(folder, damage):
    images = source(folder, size=8)
    spoil(folder / "cat/2.jpg", damage)
    got = fetched(images, [0, 2])
    with pytest.raises(BadData, match=r"cat/2\.jpg: "):
        images.decode(got)
    with pytest.raises(BadData, match=r"cat/2\.jpg: "):
        images.decode_into(got, {"image": np.zeros((2, 8, 8, 3), np.uint8), "label": np.zeros(2, np.int64)})


def spoil(path, damage: str) -> None:
    if damage == "gone":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes({"truncated": data[: len(data) * 2 // 3], "empty": b"", "text": b"not an image"}[damage])


@pytest.mark.parametrize("size", [8, None])
def test_skipped_damage_leaves_no_hole(folder, size):
    images = source(folder, size=size, on_error="skip")
    spoil(folder / "cat/2.jpg", "truncated")
    spoil(folder / "dog/4.jpg", "gone")
    block = images.decode(fetched(images, [1, 2, 3, 4, 5]))
    assert [int(image.mean().round()) for image in block.columns["image"]] == [20, 60, 100]
    assert block.columns["label"].tolist() == [0, 0, 1] and block.where(2).endswith("5.png")
    assert images.on_error.count == 2
    nothing = images.decode(fetched(images, [2]))
    assert len(nothing) == 0


def test_too_much_damage_stops(folder):
    images = source(folder, size=8, on_error="skip", max_errors=1)
    for name in ("cat/0.jpg", "cat/2.jpg"):
        spoil(folder / name, "empty")
    with pytest.raises(TooManyErrors):
        images.decode(fetched(images, range(8)))


def test_an_endless_file_is_refused_by_its_size(folder):
    with open(folder / "cat/0.jpg", "r+b") as file:
        file.truncate(200_000_000_000)
    images = source(folder, size=8)
    with pytest.raises(BadData, match=r"cat/0\.jpg: the file has more than"):
        images.decode(fetched(images, [0]))


def test_fetching_is_estimated_from_the_files(folder):
    images = source(folder, size=8)
    real = fetched(images, range(8)).nbytes
    assert real <= images.fetch_nbytes(8) <= 4 * real + 8 * 64


def test_a_pickled_source_is_small_and_the_same(folder):
    images = source(folder, size=8)
    images.fetch_nbytes(1)
    state = pickle.dumps(images)
    again = pickle.loads(state)
    assert len(state) < 2500 and again.fingerprint() == images.fingerprint()
    rows = [6, 1]
    assert np.array_equal(
        again.decode(fetched(again, rows)).columns["image"], images.decode(fetched(images, rows)).columns["image"]
    )


def test_the_fingerprint_follows_data_and_options(folder):
    first = source(folder, size=8).fingerprint()
    assert source(folder, size=8).fingerprint() == first
    assert source(folder, size=9).fingerprint() != first
    assert source(folder, size=8, labels=None).fingerprint() != first
    assert cv2.imwrite(str(folder / "dog/zz.png"), shade(1))
    assert source(folder, size=8).fingerprint() != first


def test_a_remote_folder_reads_like_a_local_one(folder):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for path in sorted(folder.rglob("*.*")):
        memory.pipe(f"/image-test/{path.relative_to(folder)}", path.read_bytes())
    near, far = source(folder, size=8), source("memory://image-test", size=8)
    assert far.classes == near.classes and far.num_rows() == 8
    rows = [7, 0, 3]
    a, b = near.decode(fetched(near, rows)), far.decode(fetched(far, rows))
    assert np.array_equal(a.columns["image"], b.columns["image"]) and b.columns["label"].tolist() == [1, 0, 0]
    assert source("memory://image-test/cat/*.jpg", size=8).num_rows() == 2
    memory.rm("/image-test", recursive=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"size": (0, 4)}, "size must be"), ({"size": "big"}, "size must be"), ({"labels": 3}, "label must be"),
     ({"mode": "hsv"}, "mode must be"), ({"root": "/x"}, "root="), ({"on_error": "ignore"}, "on_error"),
     ({"crop": "center"}, "need a size")],
)  # fmt: skip
def test_wrong_calls_are_explained(folder, options, words):
    with pytest.raises(InvalidInput, match=words):
        read_images(folder, **options)


def test_what_is_not_there_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="does not exist"):
        read_images(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="list is empty"):
        read_images([])
