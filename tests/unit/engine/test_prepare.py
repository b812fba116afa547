"""Normalising, augmenting and mixup: the bits of NumPy, the same at every place where the engine may do it."""

from __future__ import annotations

import io
import tarfile

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.errors import InvalidInput, NotFound
from tests.contract.chains import CHANGES

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]
NORMAL = {"scale": 1 / 255, "mean": MEAN, "std": STD}


def reference(x, mean=MEAN, std=STD, scale=1 / 255, chw=False):
    made = (x.astype(np.float32) * np.float32(scale) - np.float32(mean)) / np.float32(std)
    return np.ascontiguousarray(made.transpose(0, 3, 1, 2)) if chw else made


def assert_same(found, expected):
    found, expected = list(found), list(expected)
    assert len(found) == len(expected) > 0
    for (x, y), (u, v) in zip(found, expected, strict=True):
        assert (x.dtype, x.shape) == (u.dtype, u.shape)
        assert x.tobytes() == u.tobytes()
        assert np.array_equal(y, v)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures of two sizes in class folders, and the same ones in a tar file."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    with tarfile.open(root / "all.tar", "w") as tar:
        for number in range(23):
            (root / "files" / f"c{number % 3}").mkdir(parents=True, exist_ok=True)
            noise = rng.integers(0, 256, (30 + number % 2, 28, 3), dtype=np.uint8)
            data = bytes(cv2.imencode(".png", noise)[1])
            (root / "files" / f"c{number % 3}" / f"{number:02d}.png").write_bytes(data)
            for name, content in ((f"{number:02d}.png", data), (f"{number:02d}.cls", str(number).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return root


@pytest.mark.parametrize("chw", [False, True])
@pytest.mark.parametrize("skip", [{}, {"on_error": "skip"}], ids=["straight", "in blocks"])
def test_pictures_are_read_as_numpy_would_make_them(folder, chw, skip):
    def read(**more):
        return ps.read_images(folder / "files", size=(24, 20), **skip, **more).shuffle(seed=2).batch(8)

    given = {"dtype": "float32", **NORMAL, "layout": "CHW" if chw else "HWC"}
    expected = [(reference(x, chw=chw), y) for x, y in read()]
    assert_same(read(**given), expected)
    assert_same(read().normalise(**NORMAL, layout=given["layout"]), expected)


@pytest.mark.parametrize("access", ["rows", "stream"])
def test_pictures_in_tar_files_too(folder, access):
    def read():
        return ps.read_webdataset(folder / "all.tar", sample=("png", "cls"), size=(16, 16), access=access)

    expected = [(reference(x, chw=True), y) for x, y in read().shuffle(seed=1).batch(8)]
    assert_same(read().normalise(**NORMAL, layout="CHW").shuffle(seed=1).batch(8), expected)


def test_pictures_of_open_size_too(folder):
    as_stored = [x for x, _ in ps.read_images(folder / "files")]
    normalised = [x for x, _ in ps.read_images(folder / "files", dtype="float32", **NORMAL)]
    assert [reference(x).tobytes() for x in as_stored] == [x.tobytes() for x in normalised]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_tables_are_normalised_by_feature(tmp_path, dtype, shuffled):
    rng = np.random.default_rng(1)
    columns = {f"f{i}": (rng.normal(size=500) * 100).astype(dtype) for i in range(20)}
    pq.write_table(pa.table({**columns, "y": np.arange(500)}), tmp_path / "t.parquet", row_group_size=90)
    mean, std = rng.normal(size=20), rng.uniform(0.5, 2, 20)

    def read():
        ds = ps.read_parquet(tmp_path / "t.parquet", label="y")
        return ds.shuffle(seed=1) if shuffled else ds

    expected = [(reference(x, mean, std, 1.0), y) for x, y in read().batch(64)]
    assert_same(read().normalise(mean=mean, std=std).batch(64), expected)
    assert_same(read().batch(64).normalise(mean=mean, std=std), expected)
    assert_same(read().map(lambda x, y: (x, y)).normalise(mean=mean, std=std).batch(64), expected)


def test_columns_of_a_dict_are_named_by_their_means(tmp_path):
    table = pa.table({"age": [10, 20, 40], "name": ["a", "b", "c"], "size": [1.0, 2.0, 4.0]})
    pq.write_table(table, tmp_path / "t.parquet")
    ds = ps.read_parquet(tmp_path / "t.parquet").normalise(mean={"age": 20}, std={"age": 10, "size": 2}).batch(3)
    (batch,) = ds
    assert batch["age"].tolist() == [-1.0, 0.0, 2.0]
    assert batch["age"].dtype == np.float32
    assert batch["size"].tolist() == [0.5, 1.0, 2.0]
    assert batch["name"].tolist() == ["a", "b", "c"]


def test_the_schema_is_known_without_reading(folder):
    ds = ps.read_images(folder / "files", size=(24, 20), dtype="float32", layout="CHW").augment(flip="both")
    with pytest.raises(InvalidInput, match="height x width x 1 to 4 channels"):
        _ = ds.schema
    ds = ps.read_images(folder / "files", size=(24, 20)).augment(flip="both").normalise(layout="CHW")
    assert str(ds.schema["image"]) == "image: float32[3, 24, 20]"
    assert ds.classes == ["c0", "c1", "c2"]
    assert "augment(flip=both) + normalise(layout=CHW)" in ds.batch(4).explain()


def pictures(n=30):
    noise = np.random.default_rng(0).integers(0, 256, (n, 12, 10, 3), dtype=np.uint8)
    return noise, np.arange(n)


def by_sample(ds):
    """Each sample's picture, by its number."""
    return {int(k): x for xs, ys in ds for x, k in zip(xs, ys, strict=True)}


def test_a_sample_is_augmented_the_same_in_any_order_and_by_any_rank():
    def read(seed=1):
        return ps.from_tensor_slices(pictures()).shuffle(seed=seed).augment(**CHANGES, seed=5)

    whole = by_sample(read().batch(7))
    other_order = by_sample(read(seed=2).batch(4))
    ranks = by_sample(read().shard(0, 2).batch(4)) | by_sample(read().shard(1, 2).batch(4))
    for found in (other_order, ranks):
        assert found.keys() == whole.keys()
        assert all(np.array_equal(found[k], whole[k]) for k in whole)
    next_epoch = by_sample(read().batch(7).at_epoch(1))
    assert sum(np.array_equal(next_epoch[k], whole[k]) for k in whole) == 0


def test_augmenting_changes_neither_the_data_nor_a_cache():
    given, labels = pictures()
    before = given.copy()
    ds = ps.from_tensor_slices((given, labels)).cache().augment(flip="both", colour=0.5).batch(10)
    first, second = by_sample(ds.at_epoch(0)), by_sample(ds.at_epoch(0))
    assert all(np.array_equal(first[k], second[k]) for k in first)
    assert np.array_equal(given, before)


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({"flip": "horizontal"}, lambda x, made: any(np.array_equal(made, v) for v in (x, x[:, ::-1]))),
        ({"flip": "vertical"}, lambda x, made: any(np.array_equal(made, v) for v in (x, x[::-1]))),
        ({"crop": 1.0}, lambda x, made: made.shape == x.shape),
        ({"rotate": 90}, lambda x, made: made.min() >= x.min() and made.max() <= x.max()),
        ({"colour": 0.2}, lambda x, made: abs(float(made.mean()) - float(x.mean())) <= 0.25 * x.mean()),
        ({"cutout": 0.5}, lambda x, made: (made == 0).all(axis=2).sum() >= 25 and ((made == x) | (made == 0)).all()),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("kind", ["uint8", "float32", "gray"])
def test_each_change_does_what_it_says(change, holds, kind):
    given, labels = pictures()
    given = given[..., :1] if kind == "gray" else given.astype(kind)
    made = by_sample(ps.from_tensor_slices((given, labels)).augment(**change).batch(8))
    assert all(holds(given[k].astype(float), made[k].astype(float)) for k in made)
    assert sum(not np.array_equal(given[k], made[k]) for k in made) >= 5


def test_mixup_blends_pictures_and_classes_in_the_same_shares():
    given, labels = pictures()
    (x, y), *_ = ps.from_tensor_slices((given, labels)).batch(30).mixup(1.0, classes=30)
    assert x.dtype == y.dtype == np.float32
    assert np.allclose(y.sum(axis=1), 1)
    assert np.allclose(x, np.tensordot(y, given.astype(np.float32), axes=1), atol=1e-3)
    assert ((y > 0.01) & (y < 0.99)).any()
    (x, y), *_ = ps.from_tensor_slices((given, labels.astype(np.float32))).batch(30).mixup()
    assert y.shape == (30,)


def test_wrong_calls_are_refused_with_what_to_change():
    ds = ps.from_tensor_slices(pictures())
    for wrong, words in (
        (lambda: ds.augment(), "say what to change"),
        (lambda: ds.batch(2).augment(flip="both"), "before batch"),
        (lambda: ds.mixup(), "after batch"),
        (lambda: ds.normalise(std=0), "above 0"),
        (lambda: ds.normalise(mean=float("nan")), "finite"),
        (lambda: ds.normalise(layout="CWH"), "HWC"),
        (lambda: ds.augment(crop=2), "least share"),
        (lambda: list(ds.normalise(mean=[1, 2]).batch(2)), "2 values where column '0' has 3"),
        (lambda: list(ds.batch(4).mixup()), "mixup\\(classes=10\\)"),
        (lambda: ps.from_tensor_slices({"a": [1], "b": [2]}).normalise().schema, "columns="),
        (lambda: ps.from_tensor_slices([[1, 2]]).augment(flip="both").schema, "pictures"),
    ):
        with pytest.raises(InvalidInput, match=words):
            wrong()
    with pytest.raises(NotFound, match="no column 'c'"):
        _ = ps.from_tensor_slices({"a": [1], "b": [2]}).normalise(columns="c").schema


def test_read_images_refuses_half_of_a_normalisation(folder):
    with pytest.raises(InvalidInput, match="are for dtype='float32'"):
        ps.read_images(folder / "files", scale=1 / 255)
    with pytest.raises(InvalidInput, match="'uint8' or 'float32'"):
        ps.read_images(folder / "files", dtype="int32")
